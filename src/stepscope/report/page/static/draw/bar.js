// @ts-check
/** A whole divided into parts, as one bar with a legend. Works from plain values: the report uses it too. */

import { h } from "../dom.js";
import { duration, share } from "../units.js";

/** @typedef {{name: string, amount: number, colour: string}} Part */

/** Share of the whole from which a part has room for its name. */
const LABELLED = 0.1;

/**
 * @param {Part[]} parts
 * @param {number} whole what the parts add up to
 * @param {(amount: number) => string} words how an amount is written
 */
export function partitionBar(parts, whole, words = duration) {
  const filled = parts.filter((part) => part.amount > 0);
  const bar = h("div", { class: "bar", role: "img", "aria-label": filled.map((part) => `${part.name} ${share(part.amount / whole)}`).join(", ") });
  for (const part of filled) {
    const label = part.amount / whole >= LABELLED ? h("span", { class: "bar-label" }, `${part.name} ${share(part.amount / whole)}`) : null;
    const piece = h("div", { class: "bar-part", title: `${part.name}: ${words(part.amount)} (${share(part.amount / whole)})` }, label);
    piece.style.flexGrow = String(part.amount / whole);
    piece.style.background = part.colour;
    bar.append(piece);
  }
  const legend = h("ul", { class: "legend" });
  for (const part of [...filled].sort((a, b) => b.amount - a.amount)) {
    const dot = h("span", { class: "dot" });
    dot.style.background = part.colour;
    legend.append(h("li", {}, dot, h("span", { class: "name" }, part.name), h("span", { class: "number" }, words(part.amount)), h("span", { class: "number" }, share(part.amount / whole))));
  }
  return h("div", { class: "partition" }, bar, legend);
}
