// @ts-check
/** Durations of steps in order as bars, of one run or of two on one scale. Works from plain values. */

import { h, svg } from "../dom.js";
import { count, duration } from "../units.js";

/**
 * @typedef {{title: string, first: number[], last: number[], median_ns: number[], longest_ns: number[],
 *   kinds: string[], overall_ns: number}} Run
 */

const HEIGHT = 100;
const WIDEST = 44;
/** Bars are cut at so many times the median, so that one slow step does not flatten the others. */
const CUT = 4;

/** @param {Run[]} runs */
export function stepHistory(runs) {
  const longest = Math.max(1, ...runs.flatMap((run) => run.longest_ns));
  const limit = CUT * Math.max(...runs.map((run) => run.overall_ns));
  const top = limit > 0 && longest > limit ? limit : longest;
  return h("div", { class: "history" }, ...runs.map((run, which) => plot(run, top, which, runs.length > 1)));
}

/** @param {Run} run @param {number} top @param {number} which @param {boolean} isOneOfTwo */
function plot(run, top, which, isOneOfTwo) {
  const number = run.first.length;
  /** @param {number} ns */
  const y = (ns) => HEIGHT - (Math.min(ns, top) / top) * HEIGHT;
  const bars = run.first.flatMap((first, at) => {
    const kind = `${isOneOfTwo && which === 0 ? "is-before" : "is-now"} ${run.kinds[at] ? `is-${slug(run.kinds[at])}` : ""}`;
    const words = `${steps(first, run.last[at])}: ${duration(run.median_ns[at])}${run.longest_ns[at] > run.median_ns[at] ? `, the longest ${duration(run.longest_ns[at])}` : ""}${run.kinds[at] ? `; ${run.kinds[at]}` : ""}`;
    return [["history-longest", run.longest_ns[at]], ["history-median", run.median_ns[at]]].map(([name, ns]) => {
      const tall = Math.max(1, HEIGHT - y(Number(ns)));
      const bar = svg("rect", { class: `${name} ${kind}`, x: at + 0.08, y: HEIGHT - tall, width: 0.84, height: tall });
      bar.append(svg("title", {}, words));
      return bar;
    });
  });
  const line = svg("line", { class: "history-line", x1: 0, x2: number, y1: y(run.overall_ns), y2: y(run.overall_ns) });
  const picture = svg("svg", { class: "history-plot", viewBox: `0 0 ${number} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `Duration of each step, ${run.title}` }, ...bars, line);
  const axis = h("div", { class: "history-axis" }, h("span", {}, steps(run.first[0], run.first[0])), number > 1 ? h("span", {}, steps(run.last[number - 1], run.last[number - 1])) : null);
  const frame = h("div", { class: "history-frame" }, picture, axis);
  frame.style.maxWidth = `${number * WIDEST}px`;
  return h("figure", { class: "history-run" }, isOneOfTwo ? h("h3", {}, run.title) : null, frame, h("figcaption", { class: "note" }, ...caption(run, top)));
}

/** @param {Run} run @param {number} top @returns {(string | HTMLElement)[]} */
function caption(run, top) {
  const longest = Math.max(...run.longest_ns);
  const at = run.longest_ns.indexOf(longest);
  const cut = run.longest_ns.filter((ns) => ns > top).length;
  const perBar = Math.max(...run.first.map((first, one) => run.last[one] - first + 1));
  const words = [`${run.title[0].toUpperCase()}${run.title.slice(1)}. Median ${duration(run.overall_ns)} (the line); the longest ${duration(longest)}, ${steps(run.first[at], run.last[at])}.`];
  if (perBar > 1 && run.first.length > 1) words.push(` A bar is up to ${count(perBar)} steps: their median, and paler the longest.`);
  if (cut) words.push(` ${count(cut)} ${cut === 1 ? "bar is" : "bars are"} cut off at ${duration(top)}.`);
  const kinds = [...new Set(run.kinds.filter(Boolean))];
  return [...words, ...kinds.map((kind) => h("span", { class: "history-key" }, h("span", { class: `dot is-${slug(kind)}` }), kind))];
}

/** @param {number} first @param {number} last */
function steps(first, last) {
  return first === last ? `step ${first}` : `steps ${first} to ${last}`;
}

/** @param {string} kind */
function slug(kind) {
  return kind.replace(/[^a-z]+/g, "-");
}
