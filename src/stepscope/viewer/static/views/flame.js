// @ts-check
/** The flame graph of the selected range: the host's call tree, or GPU time by what launched it. */

import { getJson, isAbort } from "../api.js";
import { FlameGraph } from "../draw/flame.js";
import { fold } from "../draw/fold.js";
import { sandwich } from "../draw/sandwich.js";
import { h, oneTabStop, replace } from "../dom.js";
import { count, duration, plural, share } from "../units.js";

const KINDS = /** @type {[string, string, string][]} */ ([
  ["operator", "GPU time by operator", "What ran on the GPU, under the operators that launched it."],
  ["module", "GPU time by module", "What ran on the GPU, under the model's modules."],
  ["python", "GPU time by Python stack", "What ran on the GPU, under the Python functions that launched it."],
  ["host", "CPU call tree", "What the host's threads did; each thread is a root."],
]);
/** The root of what lies under no module or function: the only one in a trace that has none. */
const NOWHERE = /** @type {Record<string, string>} */ ({ module: "outside modules", python: "outside Python" });

/** @param {import("../main.js").Context} context */
export function flameView(context) {
  const { selection, overview, trace } = context;
  const body = h("div", { class: "view-body" });
  const about = h("p", { class: "note" });
  const hits = h("span", { class: "note" });
  const tabs = h("div", { class: "tabs" });
  oneTabStop(tabs);
  const find = h("input", { type: "search", placeholder: "Find in the graph", "aria-label": "Find in the graph" });
  const folding = h("button", { type: "button", title: "Equal layers of the model as one, and the outer frames as one", onclick: () => selection.set({ fold: isFolded() ? "off" : null }) }, "Fold");
  const element = h("div", { class: "view" }, h("div", { class: "view-head" }, tabs, find, hits, folding), about, body);
  /** @type {AbortController | null} */
  let pending = null;
  /** @type {FlameGraph | null} */
  let graph = null;

  const isFolded = () => selection.get("fold", "on") !== "off";

  find.addEventListener("input", () => {
    const part = graph?.find(find.value) ?? 0;
    hits.textContent = find.value ? `${share(part)} of the time` : "";
  });

  async function load() {
    const by = selection.get("by", hasGpu(overview) ? "operator" : "host");
    const range = selection.range() ?? [0, overview.end_ns + 1];
    replace(tabs, ...KINDS.map(([kind, title]) => h("button", { type: "button", "aria-pressed": String(kind === by), tabindex: kind === by ? "0" : "-1", onclick: () => selection.set({ by: kind, function: null }) }, title)));
    const where = selection.range() ? `the selected ${duration(range[1] - range[0])}` : "the whole trace; select a range in the timeline to narrow it";
    about.textContent = `${KINDS.find(([kind]) => kind === by)?.[2] ?? ""} Of ${where}.`;
    pending?.abort();
    delete element.dataset.ready;
    pending = new AbortController();
    replace(body, h("p", { class: "note" }, "Building the tree…"));
    try {
      const sent = await getJson(`/api/traces/${trace}/flame`, { by, start: range[0], end: range[1] }, pending.signal);
      const name = selection.get("function");
      const found = isFolded() ? fold(sent) : sent;
      folding.setAttribute("aria-pressed", String(isFolded()));
      graph = new FlameGraph(found, (one) => selection.set({ function: one }));
      if (found.name.includes(name)) replace(body, ...both(found, name));
      else if (!found.name.length) replace(body, h("p", { class: "note" }, by !== "host" && !hasGpu(overview) ? "The trace has no GPU work. The CPU call tree shows what the CPU did." : "Nothing of this kind was recorded in this range."));
      else if (roots(found).every((root) => root === NOWHERE[by])) replace(body, h("p", { class: "note" }, "Recorded without Python's stacks (with_stack=True): nothing tells under which module or function the GPU's work was launched."), graph.element);
      else replace(body, graph.element, sent.left_out ? h("p", { class: "note" }, `${count(sent.left_out)} tiny nodes are left out.`) : null);
      element.dataset.ready = by;
    } catch (error) {
      if (!isAbort(error)) replace(body, h("p", { class: "error" }, String(/** @type {Error} */ (error).message)));
    }
  }

  /** Every call of one name: who called it above, what it called below. @param {import("../draw/flame.js").FlameData} found @param {string} name */
  function both(found, name) {
    const { callers, callees } = sandwich(found, name);
    const again = (/** @type {string} */ one) => selection.set({ function: one });
    const lower = new FlameGraph(callees, again);
    graph = lower;
    return [
      h("div", { class: "view-head" }, h("button", { type: "button", onclick: () => selection.set({ function: null }) }, "Back to the graph"), h("strong", {}, name), h("span", { class: "note" }, `${duration(callees.total_ns[0])} in ${plural(callees.count[0], "call")}: ${share(found.whole_ns ? callees.total_ns[0] / found.whole_ns : 0)} of the time`)),
      h("h3", {}, "Called by"), new FlameGraph(callers, again).element,
      h("h3", {}, "Calls"), lower.element,
    ];
  }

  const end = selection.onChange((changed) => {
    if (changed.has("by") || changed.has("range") || changed.has("function") || changed.has("fold")) load();
  });
  load();
  return { element, close: () => { end(); pending?.abort(); } };
}

/** The names of the roots. @param {import("../draw/flame.js").FlameData} found */
function roots(found) {
  return found.name.filter((_, at) => found.parent[at] < 0);
}

/** Whether the trace has GPU work. @param {any} overview */
export function hasGpu(overview) {
  return overview.lanes.some((/** @type {any} */ lane) => lane.kind === "busy");
}
