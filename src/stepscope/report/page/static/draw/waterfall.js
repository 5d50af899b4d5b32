// @ts-check
/** From one total to another by the parts that changed: the parts add up exactly to the difference. */

import { h } from "../dom.js";
import { duration, signed } from "../units.js";

/** @typedef {{name: string, a_ns: number, b_ns: number}} Change */

/**
 * Rows as wide as what holds them: bars shrink on a narrow page, names and numbers do not.
 * @param {Change[]} parts parts of both totals
 * @param {[string, string]} titles of the two totals
 */
export function waterfall(parts, titles) {
  const before = parts.reduce((sum, part) => sum + part.a_ns, 0);
  const after = parts.reduce((sum, part) => sum + part.b_ns, 0);
  const changed = parts.map((part) => ({ name: part.name, delta: part.b_ns - part.a_ns })).filter((part) => part.delta !== 0);
  changed.sort((a, b) => Math.abs(b.delta) - Math.abs(a.delta));
  let at = before;
  const path = changed.map((part) => ({ ...part, from: at, to: (at += part.delta) }));
  const highest = Math.max(before, after, ...path.map((one) => one.to), 1);
  const rows = [
    row(titles[0], 0, before, "whole", duration(before), highest),
    ...path.map((one) => row(one.name, one.from, one.to, one.delta > 0 ? "grew" : "shrank", signed(one.delta), highest)),
    row(titles[1], 0, after, "whole", duration(after), highest),
  ];
  return h("div", { class: "waterfall", role: "img", "aria-label": `From ${duration(before)} to ${duration(after)}` }, ...rows);
}

/**
 * @param {string} name
 * @param {number} from
 * @param {number} to
 * @param {string} kind
 * @param {string} text
 * @param {number} highest what the width of the bars stands for
 */
function row(name, from, to, kind, text, highest) {
  const bar = h("span", { class: "waterfall-bar" });
  bar.style.left = `${(100 * Math.min(from, to)) / highest}%`;
  bar.style.width = `${(100 * Math.abs(to - from)) / highest}%`;
  return h(
    "div", { class: `waterfall-row is-${kind}` },
    h("span", { class: "waterfall-name" }, name),
    h("span", { class: "waterfall-room" }, bar),
    h("span", { class: "waterfall-number" }, text),
  );
}
