// @ts-check
/** What the colours of the timeline mean, below it. */

import { h } from "../dom.js";
import { paint } from "../theme.js";

const WORDS = /** @type {[string, number][]} */ ([
  ["compute", 1], ["communication", 2], ["copy", 3], ["fill", 4], ["operator", 5], ["annotation", 6], ["Python", 7],
  ["runtime call", 8], ["synchronisation", 9], ["step", 11], ["other", 0], ["idle: striped or dotted, by cause", 16],
]);

/** The legend. */
export function legend() {
  return h("ul", { class: "timeline-legend", "aria-label": "Colours" }, ...WORDS.map(([word, number]) => {
    const dot = h("span", { class: "dot" });
    dot.style.background = paint(number);
    return h("li", {}, dot, word);
  }));
}
