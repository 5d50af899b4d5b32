// @ts-check
/** What the colours of the timeline mean, below it. */

import { h } from "../dom.js";
import { dot } from "../panels/details.js";

const WORDS = /** @type {[string, number][]} */ ([
  ["compute, matrix product", 1], ["attention", 12], ["convolution", 13], ["elementwise", 14], ["normalisation", 15],
  ["reduction", 33], ["other kernel", 34], ["communication", 2], ["copy", 3], ["fill", 4], ["operator", 5], ["annotation", 6], ["Python", 7],
  ["runtime call", 8], ["synchronisation", 9], ["step", 11], ["other", 0], ["idle: striped or dotted, by cause", 16],
]);

/** The legend of what a trace has; idle time is looked for where a GPU works. @param {any} overview */
export function legend({ colours, lanes }) {
  const isDrawn = new Set([...colours, lanes.some((/** @type {any} */ lane) => lane.kind === "busy") ? 16 : 0]);
  const words = WORDS.filter(([, number]) => isDrawn.has(number));
  return h("ul", { class: "timeline-legend", "aria-label": "Colours" }, ...words.map(([word, number]) => h("li", {}, dot(number), word)));
}
