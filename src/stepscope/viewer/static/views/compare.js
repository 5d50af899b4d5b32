// @ts-check
/** Two traces against each other: the step by parts, its steps, one step aligned, what changed. */

import { getColumns, getJson, isAbort, postJson } from "../api.js";
import { bars } from "../draw/bars.js";
import { FlameGraph } from "../draw/flame.js";
import { mergeFlames } from "../draw/merge.js";
import { drawMiniTimeline } from "../draw/mini-timeline.js";
import { stepStrips } from "../draw/step-strips.js";
import { table } from "../draw/table.js";
import { h, oncePerFrame, replace } from "../dom.js";
import { whileShown } from "../theme.js";
import { duration, share, signed } from "../units.js";

const MOST_ROWS = 14;
const WIDEST = 900;

/** @param {import("../main.js").Context} context */
export function compareView(context) {
  const { selection, traces } = context;
  const body = h("div", { class: "view-body" });
  const head = h("div", { class: "view-head" });
  const element = h("div", { class: "view" }, head, body);
  let isClosed = false;
  /** How wide pictures can be without being squeezed. */
  const room = () => Math.min(WIDEST, body.clientWidth);
  const first = () => traces[selection.number("trace") ?? 0] ?? traces[0];
  /** Memory snapshots have no step to compare. */
  const others = () => traces.filter((one) => one.id !== first().id && !one.is_memory);
  const second = () => traces[selection.number("with") ?? -1] ?? others()[0];

  function showHead() {
    const found = others();
    const choose = h("select", { "aria-label": "Compare with", onchange: (/** @type {any} */ event) => selection.set({ with: event.target.value }) }, ...found.map((one) => h("option", { value: traces.indexOf(one), selected: one.id === second()?.id }, one.title)));
    const names = [h("strong", {}, first().title), h("span", { class: "note" }, "before,"), choose, h("span", { class: "note" }, "after")];
    replace(head, ...(found.length ? names : []));
  }

  async function load() {
    showHead();
    const [a, b] = [first(), second()];
    if (!b) {
      replace(body, h("p", {}, "Open two traces to compare them: ", h("code", {}, "stepscope view before.json.gz after.json.gz")));
      return;
    }
    replace(body, h("p", { class: "note" }, "Reading both traces…"));
    try {
      await Promise.all([ready(a.id), ready(b.id)]);
      const found = await getJson(`/api/traces/${a.id}/compare`, { with: b.id });
      if (isClosed) return;
      const overviews = await Promise.all([a, b].map((one) => getJson(`/api/traces/${one.id}/overview`)));
      replace(body, ...headline(found), parts(found), steps(found), aligned([a, b], overviews, room), differential([a, b], overviews), ...changes(found), ...found.notes.map((/** @type {string} */ note) => h("p", { class: "note" }, `Note: ${note}`)));
      element.dataset.ready = "1";
    } catch (error) {
      if (!isAbort(error)) replace(body, h("p", { class: "error" }, String(/** @type {Error} */ (error).message)));
    }
  }

  /** Opens a trace and waits for it. @param {string} id */
  async function ready(id) {
    let status = await postJson(`/api/traces/${id}/open`);
    while (status.stage !== "ready" && !isClosed) {
      if (status.stage === "failed") throw new Error(status.error);
      await new Promise((go) => setTimeout(go, 250));
      status = (await getJson("/api/traces")).traces.find((/** @type {any} */ one) => one.id === id);
    }
  }

  const end = selection.onChange((changed) => {
    if (changed.has("with")) load();
  });
  load();
  return { element, close: () => { isClosed = true; end(); } };
}

/** @param {any} found */
function headline({ step, changed, differences }) {
  const words = (step.delta_ns > 0 ? "longer" : "shorter") + (step.is_beyond_noise ? "" : ", which may be noise");
  const noise = step.noise_ns === null ? "; the noise is not known" : `; runs differ by ±${duration(step.noise_ns)} by chance`;
  const verdict = h("p", { class: "verdict" }, `The median step: ${duration(step.a_ns)} before, ${duration(step.b_ns)} after: ${signed(step.delta_ns)} (${share(Math.abs(step.change_share))} ${words}${noise})`);
  return [
    verdict,
    changed ? h("p", { class: "lead" }, changed[0].toUpperCase() + changed.slice(1)) : null,
    ...differences.map((/** @type {string} */ one) => h("p", { class: "caution" }, `Caution: ${one}.`)),
  ];
}

/** @param {any} found */
function parts(found) {
  if (!found.changes.part.length) return h("p", { class: "note" }, "The parts of the two steps cannot be compared.");
  return h("section", {}, h("h3", {}, "From one step to the other"), h("p", { class: "note" }, `Mean step (${found.a.parts_basis}): the bars between add up to the difference exactly. The verdict compares medians, which single slow steps do not move.`), found.waterfall ? bars(found.waterfall) : null);
}

/** @param {any} found */
function steps(found) {
  return h("section", {}, h("h3", {}, "Steps"), stepStrips(found.strips).element, h("p", { class: "note" }, found.a.basis === found.b.basis ? `Durations of ${found.a.basis}.` : `Durations of ${found.a.basis} before, of ${found.b.basis} after.`));
}

/** One step of each, drawn from the same moment and at the same scale. @param {any[]} pair @param {any[]} overviews @param {() => number} room */
function aligned(pair, overviews, room) {
  const canvases = pair.map(() => h("canvas", { class: "mini" }));
  const choices = overviews.map((overview, at) => {
    const steps = overview.device_steps.length ? overview.device_steps : overview.steps;
    const middle = Math.floor(steps.length / 2);
    const choose = h("select", { "aria-label": "Step", onchange: () => redraw() }, ...steps.map((/** @type {any} */ step, /** @type {number} */ number) => h("option", { value: number, selected: number === middle }, `step ${step.step}${step.device === undefined ? "" : `, GPU ${step.device}`}: ${duration(step.end_ns - step.start_ns)}`)));
    return h("label", {}, `${pair[at].title} `, choose);
  });
  async function draw() {
    const chosen = overviews.map((overview, at) => {
      const steps = overview.device_steps.length ? overview.device_steps : overview.steps;
      return steps[Number(/** @type {HTMLSelectElement} */ (choices[at].querySelector("select")).value)];
    });
    if (chosen.some((step) => !step)) return;
    const span = Math.max(...chosen.map((step) => step.end_ns - step.start_ns), 1);
    await Promise.all(canvases.map((canvas, at) => drawStep(canvas, pair[at].id, overviews[at], chosen[at], span, room())));
  }
  const redraw = oncePerFrame(() => draw().catch(() => {}));
  // The pictures keep their colours and width, so what changes these draws them again, as long as they are shown.
  whileShown(canvases[0], "theme-changed", redraw);
  whileShown(canvases[0], "resize", redraw);
  redraw();
  return h("section", {}, h("h3", {}, "One step of each, at the same scale"), ...choices.flatMap((choice, at) => [choice, canvases[at]]));
}

/** @param {HTMLCanvasElement} canvas @param {string} trace @param {any} overview @param {any} step @param {number} span @param {number} width */
async function drawStep(canvas, trace, overview, step, span, width) {
  const lanes = overview.lanes.filter((/** @type {any} */ lane) => lane.kind === "stream" || lane.is_main).slice(0, 6);
  const rows = lanes.flatMap((/** @type {any} */ lane) => Array.from({ length: Math.min(lane.rows, 5) }, (_, row) => ({ title: row ? "" : lane.title, row: lane.first_row + row }))).slice(0, MOST_ROWS);
  const level = Math.max(0, Math.floor(Math.log2(span / WIDEST)));
  const params = { of: "events", rows: rows.map((/** @type {any} */ one) => one.row).join(","), start: step.start_ns, level, buckets: Math.ceil(span / 2 ** level) };
  const { meta, columns } = await getColumns(`/api/traces/${trace}/slices`, params);
  const shift = step.start_ns - meta.start_ns;
  const slices = /** @type {any} */ ({ ...columns, start: Array.from(columns.start, (one) => one - shift) });
  const offset = columns.offset;
  drawMiniTimeline(canvas, rows.map((/** @type {any} */ one, /** @type {number} */ at) => ({ title: one.title, slices, first: offset[at], last: offset[at + 1], endNs: step.end_ns - step.start_ns })), span, width);
}

/** @param {any[]} pair @param {any[]} overviews */
function differential(pair, overviews) {
  const holder = h("div", {}, h("p", { class: "note" }, "Building the trees…"));
  (async () => {
    const by = overviews.every((overview) => overview.lanes.some((/** @type {any} */ lane) => lane.kind === "busy")) ? "operator" : "host";
    const windows = overviews.map((overview) => windowOf(overview, by));
    const flames = await Promise.all(pair.map((one, at) => getJson(`/api/traces/${one.id}/flame`, { by, start: windows[at].start, end: windows[at].end })));
    replace(holder, new FlameGraph(mergeFlames(flames[0], windows[0].steps, flames[1], windows[1].steps)).element);
  })().catch((error) => replace(holder, h("p", { class: "error" }, error.message)));
  return h("section", {}, h("h3", {}, "Where it changed"), h("p", { class: "note" }, "Per step, matched by path. Red grew, blue shrank; each node is as wide as the larger of the two."), holder);
}

/**
 * All steps of a trace together, on the clock of what the tree consists of: the GPU works on a step long
 * after a host that runs ahead has finished it.
 * @param {any} overview @param {string} by
 */
function windowOf(overview, by) {
  const isOfGpu = by === "operator" && overview.device_steps.length > 0;
  const steps = isOfGpu ? overview.device_steps : overview.steps.filter((/** @type {any} */ step) => !step.is_empty);
  if (!steps.length) return { start: 0, end: overview.end_ns + 1, steps: 1 };
  return {
    start: Math.min(...steps.map((/** @type {any} */ step) => step.start_ns)),
    end: Math.max(...steps.map((/** @type {any} */ step) => step.end_ns)),
    steps: new Set(steps.map((/** @type {any} */ step) => step.step)).size,
  };
}

/** @param {any} found */
function changes(found) {
  const columns = [
    { name: "name", label: "name", number: false }, { name: "status", label: "", number: false },
    { name: "a_ns", label: "before", number: true }, { name: "b_ns", label: "after", number: true },
    { name: "delta_ns", label: "change", number: true }, { name: "noise_ns", label: "noise", number: true },
  ];
  return [["kernel", "Kernels"], ["operator", "Operators"]].filter(([key]) => found.changes[key].length).map(([key, title]) => h("section", {}, h("h3", {}, `${title}, per step`), table({ columns, rows: found.changes[key].map((/** @type {any} */ row) => columns.map((column) => row[column.name])), total: found.changes[key].length }, { shown: 20, filter: true })));
}
