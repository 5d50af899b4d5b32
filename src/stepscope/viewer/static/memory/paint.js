// @ts-check
/** Draws stacked memory: allocations by category, what was reserved, steps, failed requests, the chosen moment. */

import { canvasPaint } from "../draw/patterns.js";
import { momentText, roundAmounts } from "../draw/ticks.js";
import { memoryPattern } from "../memory-colours.js";
import { marks } from "../timeline/axis.js";
import { token } from "../theme.js";
import { count, size } from "../units.js";

export const AXIS = 26;
const TOP = 22;
const LABEL_ROOM = 34;

/** What a category is filled with. @param {CanvasRenderingContext2D} context @param {string} category */
export function memoryColour(context, category) {
  return canvasPaint(context, token(`colour-memory-${category.replaceAll("_", "-")}`), memoryPattern(category));
}

/**
 * @typedef {{camera: import("../timeline/camera.js").Camera, height: number, most: number, axis: import("./columns.js").Axis,
 *   categories: string[], colourOf: (item: import("./columns.js").Item) => string, steps: {step: number, at: number}[], failed: number[], moment: number | null,
 *   picked: number | null, under: {column: number, item: import("./columns.js").Item | null} | null}} Scene
 */

/** Where an amount of bytes lies. @param {Scene} scene @param {number} bytes */
export function yOf(scene, bytes) {
  const room = scene.height - AXIS - TOP;
  return scene.height - AXIS - (bytes / scene.most) * room;
}

/** How many bytes lie at a place. @param {Scene} scene @param {number} y */
export function bytesAt(scene, y) {
  return ((scene.height - AXIS - y) / (scene.height - AXIS - TOP)) * scene.most;
}

/** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {import("./columns.js").Stack | null} stack */
export function paint(context, scene, stack) {
  const { camera, height } = scene;
  context.clearRect(0, 0, camera.width, height);
  context.font = `${token("size-small")} ${token("font")}`;
  context.textBaseline = "middle";
  grid(context, scene);
  if (stack) {
    bands(context, scene, stack);
    items(context, scene, stack);
    reserved(context, scene, stack);
  }
  steps(context, scene);
  axis(context, scene);
  for (const at of scene.failed) upright(context, scene, at, token("bad"), [5, 3]);
  if (scene.moment !== null) upright(context, scene, scene.moment, token("selection-edge"), []);
}

/** Lines of round amounts. @param {CanvasRenderingContext2D} context @param {Scene} scene */
function grid(context, scene) {
  context.fillStyle = token("line");
  for (const bytes of roundAmounts(scene.most)) context.fillRect(0, Math.round(yOf(scene, bytes)), scene.camera.width, 1);
}

/** The smaller allocations of each category, as one. @param {CanvasRenderingContext2D} context @param {Scene} scene @param {import("./columns.js").Stack} stack */
function bands(context, scene, stack) {
  const [first, end] = inView(scene, stack);
  scene.categories.forEach((category, number) => {
    context.fillStyle = memoryColour(context, category);
    context.globalAlpha = 0.5;
    for (let column = first; column < end; column++) {
      const low = stack.rest[number][column];
      const high = stack.base[number + 1][column];
      if (high > low) fill(context, scene, stack, column, column + 1, low, high);
    }
  });
  context.globalAlpha = 1;
}

/** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {import("./columns.js").Stack} stack */
function items(context, scene, stack) {
  const [first, end] = inView(scene, stack);
  const edge = token("paper");
  for (const item of stack.items) {
    if (item.last <= first || item.first >= end) continue;
    const isLit = scene.under?.item === item || scene.picked === item.number;
    const tall = (item.size / scene.most) * (scene.height - AXIS - TOP);
    for (const run of item.runs) {
      if (run.to <= first || run.from >= end) continue;
      context.fillStyle = isLit ? token("hit") : memoryColour(context, scene.colourOf(item));
      fill(context, scene, stack, run.from, run.to, run.low, run.high);
      if (tall >= 4) {
        context.fillStyle = edge;
        context.globalAlpha = 0.55;
        const x = Math.round(camera(scene, stack, run.from));
        context.fillRect(x, Math.round(yOf(scene, run.high)), Math.round(camera(scene, stack, run.to)) - x, 1);
        context.globalAlpha = 1;
      }
    }
  }
}

/** What the allocator had of the device. @param {CanvasRenderingContext2D} context @param {Scene} scene @param {import("./columns.js").Stack} stack */
function reserved(context, scene, stack) {
  const [first, end] = inView(scene, stack);
  context.strokeStyle = token("ink-soft");
  context.lineWidth = 1.25;
  context.setLineDash([4, 3]);
  context.beginPath();
  for (let column = first; column < end; column++) {
    const y = yOf(scene, stack.reserved[column]);
    context.lineTo(camera(scene, stack, column), y);
    context.lineTo(camera(scene, stack, column + 1), y);
  }
  context.stroke();
  context.setLineDash([]);
}

/** @param {CanvasRenderingContext2D} context @param {Scene} scene */
function steps(context, scene) {
  let free = -Infinity;
  for (const { step, at } of scene.steps) {
    const x = scene.camera.x(at);
    if (x < -LABEL_ROOM || x > scene.camera.width) continue;
    context.fillStyle = token("line-strong");
    context.fillRect(Math.round(x), 0, 1, scene.height - AXIS);
    if (x < free) continue;
    context.fillStyle = token("ink-soft");
    context.fillText(`step ${step}`, x + 4, TOP / 2);
    free = x + context.measureText(`step ${step}`).width + LABEL_ROOM;
  }
}

/** Both axes: round moments below, round amounts at the left. @param {CanvasRenderingContext2D} context @param {Scene} scene */
function axis(context, scene) {
  const { camera: shown, height } = scene;
  const bottom = height - AXIS;
  context.fillStyle = token("line-strong");
  context.fillRect(0, bottom, shown.width, 1);
  for (const { ns, x } of marks(shown)) {
    if (scene.axis === "events" && ns % 1) continue;
    context.fillStyle = token("line-strong");
    context.fillRect(Math.round(x), bottom, 1, 6);
    context.fillStyle = token("ink-soft");
    context.fillText(scene.axis === "events" ? `event ${count(ns)}` : momentText(ns, shown.span), x + 4, bottom + 13);
  }
  for (const bytes of roundAmounts(scene.most)) {
    if (!bytes) continue;
    const text = size(bytes);
    const y = yOf(scene, bytes) - 8;
    context.fillStyle = token("paper");
    context.globalAlpha = 0.8;
    context.fillRect(2, y - 7, context.measureText(text).width + 6, 14);
    context.globalAlpha = 1;
    context.fillStyle = token("ink-soft");
    context.fillText(text, 5, y);
  }
}

/** A moment as a line. @param {CanvasRenderingContext2D} context @param {Scene} scene @param {number} at @param {string} colour @param {number[]} dash */
function upright(context, scene, at, colour, dash) {
  const x = Math.round(scene.camera.x(at)) + 0.5;
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x, TOP);
  context.lineTo(x, scene.height - AXIS);
  context.stroke();
  context.setLineDash([]);
  context.fillStyle = colour;
  context.beginPath();
  context.moveTo(x - 5, TOP - 6);
  context.lineTo(x + 5, TOP - 6);
  context.lineTo(x, TOP + 2);
  context.fill();
}

/** Columns that are on the screen. @param {Scene} scene @param {import("./columns.js").Stack} stack */
function inView({ camera: shown }, stack) {
  const first = Math.max(0, Math.floor((shown.start - stack.start) / stack.step));
  const end = Math.min(stack.count, Math.ceil((shown.end - stack.start) / stack.step) + 1);
  return [first, end];
}

/** Where a column begins. @param {Scene} scene @param {import("./columns.js").Stack} stack @param {number} column */
function camera(scene, stack, column) {
  return scene.camera.x(stack.start + column * stack.step);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {import("./columns.js").Stack} stack
 * @param {number} from
 * @param {number} to
 * @param {number} low
 * @param {number} high
 */
function fill(context, scene, stack, from, to, low, high) {
  // On whole pixels neighbours touch, and edges are sharp.
  const x = Math.round(camera(scene, stack, from));
  const y = Math.round(yOf(scene, high));
  context.fillRect(x, y, Math.max(Math.round(camera(scene, stack, to)) - x, 1), Math.round(yOf(scene, low)) - y);
}
