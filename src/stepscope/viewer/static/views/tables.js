// @ts-check
/** The answer to every question of `stepscope show`, as tables, for the selected steps. */

import { getJson, isAbort } from "../api.js";
import { h, oneTabStop, replace } from "../dom.js";
import { answer } from "./answer.js";

const OF_RANGE = "Questions are asked of whole steps: these are the steps that the selected range touches.";

/** What the questions are about; those of no group come last. */
const GROUPS = /** @type {[string, string[]][]} */ ([
  ["Time", ["timeline", "steps", "idle", "input", "launches", "critical-path", "what-if", "ladder", "pipeline"]],
  ["Compute", ["kernels", "compute", "fusion", "operators", "operators-by-shape", "modules", "flops", "call-tree", "python-functions"]],
  ["Memory", ["memory"]],
  ["Communication", ["communication", "collectives", "abnormal-collectives"]],
]);

/** @param {import("../main.js").Context} context */
export function tablesView(context) {
  const { selection, overview, trace } = context;
  const list = h("nav", { class: "questions", "aria-label": "Questions" });
  oneTabStop(list);
  const body = h("div", { class: "view-body" });
  const steps = h("input", { type: "text", placeholder: "all steps", "aria-label": "Steps, such as 3,4-6", value: selection.get("steps") });
  const known = overview.steps.map((/** @type {any} */ step) => step.step);
  const has = known.length === 0 ? "The trace has no steps." : known.length === 1 ? `The trace has step ${known[0]}.` : `The trace has steps ${known[0]} to ${known.at(-1)}.`;
  const element = h("div", { class: "view has-side" }, list, h("div", { class: "view-main" }, h("div", { class: "view-head" }, h("label", {}, "Steps ", steps), h("span", { class: "note" }, has)), body));
  /** @type {{name: string, about: string}[]} */
  let questions = [];
  /** @type {AbortController | null} */
  let pending = null;

  steps.addEventListener("change", () => selection.set({ steps: steps.value.replaceAll(" ", "") || null }));

  function showList() {
    const chosen = selection.get("question", "steps");
    const grouped = new Set(GROUPS.flatMap(([, names]) => names));
    const groups = [...GROUPS, ["More", questions.map((one) => one.name).filter((name) => !grouped.has(name))]];
    replace(list, ...groups.flatMap(([title, names]) => {
      const found = questions.filter((one) => names.includes(one.name));
      return found.length ? [h("h3", {}, String(title)), ...found.map((one) => choice(one, chosen))] : [];
    }));
  }

  /** @param {{name: string, about: string}} one @param {string} chosen */
  function choice(one, chosen) {
    return h("button", { type: "button", title: one.about, "aria-current": one.name === chosen ? "page" : null, tabindex: one.name === chosen ? "0" : "-1", onclick: () => selection.set({ question: one.name }) }, one.name.replaceAll("-", " "));
  }

  /** Steps that a selected range touches stand in for it: questions are asked of whole steps. */
  function stepsOfRange() {
    const range = selection.range();
    if (!range) return "";
    return overview.steps
      .filter((/** @type {any} */ step) => step.start_ns < range[1] && step.end_ns > range[0])
      .map((/** @type {any} */ step) => step.step)
      .join(",");
  }

  async function load() {
    const chosen = selection.get("question", "steps");
    showList();
    pending?.abort();
    delete element.dataset.ready;
    pending = new AbortController();
    const given = selection.get("steps");
    steps.value = given;
    const ofRange = given ? "" : stepsOfRange();
    replace(body, h("p", { class: "note" }, "Working it out…"));
    try {
      const found = await getJson(`/api/traces/${trace}/table`, { question: chosen, steps: given || ofRange || null }, pending.signal);
      replace(body, ...answer(found, selection, ofRange ? OF_RANGE : ""));
      element.dataset.ready = chosen;
    } catch (error) {
      if (!isAbort(error)) replace(body, h("p", { class: "error" }, String(/** @type {Error} */ (error).message)));
    }
  }

  const end = selection.onChange((changed) => {
    if (changed.has("question") || changed.has("steps")) load();
  });
  getJson("/api/questions").then((found) => {
    questions = found.questions;
    load();
  });
  return { element, close: () => { end(); pending?.abort(); } };
}
