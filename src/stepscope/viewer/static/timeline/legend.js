// @ts-check
/** What the colours of the timeline mean, below it. */

import { h } from "../dom.js";
import { dot } from "../panels/details.js";

const WORDS = /** @type {[string, number][]} */ ([
  ["compute, matrix product", 1], ["attention", 12], ["convolution", 13], ["elementwise", 14], ["normalisation", 15],
  ["reduction", 33], ["other kernel", 34], ["communication", 2], ["copy", 3], ["fill", 4], ["operator", 5], ["annotation", 6], ["Python", 7],
  ["runtime call", 8], ["synchronisation", 9], ["step", 11], ["other", 0], ["idle: striped or dotted, by cause", 16],
]);

/** The legend. */
export function legend() {
  return h("ul", { class: "timeline-legend", "aria-label": "Colours" }, ...WORDS.map(([word, number]) => h("li", {}, dot(number), word)));
}
