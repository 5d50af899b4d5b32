// @ts-check
/** What is shown while a trace is read: the stage it is in, and for how long. */

import { h, replace } from "./dom.js";

const STAGES = /** @type {[string, string][]} */ ([
  ["waiting", "Waiting"], ["reading", "Reading the file"], ["arranging", "Arranging the slices"],
]);

/** @param {string} title */
export function loading(title) {
  const list = h("ol", { class: "stages" });
  const note = h("p", { class: "note" });
  const element = h("div", { class: "loading" }, h("h2", {}, title), list, note);
  /** @param {{stage: string, error: string, elapsed_s: number}} status */
  function show(status) {
    if (status.stage === "failed") {
      replace(element, h("h2", {}, title), h("p", { class: "error" }, status.error));
      return;
    }
    const now = STAGES.findIndex(([stage]) => stage === status.stage);
    replace(list, ...STAGES.slice(1).map(([, words], at) => h("li", { class: at + 1 < now ? "is-done" : at + 1 === now ? "is-now" : "" }, words)));
    note.textContent = `${status.elapsed_s.toFixed(1)} s${status.elapsed_s > 8 ? " · a large file is kept in a store, and opens at once the next time" : ""}`;
  }
  return { element, show };
}
