// @ts-check
/** Arrows between the selected event and those it is linked to. */

import { token } from "../theme.js";

/**
 * @typedef {{start_ns: number, dur_ns: number, row: number, drawn: boolean}} End
 * @typedef {{from: End, to: End, title: string}} Arrow
 */

const MOST_ARROWS = 60;

/**
 * The arrows of an event, in the direction in which time and cause run.
 * @param {any} event what the server says of it
 * @returns {Arrow[]}
 */
export function arrowsOf(event) {
  /** @type {Arrow[]} */
  const found = [];
  for (const link of event.links ?? []) {
    const comesFrom = link.title === "launched by" || link.title === "operator" || link.title === "backward of";
    for (const other of link.events.slice(0, MOST_ARROWS)) {
      if (!other.drawn) continue;
      found.push(comesFrom ? { from: other, to: event, title: link.title } : { from: event, to: other, title: link.title });
    }
  }
  return found;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Arrow[]} arrows
 * @param {import("./camera.js").Camera} camera
 * @param {import("./layout.js").Layout} layout
 */
export function paintArrows(context, arrows, camera, layout) {
  context.strokeStyle = token("accent");
  context.fillStyle = token("accent");
  context.lineWidth = 1.25;
  for (const { from, to, title } of arrows) {
    const y0 = layout.rowY("events", from.row);
    const y1 = layout.rowY("events", to.row);
    if (y0 === null || y1 === null) continue;
    const x0 = camera.x(from.start_ns + (title.includes("forward") || title.includes("backward") ? from.dur_ns : 0));
    const x1 = camera.x(to.start_ns);
    if (Math.max(x0, x1) < -2000 || Math.min(x0, x1) > camera.width + 2000) continue;
    const middle = 9;
    const bend = Math.max(18, Math.min(120, Math.abs(x1 - x0) / 2));
    context.setLineDash(title.includes("perator") ? [3, 3] : []);
    context.beginPath();
    context.moveTo(x0, y0 + middle);
    context.bezierCurveTo(x0 + bend, y0 + middle, x1 - bend, y1 + middle, x1, y1 + middle);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.moveTo(x1, y1 + middle);
    context.lineTo(x1 - 6, y1 + middle - 3.5);
    context.lineTo(x1 - 6, y1 + middle + 3.5);
    context.fill();
  }
}
