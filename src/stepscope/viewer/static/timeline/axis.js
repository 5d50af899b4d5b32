// @ts-check
/** The time axis: where its marks stand and what they say. */

import { momentText, roundNumbers } from "../draw/ticks.js";

/**
 * Marks at round moments, about `room` pixels apart.
 * @param {import("./camera.js").Camera} camera
 * @param {number} [room]
 * @returns {{ns: number, x: number}[]}
 */
export function marks(camera, room = 110) {
  return roundNumbers(camera.start, camera.end, camera.nsPerPixel * room).map((ns) => ({ ns, x: camera.x(ns) }));
}

/**
 * Draws the axis into a canvas of its own.
 * @param {CanvasRenderingContext2D} context
 * @param {import("./camera.js").Camera} camera
 * @param {number} height
 * @param {{ink: string, line: string, font: string}} look
 */
export function drawAxis(context, camera, height, look) {
  context.font = look.font;
  context.textBaseline = "middle";
  for (const { ns, x } of marks(camera)) {
    context.fillStyle = look.line;
    context.fillRect(Math.round(x), height - 6, 1, 6);
    context.fillStyle = look.ink;
    const text = momentText(ns, camera.span);
    // A part of the last one would be another number.
    if (x + 4 + context.measureText(text).width <= camera.width) context.fillText(text, x + 4, height - 9);
  }
}
