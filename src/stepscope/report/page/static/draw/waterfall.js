// @ts-check
/** From one total to another by the parts that changed: the parts add up exactly to the difference. */

import { svg } from "../dom.js";
import { duration, signed } from "../units.js";

/** @typedef {{name: string, a_ns: number, b_ns: number}} Change */

const ROW = 24;
const LABEL = 190;
const NUMBER = 92;

/**
 * @param {Change[]} parts parts of both totals
 * @param {number} width in pixels
 * @param {[string, string]} titles of the two totals
 */
export function waterfall(parts, width, titles) {
  const before = parts.reduce((sum, part) => sum + part.a_ns, 0);
  const after = parts.reduce((sum, part) => sum + part.b_ns, 0);
  const changed = parts.map((part) => ({ name: part.name, delta: part.b_ns - part.a_ns })).filter((part) => part.delta !== 0);
  changed.sort((a, b) => Math.abs(b.delta) - Math.abs(a.delta));
  let at = before;
  const path = changed.map((part) => ({ ...part, from: at, to: (at += part.delta) }));
  const highest = Math.max(before, after, ...path.map((one) => one.to), 1);
  const room = width - LABEL - NUMBER;
  /** @param {number} ns */
  const x = (ns) => LABEL + (ns / highest) * room;
  const height = (path.length + 2) * ROW;
  const rows = [
    row(0, titles[0], 0, before, "whole", duration(before), x, width),
    ...path.map((one, number) => row(number + 1, one.name, one.from, one.to, one.delta > 0 ? "grew" : "shrank", signed(one.delta), x, width)),
    row(path.length + 1, titles[1], 0, after, "whole", `${duration(after)}`, x, width),
  ];
  return svg("svg", { class: "waterfall", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `From ${duration(before)} to ${duration(after)}` }, ...rows);
}

/**
 * @param {number} number
 * @param {string} name
 * @param {number} from
 * @param {number} to
 * @param {string} kind
 * @param {string} text
 * @param {(ns: number) => number} x
 * @param {number} width
 */
function row(number, name, from, to, kind, text, x, width) {
  const y = number * ROW;
  const [low, high] = [Math.min(from, to), Math.max(from, to)];
  return svg(
    "g", { class: `waterfall-row is-${kind}` },
    svg("text", { x: 0, y: y + ROW / 2, class: "waterfall-name" }, name),
    svg("rect", { x: x(low), y: y + 4, width: Math.max(x(high) - x(low), 1.5), height: ROW - 8, rx: 2 }),
    svg("text", { x: width, y: y + ROW / 2, class: "waterfall-number" }, text),
  );
}
