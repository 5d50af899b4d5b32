// @ts-check
/** Tiles of counters on their way from the server; the one that is shown stays until the next comes. */

import { getColumns, isAbort } from "../api.js";

/**
 * @typedef {{start: number, end: number, level: number, before: number | null, bucket: Uint32Array,
 *   least: Float64Array, greatest: Float64Array, last: Float64Array}} CounterTile
 */

export class CounterTiles {
  /** @param {string} trace @param {() => void} arrived */
  constructor(trace, arrived) {
    this._trace = trace;
    this._arrived = arrived;
    /** @type {Map<number, CounterTile>} */
    this.shown = new Map();
    /** @type {Map<number, AbortController>} */
    this._pending = new Map();
  }

  /** @param {number} number @param {import("./camera.js").Camera} camera */
  want(number, camera) {
    const level = Math.max(0, Math.floor(Math.log2(camera.nsPerPixel)) + 1);
    const shown = this.shown.get(number);
    if (shown && shown.level === level && shown.start <= camera.start && shown.end >= camera.end) return;
    if (this._pending.has(number)) return;
    const start = Math.floor(camera.start - camera.span);
    const buckets = Math.min(Math.ceil((3 * camera.span) / 2 ** level), 16000);
    const control = new AbortController();
    this._pending.set(number, control);
    this._fetch(number, { number, start, level, buckets }, control.signal);
  }

  /** @param {number} number @param {import("../api.js").Params} params @param {AbortSignal} signal */
  async _fetch(number, params, signal) {
    try {
      const { meta, columns } = await getColumns(`/api/traces/${this._trace}/counter`, params, signal);
      this.shown.set(number, {
        start: meta.start_ns, end: meta.start_ns + meta.buckets * 2 ** meta.level, level: meta.level, before: meta.before,
        bucket: /** @type {Uint32Array} */ (columns.bucket), least: /** @type {Float64Array} */ (columns.least),
        greatest: /** @type {Float64Array} */ (columns.greatest), last: /** @type {Float64Array} */ (columns.last),
      });
    } catch (error) {
      if (!isAbort(error)) this.shown.delete(number);
    } finally {
      this._pending.delete(number);
      this._arrived();
    }
  }

  /** The value of a counter at a moment, as far as its tile tells. @param {number} number @param {number} ns */
  valueAt(number, ns) {
    const tile = this.shown.get(number);
    if (!tile) return null;
    const wanted = Math.floor((ns - tile.start) / 2 ** tile.level);
    let value = tile.before;
    for (let at = 0; at < tile.bucket.length && tile.bucket[at] <= wanted; at++) value = tile.last[at];
    return value;
  }
}
