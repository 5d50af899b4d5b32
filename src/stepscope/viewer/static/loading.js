// @ts-check
/** What is shown while a trace, its memory or the ranks of its run are read: the stage, and for how long. */

import { postJson } from "./api.js";
import { h, replace } from "./dom.js";

/** @typedef {[string, string][]} Stages names of stages, and what the page calls them */
/** @typedef {{stage: string, error: string, elapsed_s: number}} Status */

const POLL_MS = 250;
const OF_TRACE = /** @type {Stages} */ ([["reading", "Reading the file"], ["arranging", "Arranging the slices"]]);

/** @param {string} title @param {Stages} stages */
export function loading(title, stages = OF_TRACE) {
  const list = h("ol", { class: "stages" });
  const note = h("p", { class: "note" });
  const element = h("div", { class: "loading" }, h("h2", {}, title), list, note);
  /** @param {Status} status */
  function show(status) {
    if (status.stage === "failed") {
      replace(element, h("h2", {}, title), h("p", { class: "error" }, status.error));
      return;
    }
    // A stage may say how far it is: "reading 3 of 8 ranks".
    const now = stages.findIndex(([stage]) => status.stage.startsWith(stage));
    replace(list, ...stages.map(([stage, words], at) => h("li", { class: at < now ? "is-done" : at === now ? "is-now" : "" }, at === now && status.stage !== stage ? `${status.stage[0].toUpperCase()}${status.stage.slice(1)}` : words)));
    note.textContent = `${status.elapsed_s.toFixed(1)} s${status.elapsed_s > 8 ? " · a large file is kept in a store, and opens at once the next time" : ""}`;
  }
  return { element, show };
}

/**
 * Has the server begin something, and shows how far it is until it is ready.
 * @param {HTMLElement} place where that is shown
 * @param {string} path of the request that begins it
 * @param {string} title
 * @param {Stages} stages
 * @param {() => boolean} isOver whether nobody waits any more
 * @returns {Promise<boolean>} whether it is ready
 */
export async function untilReady(place, path, title, stages, isOver) {
  const progress = loading(title, stages);
  replace(place, progress.element);
  let status = await postJson(path);
  while (!isOver()) {
    progress.show(status);
    if (status.stage === "ready") return true;
    if (status.stage === "failed") return false;
    await new Promise((go) => setTimeout(go, POLL_MS));
    status = await postJson(path);
  }
  return false;
}

/** The title of a trace, by its id. @param {import("./main.js").TraceStatus[]} traces @param {string} id */
export function titleOf(traces, id) {
  return traces.find((one) => one.id === id)?.title ?? "";
}
