// @ts-check
/** Part of a history as the server sends it, stacked: where each allocation lies in each column. */

import { getColumns } from "../api.js";

/** @typedef {"time" | "events"} Axis */
/**
 * @typedef {{from: number, to: number, low: number, high: number}} Run
 *   bytes from `low` to `high` in the columns from `from` up to `to`
 * @typedef {{number: number, category: number, first: number, last: number, size: number,
 *   text: string, low: Float64Array, runs: Run[]}} Item
 */

/** Categories, and others in one column: bytes from the bottom on. */
export class Stack {
  /** @param {import("../tile-format.js").Columns} sent */
  constructor({ meta, columns }) {
    this.start = /** @type {number} */ (meta.start);
    this.step = /** @type {number} */ (meta.step);
    this.count = /** @type {number} */ (meta.columns);
    this.others = /** @type {number} */ (meta.others);
    this.event = columns.event;
    this.allocated = columns.allocated;
    this.reserved = columns.reserved;
    /** Where the bytes of each category begin; the last is where they all end. */
    this.base = bases(columns.categories, this.count);
    /** Where the smaller allocations of a category begin, above those that are drawn. */
    this.rest = this.base.slice(0, -1).map((base) => base.slice());
    /** @type {Item[]} */
    this.items = [];
    for (let at = 0; at < columns.allocation.length; at++) this.items.push(this._item(at, meta, columns));
  }

  /** @param {number} at @param {any} meta @param {Record<string, import("../tile-format.js").Column>} columns @returns {Item} */
  _item(at, meta, columns) {
    const [category, first, last, size] = [columns.category[at], columns.first[at], columns.last[at], columns.size[at]];
    const top = this.rest[category];
    const low = top.slice(first, last);
    /** @type {Run[]} */
    const runs = [];
    for (let column = first; column < last; column++) {
      const run = runs.at(-1);
      if (run && run.low === top[column]) run.to = column + 1;
      else runs.push({ from: column, to: column + 1, low: top[column], high: top[column] + size });
      top[column] += size;
    }
    return { number: columns.allocation[at], category, first, last, size, text: meta.texts[meta.text[at]], low, runs };
  }

  /** What one column holds. @param {number} column */
  totals(column) {
    return this.base.slice(0, -1).map((base, category) => this.base[category + 1][column] - base[column]);
  }

  /** What lies at a place: an allocation, or the smaller ones of a category. @param {number} column @param {number} bytes */
  at(column, bytes) {
    if (column < 0 || column >= this.count || bytes < 0 || bytes >= this.base[this.base.length - 1][column]) return null;
    const category = this.base.findIndex((base) => base[column] > bytes) - 1;
    const item = this.items.find((one) => one.category === category && column >= one.first && column < one.last && bytes >= one.low[column - one.first] && bytes < one.low[column - one.first] + one.size);
    return { category, item: item ?? null };
  }
}

/** @param {import("../tile-format.js").Column} categories @param {number} count */
function bases(categories, count) {
  const found = [new Float64Array(count)];
  for (let category = 0; category * count < categories.length; category++) {
    const next = new Float64Array(count);
    for (let column = 0; column < count; column++) next[column] = found[category][column] + categories[category * count + column];
    found.push(next);
  }
  return found;
}

/**
 * Columns for a window, with half of it more on either side.
 * @param {string} trace
 * @param {number} device
 * @param {Axis} axis
 * @param {import("../timeline/camera.js").Camera} camera
 * @param {AbortSignal} signal
 */
export async function fetchStack(trace, device, axis, camera, signal) {
  const span = camera.span;
  const params = {
    device, axis, start: Math.floor(camera.start - span / 2), end: Math.ceil(camera.end + span / 2),
    columns: Math.min(2048, Math.max(64, Math.round(camera.width))),
  };
  return new Stack(await getColumns(`/api/traces/${trace}/memory/columns`, params, signal));
}
