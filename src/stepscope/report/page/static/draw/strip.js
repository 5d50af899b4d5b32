// @ts-check
/** Durations of steps as bars side by side, of one run or of two. Works from plain values. */

import { svg } from "../dom.js";
import { duration } from "../units.js";

/**
 * @param {{title: string, steps: number[], ns: number[]}[]} runs
 * @param {number} width
 * @param {(run: number, step: number) => void} [picked]
 */
export function stepStrip(runs, width, picked) {
  const height = 84;
  const highest = Math.max(1, ...runs.flatMap((run) => run.ns));
  const number = Math.max(1, ...runs.map((run) => run.ns.length));
  const slot = Math.min(64, width / number);
  const bar = Math.max(1, (slot * 0.8) / runs.length);
  const bars = runs.flatMap((run, which) => run.ns.map((ns, at) => {
    const tall = Math.max(1, (ns / highest) * (height - 18));
    const x = at * slot + which * bar;
    const element = svg("rect", { class: `strip-bar is-run-${which}`, x, y: height - 14 - tall, width: Math.max(bar - 1, 0.8), height: tall, rx: 1, onclick: () => picked?.(which, at) });
    element.append(svg("title", {}, `${run.title}, step ${run.steps[at] ?? at}: ${duration(ns)}`));
    return element;
  }));
  const labels = slot > 22 ? runs[0].steps.map((step, at) => svg("text", { class: "strip-label", x: at * slot, y: height - 6 }, String(step))) : [];
  return svg("svg", { class: "strip", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Duration of each step" }, ...bars, ...labels);
}
