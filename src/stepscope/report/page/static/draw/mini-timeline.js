// @ts-check
/** A small timeline without controls, from slices in the shape of a tile. The report uses it too. */

import { canvasPaint } from "./patterns.js";
import { colour, pattern, shadeOf, token } from "../theme.js";

/**
 * @typedef {{title: string, slices: {start: ArrayLike<number>, width: ArrayLike<number>,
 *   share: ArrayLike<number>, colour: ArrayLike<number>, name: ArrayLike<number>}, first: number,
 *   last: number, endNs: number}} MiniRow slices from `first` up to `last`; times from the picture's
 *   start on; nothing is drawn beyond `endNs`
 */

const ROW = 16;
const TITLE = 130;

/**
 * @param {HTMLCanvasElement} canvas
 * @param {MiniRow[]} rows
 * @param {number} spanNs what the width stands for
 * @param {number} width
 */
export function drawMiniTimeline(canvas, rows, spanNs, width) {
  const ratio = globalThis.devicePixelRatio || 1;
  const height = rows.length * ROW + 2;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  context.font = `${token("size-small")} ${token("font")}`;
  context.textBaseline = "middle";
  const scale = (width - TITLE) / spanNs;
  rows.forEach((row, at) => {
    const y = at * ROW;
    context.globalAlpha = 1;
    context.fillStyle = token("ink-soft");
    context.fillText(row.title.slice(0, 24), 0, y + ROW / 2, TITLE - 8);
    context.fillStyle = token("paper-sunken");
    const end = Math.min(width - TITLE, row.endNs * scale);
    context.fillRect(TITLE, y, end, ROW - 2);
    const { start, width: lasting, share, colour: number, name } = row.slices;
    for (let item = row.first; item < row.last; item++) {
      const x0 = Math.max(0, start[item] * scale);
      const x1 = Math.min(end, (start[item] + lasting[item]) * scale);
      if (x1 < 0 || x0 >= end) continue;
      context.globalAlpha = 0.4 + 0.6 * share[item] * (0.92 + 0.08 * shadeOf(name[item]));
      context.fillStyle = canvasPaint(context, colour(number[item]), pattern(number[item]));
      context.fillRect(TITLE + x0, y, Math.max(x1 - x0, 0.8), ROW - 2);
    }
  });
  context.globalAlpha = 1;
}
