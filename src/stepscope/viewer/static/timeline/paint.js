// @ts-check
/** What lies over the slices: grid, texts, counters, the selection, search hits, the slice under the mouse. */

import { token } from "../theme.js";
import { fittingName, inUnit } from "../units.js";
import { marks } from "./axis.js";
import { itemsInView, rowsInView } from "./scenes.js";

const LEAST_LABEL = 26;
const MOST_LABELS = 900;
const IDLE = /^idle: /;
/** @type {Record<string, string>} */
const COUNTER_INKS = { memory: "idle-pageable-copy", queue: "call", busy: "compute", bandwidth: "copy" };

/** @typedef {{start: Float64Array, end: Float64Array, lane: Uint32Array}} CriticalPath pieces in order of time */
/** @typedef {{event: number, of: string, row: number, start_ns: number, dur_ns: number}} Mark */

/**
 * Lines at the axis' marks, bands between lanes, and the edges of steps.
 * @param {CanvasRenderingContext2D} context
 * @param {import("./camera.js").Camera} camera
 * @param {import("./layout.js").Layout} layout
 * @param {number} height
 * @param {{start_ns: number, end_ns: number}[]} steps
 */
export function paintGround(context, camera, layout, height, steps) {
  context.fillStyle = token("paper");
  context.fillRect(0, 0, camera.width, height);
  for (const place of layout.visible()) {
    const top = layout.screenY(place);
    if (place.type === "group") {
      context.fillStyle = token("paper-raised");
      context.fillRect(0, top, camera.width, place.height);
    } else {
      context.fillStyle = token("line");
      context.fillRect(0, top + place.height + 2, camera.width, 1);
    }
  }
  context.fillStyle = token("line");
  context.globalAlpha = 0.6;
  for (const { x } of marks(camera)) context.fillRect(Math.round(x), 0, 1, height);
  context.globalAlpha = 1;
  context.fillStyle = token("line-strong");
  for (const step of steps) {
    const x = camera.x(step.start_ns);
    if (x >= 0 && x <= camera.width) context.fillRect(Math.round(x), 0, 1, height);
  }
}

/**
 * The names on slices that have room for them.
 * @param {CanvasRenderingContext2D} context
 * @param {Iterable<import("./scenes.js").Scene>} scenes
 * @param {import("./camera.js").Camera} camera
 * @param {import("./layout.js").Layout} layout
 * @param {import("../names.js").Names} names
 */
export function paintLabels(context, scenes, camera, layout, names) {
  context.font = `${token("size-small")} ${token("font")}`;
  context.textBaseline = "middle";
  context.fillStyle = token("slice-ink");
  const letter = context.measureText("autograd::conv_forward").width / 22;
  let left = MOST_LABELS;
  for (const scene of scenes) {
    for (const { slot, top, place } of rowsInView(scene, layout)) {
      if (place.lane?.kind === "busy" || place.rowHeight < 13) continue;
      if (scene.longest[slot] / camera.nsPerPixel < LEAST_LABEL) continue;
      left = labelRow(context, scene, slot, camera, top + place.rowHeight / 2, names, letter, left);
      if (left <= 0) return;
    }
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {import("./scenes.js").Scene} scene
 * @param {number} slot
 * @param {import("./camera.js").Camera} camera
 * @param {number} middle
 * @param {import("../names.js").Names} names
 * @param {number} letter
 * @param {number} left
 */
function labelRow(context, scene, slot, camera, middle, names, letter, left) {
  const least = LEAST_LABEL * camera.nsPerPixel;
  const [first, end] = itemsInView(scene, slot, camera);
  for (let at = first; at < end && left > 0; at++) {
    if (scene.width[at] < least || !scene.wide[at]) continue;
    const x0 = Math.max(camera.x(scene.start + scene.startNs[at]), 0);
    const x1 = Math.min(camera.x(scene.start + scene.startNs[at] + scene.width[at]), camera.width);
    const room = x1 - x0 - 8;
    if (room < LEAST_LABEL - 10) continue;
    const name = names.get(scene.name[at]);
    if (!name) continue;
    // The lane is called "why idle": a name cut to "idle:…" would say nothing.
    const text = fittingName(context, scene.of === "idle" ? name.replace(IDLE, "") : name, room, letter);
    if (text) context.fillText(text, x0 + 4, middle + 0.5);
    left--;
  }
  return left;
}

/**
 * A frame around a slice.
 * @param {CanvasRenderingContext2D} context
 * @param {Mark} mark
 * @param {import("./camera.js").Camera} camera
 * @param {import("./layout.js").Layout} layout
 * @param {string} ink
 * @param {number} width
 */
export function paintFrame(context, mark, camera, layout, ink, width) {
  const place = layout.placeOfRow(mark.of, mark.row);
  const top = layout.rowY(mark.of, mark.row);
  if (!place || top === null || (!place.pinned && top < layout.pinnedHeight)) return;
  const x0 = Math.max(camera.x(mark.start_ns), -4);
  const x1 = Math.min(camera.x(mark.start_ns + mark.dur_ns), camera.width + 4);
  if (x1 < -4 || x0 > camera.width + 4) return;
  context.strokeStyle = ink;
  context.lineWidth = width;
  context.strokeRect(x0 - 0.5, top - 0.5, Math.max(x1 - x0, 2), place.rowHeight - 0.5);
}

/**
 * The selected range of time: a tint below the slices, so that their colours stay, or its edges above.
 * @param {CanvasRenderingContext2D} context
 * @param {[number, number]} range
 * @param {import("./camera.js").Camera} camera
 * @param {number} height
 * @param {"tint" | "edges"} what
 */
export function paintRange(context, range, camera, height, what) {
  const x0 = camera.x(range[0]);
  const x1 = camera.x(range[1]);
  if (what === "tint") {
    context.fillStyle = token("selection");
    context.fillRect(x0, 0, x1 - x0, height);
    return;
  }
  context.fillStyle = token("selection-edge");
  context.fillRect(Math.round(x0), 0, 1, height);
  context.fillRect(Math.round(x1), 0, 1, height);
}

/**
 * A line below each slice whose name was searched for; of narrow ones below the longest of its bucket.
 * @param {CanvasRenderingContext2D} context
 * @param {Set<number>} hits numbers of names
 * @param {import("./scenes.js").Scene | undefined} scene
 * @param {import("./camera.js").Camera} camera
 * @param {import("./layout.js").Layout} layout
 */
export function paintHits(context, hits, scene, camera, layout) {
  if (!hits.size || !scene) return;
  context.fillStyle = token("hit");
  for (const { slot, top, place } of rowsInView(scene, layout)) {
    const [first, end] = itemsInView(scene, slot, camera);
    for (let at = first; at < end; at++) {
      if (!hits.has(scene.name[at])) continue;
      const wide = Math.max(scene.width[at] / camera.nsPerPixel, 1.5);
      context.fillRect(camera.x(scene.start + scene.startNs[at]), top + place.rowHeight - 4, wide, 3);
    }
  }
}

/**
 * The critical path: a frame around each piece of GPU work on it, and a line along the threads that held it up. What is
 * narrower than a pixel is drawn once per pixel.
 * @param {CanvasRenderingContext2D} context
 * @param {CriticalPath} path
 * @param {import("./camera.js").Camera} camera
 * @param {import("./layout.js").Layout} layout
 */
export function paintPath(context, path, camera, layout) {
  /** @type {Map<number, {y: number, height: number}>} */
  const places = new Map();
  for (const place of layout.visible()) {
    if (place.lane?.lane_id !== null && place.lane?.lane_id !== undefined) places.set(place.lane.lane_id, { y: layout.screenY(place), height: place.rowHeight });
  }
  context.fillStyle = token("bad");
  /** @type {Map<number, number>} */
  const free = new Map();
  let joint = /** @type {{x: number, y: number} | null} */ (null);
  for (let at = 0; at < path.start.length; at++) {
    const x0 = camera.x(path.start[at]);
    const x1 = camera.x(path.end[at]);
    if (x1 < 0 || x0 > camera.width) continue;
    const place = places.get(path.lane[at]);
    if (!place || x1 < (free.get(path.lane[at]) ?? -Infinity)) continue;
    const wide = Math.max(x1 - x0, 1.5);
    free.set(path.lane[at], x0 + wide);
    const y = place.y + Math.min(place.height, 18) - 4;
    context.fillRect(x0, y, wide, 4);
    // Where the path goes on in another lane.
    if (joint && Math.abs(joint.y - y) > 1) context.fillRect(Math.round(x0) - 0.5, Math.min(joint.y, y), 1, Math.abs(joint.y - y));
    joint = { x: x0 + wide, y };
  }
}

/**
 * One counter as an area: between the least and the greatest value of each bucket.
 * @param {CanvasRenderingContext2D} context
 * @param {import("./counters.js").CounterTile | undefined} tile
 * @param {import("./layout.js").Place} place
 * @param {number} top
 * @param {import("./camera.js").Camera} camera
 */
export function paintCounter(context, tile, place, top, camera) {
  const counter = place.counter;
  if (!tile || !counter) return;
  const highest = counter.highest > 0 ? counter.highest : 1;
  const step = 2 ** tile.level;
  const bottom = top + place.height;
  /** @param {number} value */
  const y = (value) => bottom - Math.max(0, Math.min(1, value / highest)) * (place.height - 4);
  const ink = token(`colour-${COUNTER_INKS[counter.group] ?? "communication"}`);
  context.beginPath();
  let value = tile.before;
  let x = camera.x(tile.start);
  let isOpen = value !== null;
  if (isOpen) context.moveTo(x, bottom);
  if (value !== null) context.lineTo(x, y(value));
  for (let at = 0; at < tile.bucket.length; at++) {
    x = camera.x(tile.start + tile.bucket[at] * step);
    if (!isOpen) {
      context.moveTo(x, bottom);
      isOpen = true;
    } else if (value !== null) context.lineTo(x, y(value));
    context.lineTo(x, y(tile.greatest[at]));
    value = tile.last[at];
    context.lineTo(camera.x(tile.start + (tile.bucket[at] + 1) * step), y(value));
  }
  if (!isOpen) return;
  const end = camera.x(Math.min(tile.end, camera.endNs));
  if (value !== null) context.lineTo(Math.max(x, end), y(value));
  context.lineTo(Math.max(x, end), bottom);
  context.globalAlpha = 0.3;
  context.fillStyle = ink;
  context.fill();
  context.globalAlpha = 1;
  context.strokeStyle = ink;
  context.lineWidth = 1;
  context.stroke();
  axis(context, highest, counter.unit, y, camera.width);
}

/**
 * The scale of a counter: lines at half and at its highest, with amounts.
 * @param {CanvasRenderingContext2D} context
 * @param {number} highest
 * @param {string} unit
 * @param {(value: number) => number} y
 * @param {number} width
 */
function axis(context, highest, unit, y, width) {
  context.font = `${token("size-small")} ${token("font")}`;
  context.textBaseline = "middle";
  for (const value of [highest, highest / 2]) {
    const words = inUnit(value, unit);
    context.fillStyle = token("line-strong");
    context.fillRect(0, Math.round(y(value)), width, 1);
    context.fillStyle = token("paper");
    context.globalAlpha = 0.85;
    context.fillRect(2, y(value) - 6, context.measureText(words).width + 6, 13);
    context.globalAlpha = 1;
    context.fillStyle = token("ink-soft");
    context.fillText(words, 5, y(value) + 1);
  }
}

