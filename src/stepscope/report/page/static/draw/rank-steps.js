// @ts-check
/** Ranks by steps as a static heat map with titles, which prints as it is. Works from plain values. */

import { svg } from "../dom.js";
import { count, duration } from "../units.js";

const TITLE = 70;
const AXIS = 18;
const TALL = 15;
const WIDEST = 60;
const WIDEST_MAP = 960;
/** The colours span at least this share of the median: where ranks are alike, a little noise must not look like much. */
const LEAST_SPAN = 0.1;
/** A cell is never paler than this, so that the fastest rank can be told from one without the step. */
const PALEST = 0.12;

/** @param {{ranks: number[], steps: number[], own_ns: (number | null)[][]}} map */
export function rankSteps({ ranks, steps, own_ns: own }) {
  const wide = Math.min(WIDEST, (WIDEST_MAP - TITLE) / steps.length);
  const known = /** @type {number[]} */ (own.flat().filter((one) => one !== null)).sort((a, b) => a - b);
  const [low, high] = [known[0], known[known.length - 1]];
  const span = Math.max(high - low, LEAST_SPAN * known[known.length >> 1], 1);
  const [width, height] = [TITLE + steps.length * wide, AXIS + ranks.length * TALL];
  const picture = svg("svg", { class: "rank-steps", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${count(ranks.length)} ranks over ${count(steps.length)} steps, from ${duration(low)} to ${duration(high)}` });
  let free = 0;
  steps.forEach((step, column) => {
    const x = TITLE + column * wide;
    if (x < free) return;
    picture.append(svg("text", { x, y: AXIS / 2 }, column ? String(step) : `step ${step}`));
    free = x + 48;
  });
  ranks.forEach((rank, row) => {
    const y = AXIS + row * TALL;
    picture.append(svg("text", { x: 0, y: y + TALL / 2 }, `rank ${rank}`));
    own[row].forEach((ns, column) => {
      if (ns === null) return;
      const opacity = PALEST + ((1 - PALEST) * (ns - low)) / span;
      const cell = svg("rect", { x: TITLE + column * wide, y, width: Math.max(wide - 1, 0.8), height: TALL - 1, opacity });
      cell.append(svg("title", {}, `rank ${rank}, step ${steps[column]}: ${duration(ns)}`));
      picture.append(cell);
    });
  });
  return picture;
}
