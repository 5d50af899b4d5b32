// @ts-check
/** The step after each fix, one bar below the other: what is left, what the fix takes away, and what limits the rest. */

import { h } from "../dom.js";
import { duration } from "../units.js";

/** @typedef {{name: string, step_ns: number, limit: string, words: string, colour: string}} Rung */

/** @param {Rung[]} rungs from today's step down */
export function ladder(rungs) {
  const highest = Math.max(...rungs.map((one) => one.step_ns), 1);
  const words = rungs.map((one) => `${one.name}: ${duration(one.step_ns)}`).join(", ");
  return h("div", { class: "ladder", role: "img", "aria-label": words }, ...rungs.map((one, at) => row(one, at ? rungs[at - 1].step_ns : one.step_ns, highest)));
}

/**
 * @param {Rung} rung
 * @param {number} before the step on the rung above
 * @param {number} highest what the width of the bars stands for
 */
function row(rung, before, highest) {
  const left = h("span", { class: "ladder-bar" });
  left.style.width = `${(100 * rung.step_ns) / highest}%`;
  left.style.background = rung.colour;
  const gone = h("span", { class: "ladder-gone" });
  gone.style.left = `${(100 * rung.step_ns) / highest}%`;
  gone.style.width = `${(100 * (before - rung.step_ns)) / highest}%`;
  return h(
    "div", { class: "ladder-rung" },
    h("span", { class: "ladder-name" }, rung.name),
    h("span", { class: "ladder-room" }, gone, left),
    h("span", { class: "ladder-step number" }, duration(rung.step_ns)),
    h("span", { class: "ladder-limit" }, rung.words),
  );
}
