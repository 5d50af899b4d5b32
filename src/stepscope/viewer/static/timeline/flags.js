// @ts-check
/** Places on the time axis: findings in the colour of their severity, notes and rows of a query with a line through the lanes. */

import { token } from "../theme.js";

/** @typedef {{title: string, severity?: string, start_ns: number, end_ns: number}} Flag of notes and rows: without severity */

const TALL = 4;
const LEAST = 5;

/**
 * @param {CanvasRenderingContext2D} context of the axis
 * @param {Flag[]} flags
 * @param {import("./camera.js").Camera} camera
 */
export function paintFlags(context, flags, camera) {
  for (const flag of [...flags].reverse()) {
    const [x0, x1] = edges(flag, camera);
    context.fillStyle = token(flag.severity ? `severity-${flag.severity}` : "accent");
    context.fillRect(x0, 0, x1 - x0, TALL);
  }
}

/**
 * A line through the lanes at the start of each note and row of a query: one per pixel, however many there are.
 * @param {CanvasRenderingContext2D} context of the lanes
 * @param {Flag[]} flags
 * @param {import("./camera.js").Camera} camera
 * @param {number} height
 */
export function paintMarks(context, flags, camera, height) {
  const places = new Set(flags.filter((flag) => !flag.severity).map((flag) => Math.round(camera.x(flag.start_ns))));
  context.fillStyle = token("accent");
  for (const x of places) {
    if (x >= 0 && x < camera.width) context.fillRect(x, 0, 1, height);
  }
}

/** Its ends on the screen; never closer than can be seen. @param {Flag} flag @param {import("./camera.js").Camera} camera */
function edges(flag, camera) {
  const x0 = camera.x(flag.start_ns);
  return [x0, Math.max(camera.x(flag.end_ns), x0 + LEAST)];
}

/**
 * The flag at a place of the axis: of several the shortest.
 * @param {Flag[]} flags
 * @param {number} x
 * @param {import("./camera.js").Camera} camera
 * @returns {Flag | null}
 */
export function flagAt(flags, x, camera) {
  const near = flags.filter((flag) => {
    const [x0, x1] = edges(flag, camera);
    return x >= x0 - 3 && x <= x1 + 3;
  });
  return near.sort((a, b) => a.end_ns - a.start_ns - (b.end_ns - b.start_ns))[0] ?? null;
}
