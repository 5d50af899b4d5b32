// @ts-check
/** A whole divided into parts, as one bar with a legend. Works from plain values: the report uses it too. */

import { h } from "../dom.js";
import { duration, share } from "../units.js";

/** @typedef {{name: string, ns: number, colour: string}} Part */

/** Share of the whole from which a part has room for its name. */
const LABELLED = 0.1;

/**
 * @param {Part[]} parts
 * @param {number} whole what the parts add up to
 */
export function partitionBar(parts, whole) {
  const filled = parts.filter((part) => part.ns > 0);
  const bar = h("div", { class: "bar", role: "img", "aria-label": filled.map((part) => `${part.name} ${share(part.ns / whole)}`).join(", ") });
  for (const part of filled) {
    const label = part.ns / whole >= LABELLED ? h("span", { class: "bar-label" }, `${part.name} ${share(part.ns / whole)}`) : null;
    const piece = h("div", { class: "bar-part", title: `${part.name}: ${duration(part.ns)} (${share(part.ns / whole)})` }, label);
    piece.style.flexGrow = String(part.ns / whole);
    piece.style.background = part.colour;
    bar.append(piece);
  }
  const legend = h("ul", { class: "legend" });
  for (const part of [...filled].sort((a, b) => b.ns - a.ns)) {
    const dot = h("span", { class: "dot" });
    dot.style.background = part.colour;
    legend.append(h("li", {}, dot, h("span", { class: "name" }, part.name), h("span", { class: "number" }, duration(part.ns)), h("span", { class: "number" }, share(part.ns / whole))));
  }
  return h("div", { class: "partition" }, bar, legend);
}
