// @ts-check
/** Names by number, asked of the server in bunches when they are first needed. */

import { getJson, isAbort } from "./api.js";

const MOST_AT_ONCE = 400;

export class Names {
  /**
   * @param {string} trace id of the trace
   * @param {() => void} arrived called when names have come
   */
  constructor(trace, arrived) {
    this._trace = trace;
    this._arrived = arrived;
    /** @type {Map<number, string>} */
    this._known = new Map();
    /** @type {Set<number>} */
    this._wanted = new Set();
    this._asking = false;
  }

  /** The name of a number; undefined while it is on its way. @param {number} number */
  get(number) {
    const found = this._known.get(number);
    if (found === undefined) this._wanted.add(number);
    return found;
  }

  /** Asks for every name again. */
  forget() {
    this._known = new Map();
  }

  /** Asks for what was missed. */
  async fetch() {
    if (this._asking || !this._wanted.size) return;
    this._asking = true;
    const known = this._known;
    const numbers = [...this._wanted].slice(0, MOST_AT_ONCE);
    try {
      const { names } = await getJson(`/api/traces/${this._trace}/names`, { ids: numbers.join(",") });
      for (const number of numbers) {
        known.set(number, names[number] ?? "");
        this._wanted.delete(number);
      }
      this._arrived();
    } catch (error) {
      if (!isAbort(error)) this._wanted.clear();
    } finally {
      this._asking = false;
    }
  }
}
