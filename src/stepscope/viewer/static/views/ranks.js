// @ts-check
/** Every rank of a run over its steps as a heat map, the one to blame first, with the cause. */

import { getColumns, getJson, isAbort } from "../api.js";
import { PICTURES } from "../draw/pictures.js";
import { stepStrips } from "../draw/step-strips.js";
import { table } from "../draw/table.js";
import { h, replace } from "../dom.js";
import { titleOf, untilReady } from "../loading.js";
import { HeatMap } from "../ranks/heat-map.js";
import { count, duration, plural } from "../units.js";

const STAGES = /** @type {import("../loading.js").Stages} */ ([["reading", "Reading the ranks"], ["comparing", "Comparing the ranks"]]);
const COLUMNS = /** @type {[string, string][]} */ ([
  ["rank", "rank"], ["mean_step_ns", "step"], ["own_ns", "own time"], ["wait_ns", "waits"], ["caused_wait_ns", "caused wait (total)"],
  ["cause", "cause"], ["input_ns", "input"], ["compute_ns", "compute"], ["exposed_comm_ns", "exposed communication"], ["host", "host"],
]);

/** @param {import("../main.js").Context} context */
export function ranksView(context) {
  const { selection, trace, traces } = context;
  const path = `/api/traces/${trace}/ranks`;
  const measures = h("div", { class: "tabs", role: "group", "aria-label": "Measure" });
  const place = h("div", { class: "ranks-place" });
  const strips = h("section", { class: "rank-strips" });
  const element = h("div", { class: "view" }, place);
  /** @type {any} */
  let about = null;
  /** @type {HeatMap | null} */
  let map = null;
  /** @type {AbortController | null} */
  let pending = null;
  let isClosed = false;

  const measure = () => selection.get("measure", about.measures[0].name);

  /** Goes to a rank's timeline, at a step. @param {any} rank @param {number | null} step */
  function open(rank, step) {
    if (rank.trace === null) return;
    selection.set({ view: "timeline", trace: String(rank.trace), step, from: null, to: null, range: null, event: null });
  }

  /** A rank in a picture leads to its collective, or to the step, in its timeline. @type {import("../draw/pictures.js").Link} */
  const toRank = ({ rank, event, step }) => {
    const found = about.ranks.find((/** @type {any} */ one) => one.rank === rank);
    return found?.trace === null || !found ? null : () => selection.set({ view: "timeline", trace: String(found.trace), step: step ?? null, from: null, to: null, range: null, event: event ?? null });
  };

  async function begin() {
    try {
      if (!(await untilReady(place, `${path}/open`, titleOf(traces, trace), STAGES, () => isClosed))) return;
      about = await getJson(path);
      map = new HeatMap(about, open, (cell) => selection.set({ cell }));
      map.choose(selection.get("cell"));
      replace(place, ...page());
      await load();
      await showStrips();
    } catch (error) {
      failed(error);
    }
  }

  /** Every step of each rank, on one scale. */
  async function showStrips() {
    const found = await getJson(`/api/traces/${trace}/steps`, { all: 1 });
    if (isClosed || found.strips.length < 2) return;
    const picked = (/** @type {number} */ at, /** @type {number} */ bar) => {
      const { rank, first } = found.strips[at];
      open(about.ranks.find((/** @type {any} */ one) => one.rank === rank) ?? { trace: null }, first[bar]);
    };
    replace(strips, h("h3", {}, "Every step of each rank"), stepStrips(found.strips, { tall: 36, picked }).element, found.left_out ? h("p", { class: "note" }, `${plural(found.left_out, "more rank")} left out.`) : null);
  }

  async function load() {
    if (!map) return;
    pending?.abort();
    pending = new AbortController();
    const of = measure();
    replace(measures, ...about.measures.map((/** @type {any} */ one) => h("button", { type: "button", "aria-pressed": String(one.name === of), onclick: () => selection.set({ measure: one.name }) }, one.title)));
    try {
      const { columns } = await getColumns(`${path}/map`, { of }, pending.signal);
      map.show(of, /** @type {Float64Array} */ (columns.values));
      element.dataset.ready = of;
    } catch (error) {
      failed(error);
    }
  }

  /** How many ranks the map has; of how many, where traces of some are missing or cannot be read. */
  function ranks() {
    const number = about.ranks.length;
    return about.world_size > number ? `${count(number)} of ${plural(about.world_size, "rank")}` : plural(number, "rank");
  }

  function page() {
    const left = about.left_out_steps;
    const shown = COLUMNS.filter(([name]) => about.ranks.some((/** @type {any} */ rank) => rank[name] !== null));
    const rows = about.ranks.map((/** @type {any} */ rank) => shown.map(([name]) => rank[name]));
    const columns = shown.map(([name, label]) => ({ name, label, number: name !== "cause" && name !== "host" }));
    return [
      h("p", { class: "verdict" }, about.verdict[0].toUpperCase() + about.verdict.slice(1)),
      h("p", { class: "note" }, `${ranks()}, ${plural(about.steps.length, "step")}${left ? ` (the last; ${count(left)} earlier ones are left out)` : ""}, mean step ${duration(about.mean_step_ns)}. The rank that makes the others wait most comes first.`),
      ...about.pictures.map((/** @type {any} */ one) => PICTURES[one.is](one, toRank)),
      measures,
      map?.element ?? null,
      strips,
      about.causes.length ? h("section", {}, h("h3", {}, "What would be gained"), table({ columns: [["rank", "rank"], ["cause", "cause"], ["caused_wait_ns", "wait from this cause (total)"], ["gain_ns", "step shorter by"]].map(([name, label]) => ({ name, label, number: name !== "cause" })), rows: about.causes.map((/** @type {any} */ one) => [one.rank, one.cause, one.caused_wait_ns, one.gain_ns]), total: about.causes.length }, { shown: 8 })) : null,
      h("section", {}, h("h3", {}, "Ranks, per step"), table({ columns, rows, total: rows.length }, { shown: 16, filter: rows.length > 16, link: (column, value) => (column === "rank" ? () => open(about.ranks.find((/** @type {any} */ one) => one.rank === value), null) : null) }), h("p", { class: "note" }, "Own time is the step less its exposed communication. Waits for other ranks may overlap computation.")),
      ...about.notes.map((/** @type {string} */ note) => h("p", { class: "note" }, `Note: ${note}`)),
    ];
  }

  /** @param {unknown} error */
  function failed(error) {
    if (!isClosed && !isAbort(error)) replace(place, h("p", { class: "error" }, String(/** @type {Error} */ (error).message)));
  }

  const end = selection.onChange((changed) => {
    if (changed.has("measure")) load();
    if (changed.has("cell")) map?.choose(selection.get("cell"));
  });
  begin();
  return { element, close: () => { isClosed = true; end(); pending?.abort(); map?.close(); }, get map() { return map; } };
}
