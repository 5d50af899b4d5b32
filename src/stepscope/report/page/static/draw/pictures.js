// @ts-check
/** What draws each kind of picture, in the viewer and in pages: `report/pictures.py` and `report/figures.py` make them. */

import { h } from "../dom.js";
import { bars } from "./bars.js";
import { memoryOverTime } from "./memory-over-time.js";
import { rankSteps } from "./rank-steps.js";
import { scatter } from "./scatter.js";
import { laneKeys, stepLanes } from "./step-lanes.js";
import { stepStrips } from "./step-strips.js";

/** @typedef {(mark: {event?: number | null, rank?: number, step?: number | null}) => (() => void) | null} Link where a mark leads; null: nowhere */

/** @type {Record<string, (block: any, link?: Link) => HTMLElement>} */
export const PICTURES = {
  bars,
  scatter,
  matrix,
  memory: (block) => memoryOverTime(block),
  strips: ({ strips }) => stepStrips(strips).element,
  rank_steps: (block) => h("div", { class: "wide-picture" }, rankSteps(block)),
  mini_timeline: ({ lanes, dur_ns: lasting }) => h("div", { class: "wide-picture" }, stepLanes(lanes, lasting)),
  lanes: ({ title, lanes, dur_ns: lasting, step, caption }, link) => h("figure", { class: "picture" }, h("h3", {}, title), h("div", { class: "wide-picture all-lanes" }, stepLanes(lanes, lasting, (lane) => link?.({ rank: lane.rank, step }) ?? null)), laneKeys(lanes), h("figcaption", { class: "note" }, caption)),
};

/**
 * Rows by columns, each cell as dark as its amount.
 * @param {{title: string, corner: string, rows: string[], columns: string[], cells: [number, number, number, string][]}} block
 */
function matrix({ title, corner, rows, columns, cells }) {
  const most = Math.max(1, ...cells.map((one) => one[2]));
  const found = new Map(cells.map(([row, column, amount, text]) => [`${row} ${column}`, { amount, text }]));
  const body = rows.map((name, row) => h("tr", {}, h("th", { scope: "row" }, name), ...columns.map((_, column) => {
    const one = found.get(`${row} ${column}`);
    const square = h("td", { title: one?.text ?? null, "aria-label": one?.text ?? "nothing" });
    if (one) square.style.setProperty("--part", `${12 + (88 * one.amount) / most}%`);
    return square;
  })));
  const head = h("tr", {}, h("th", { scope: "col" }, corner), ...columns.map((name) => h("th", { scope: "col" }, name)));
  return h("figure", { class: "picture" }, h("h3", {}, title), h("div", { class: "wide-picture" }, h("table", { class: "matrix" }, h("thead", {}, head), h("tbody", {}, ...body))));
}
