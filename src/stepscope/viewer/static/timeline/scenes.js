// @ts-check
/**
 * Slices on their way from the server: three windows wide, at one pixel a bucket or finer.
 *
 * A scene is a tile of the rows of one kind ("events", "extra", "idle"). The one that is shown stays
 * until a better one has come, so that nothing blinks; requests that nobody waits for any more are
 * given up; those seen last are kept.
 */

import { getColumns, isAbort } from "../api.js";

/**
 * @typedef {{of: string, start: number, end: number, level: number, rows: number[],
 *   slot: Map<number, number>, offset: Uint32Array, startNs: Float32Array, width: Float32Array,
 *   share: Float32Array, count: Uint32Array, event: Uint32Array, name: Uint32Array,
 *   colour: Uint8Array, wide: Uint8Array, longest: Float32Array}} Scene
 */

const MOST_KEPT = 24;
const MOST_BUCKETS = 12000;
export const MOST_ROWS = 400;

/** The level whose buckets are nearest to a pixel. @param {number} nsPerPixel @param {number} width */
function levelFor(nsPerPixel, width) {
  let level = Math.max(0, Math.round(Math.log2(nsPerPixel)));
  while ((3 * width * nsPerPixel) / 2 ** level > MOST_BUCKETS) level++;
  return level;
}

/** Numbers as 1,4-6. @param {number[]} numbers sorted */
function asRanges(numbers) {
  const parts = [];
  for (let at = 0; at < numbers.length; ) {
    let last = at;
    while (last + 1 < numbers.length && numbers[last + 1] === numbers[last] + 1) last++;
    parts.push(last > at ? `${numbers[at]}-${numbers[last]}` : `${numbers[at]}`);
    at = last + 1;
  }
  return parts.join(",");
}

/**
 * @param {string} of
 * @param {import("../tile-format.js").Columns} found
 * @returns {Scene}
 */
function toScene(of, found) {
  const { meta, columns } = found;
  const offset = /** @type {Uint32Array} */ (columns.offset);
  const width = /** @type {Float32Array} */ (columns.width);
  const longest = new Float32Array(meta.rows.length);
  for (let row = 0; row < meta.rows.length; row++) {
    let most = 0;
    for (let at = offset[row]; at < offset[row + 1]; at++) most = Math.max(most, width[at]);
    longest[row] = most;
  }
  return {
    of, start: meta.start_ns, end: meta.start_ns + meta.buckets * 2 ** meta.level, level: meta.level, rows: meta.rows,
    slot: new Map(meta.rows.map((/** @type {number} */ row, /** @type {number} */ at) => [row, at])),
    offset, width, longest,
    startNs: /** @type {Float32Array} */ (columns.start), share: /** @type {Float32Array} */ (columns.share),
    count: /** @type {Uint32Array} */ (columns.count), event: /** @type {Uint32Array} */ (columns.event),
    name: /** @type {Uint32Array} */ (columns.name), colour: /** @type {Uint8Array} */ (columns.colour),
    wide: /** @type {Uint8Array} */ (columns.wide),
  };
}

/**
 * The items of a row that are on the screen: from, up to. Items of a row do not overlap, so at most
 * one that starts before the screen reaches into it.
 * @param {Scene} scene
 * @param {number} slot
 * @param {import("./camera.js").Camera} camera
 * @returns {[number, number]}
 */
export function itemsInView(scene, slot, camera) {
  const first = scene.offset[slot];
  const end = scene.offset[slot + 1];
  const low = firstAfter(scene.startNs, camera.start - scene.start, first, end);
  return [Math.max(first, low - 1), firstAfter(scene.startNs, camera.end - scene.start, low, end)];
}

/** The first place whose value is greater. @param {Float32Array} sorted @param {number} value @param {number} low @param {number} high */
function firstAfter(sorted, value, low, high) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * The rows of a scene that are on the screen, with their tops.
 * @param {Scene} scene
 * @param {import("./layout.js").Layout} layout
 * @returns {{slot: number, top: number, place: import("./layout.js").Place}[]}
 */
export function rowsInView(scene, layout) {
  const found = [];
  for (const place of layout.visible()) {
    const lane = place.lane;
    if (!lane || lane.rows_of !== scene.of) continue;
    const screenY = layout.screenY(place);
    for (let row = 0; row < place.rows; row++) {
      const slot = scene.slot.get(lane.first_row + row);
      const top = screenY + row * place.rowHeight;
      const isHidden = top + place.rowHeight < 0 || top > layout.viewHeight || (!place.pinned && top < layout.pinnedHeight);
      if (slot !== undefined && !isHidden) found.push({ slot, top, place });
    }
  }
  return found;
}

export class Scenes {
  /**
   * @param {string} trace id of the trace
   * @param {() => void} arrived called when a scene has come
   */
  constructor(trace, arrived) {
    this._trace = trace;
    this._arrived = arrived;
    /** @type {Map<string, Scene>} */
    this._kept = new Map();
    /** @type {Map<string, Scene>} */
    this.shown = new Map();
    /** @type {Map<string, {key: string, control: AbortController}>} */
    this._pending = new Map();
    this.error = "";
  }

  /** Whether everything that was asked for is on the screen. */
  get isSettled() {
    return this._pending.size === 0;
  }

  /** Asks for everything again; slices of events stay on the screen until then, which are in the same rows. */
  forget() {
    for (const { control } of this._pending.values()) control.abort();
    this._pending.clear();
    this._kept.clear();
    for (const [of, scene] of this.shown) {
      if (of === "events") this.shown.set(of, { ...scene, level: -1 });
      else this.shown.delete(of);
    }
  }

  /**
   * Makes sure that some rows can be drawn.
   * @param {string} of
   * @param {number[]} rows sorted; those on the screen
   * @param {number[]} nearby sorted; those worth having with them
   * @param {import("./camera.js").Camera} camera
   */
  want(of, rows, nearby, camera) {
    if (!rows.length) return;
    const level = levelFor(camera.nsPerPixel, camera.width);
    const shown = this.shown.get(of);
    const margin = camera.span * 0.1;
    /** @param {Scene | undefined} scene */
    const serves = (scene) =>
      scene && scene.level === level && scene.start <= camera.start - margin && scene.end >= camera.end + margin &&
      rows.every((row) => scene.slot.has(row));
    if (serves(shown)) return;
    // Starts on a grid, so that the same place is the same request.
    const grid = 2 ** Math.ceil(Math.log2(camera.span / 2));
    const start = Math.floor((camera.start - camera.span) / grid) * grid;
    const buckets = Math.min(Math.ceil((3 * camera.span + grid) / 2 ** level), 16000);
    const key = `${of}/${level}/${start}/${asRanges(nearby)}`;
    const kept = this._kept.get(key);
    if (kept && serves(kept)) {
      this._show(key, kept);
      return;
    }
    const pending = this._pending.get(of);
    if (pending?.key === key) return;
    pending?.control.abort();
    const control = new AbortController();
    this._pending.set(of, { key, control });
    this._fetch(of, key, { of, rows: asRanges(nearby), start, level, buckets }, control);
  }

  /**
   * @param {string} of
   * @param {string} key
   * @param {import("../api.js").Params} params
   * @param {AbortController} control
   */
  async _fetch(of, key, params, control) {
    try {
      const found = await getColumns(`/api/traces/${this._trace}/slices`, params, control.signal);
      this.error = "";
      this._show(key, toScene(of, found));
    } catch (error) {
      if (isAbort(error)) return;
      this.error = error instanceof Error ? error.message : String(error);
      this._arrived();
    } finally {
      if (this._pending.get(of)?.key === key) this._pending.delete(of);
    }
  }

  /** @param {string} key @param {Scene} scene */
  _show(key, scene) {
    this._kept.delete(key);
    this._kept.set(key, scene);
    for (const oldest of this._kept.keys()) {
      if (this._kept.size <= MOST_KEPT) break;
      this._kept.delete(oldest);
    }
    this.shown.set(scene.of, scene);
    this._arrived();
  }

  /**
   * The item of a row at a moment, or the nearest within a tolerance.
   * @param {string} of
   * @param {number} row
   * @param {number} ns
   * @param {number} tolerance
   * @returns {{scene: Scene, at: number} | null}
   */
  itemAt(of, row, ns, tolerance) {
    const scene = this.shown.get(of);
    const slot = scene?.slot.get(row);
    if (!scene || slot === undefined) return null;
    const wanted = ns - scene.start;
    const first = scene.offset[slot];
    const end = scene.offset[slot + 1];
    const low = firstAfter(scene.startNs, wanted, first, end);
    let best = -1;
    let nearest = tolerance;
    for (let at = Math.max(first, low - 2); at < Math.min(end, low + 2); at++) {
      const distance = Math.max(scene.startNs[at] - wanted, wanted - scene.startNs[at] - scene.width[at], 0);
      if (distance <= nearest) {
        nearest = distance;
        best = at;
      }
    }
    return best < 0 ? null : { scene, at: best };
  }
}
