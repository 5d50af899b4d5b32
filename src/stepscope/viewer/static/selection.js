// @ts-check
/**
 * What is selected, in the address after "#": a link reproduces the view.
 *
 * Keys: view, trace (its place in the list), from and to (what the timeline shows, in ns from the
 * trace's first moment), range ("start-end"), event, steps ("3,4-6"), pin and fold (keys of lanes),
 * lanes (a filter), search, question, query (SQL), by and function (flame graph: whose callers and callees), with (the trace to compare with), a_step, b_step; of the memory view device, axis
 * ("events"), m_from and m_to (what it shows), at (a moment in words, as "event 12"), allocation, colour ("category" or "line");
 * of the ranks view measure and cell ("rank-step"); step (goes to that step of the trace), path ("on": the critical path
 * over the timeline).
 */

/** @typedef {(changed: Set<string>) => void} Listener */

/** Values that people do not go back through. */
const QUIET = new Set(["from", "to", "m_from", "m_to", "cell", "search", "lanes", "fold", "pin"]);

export class Selection {
  constructor() {
    /** @type {Map<string, string>} */
    this._values = new Map(new URLSearchParams(location.hash.slice(1)));
    /** @type {Set<Listener>} */
    this._listeners = new Set();
    this._writing = 0;
    window.addEventListener("popstate", () => this._read());
    window.addEventListener("hashchange", () => this._read());
  }

  /** @param {string} key @param {string} [fallback] */
  get(key, fallback = "") {
    return this._values.get(key) ?? fallback;
  }

  /** @param {string} key @returns {number | null} */
  number(key) {
    const text = this._values.get(key);
    const value = text === undefined || text === "" ? NaN : Number(text);
    return Number.isFinite(value) ? value : null;
  }

  /** The selected range of time. @returns {[number, number] | null} */
  range() {
    const found = /^(-?\d+)-(-?\d+)$/.exec(this.get("range"));
    return found && Number(found[2]) > Number(found[1]) ? [Number(found[1]), Number(found[2])] : null;
  }

  /** A set of words, such as the pinned lanes. @param {string} key @returns {Set<string>} */
  words(key) {
    const text = this.get(key);
    return new Set(text ? text.split("|") : []);
  }

  /**
   * Changes some values; null takes one away.
   * @param {Record<string, string | number | null>} changes
   */
  set(changes) {
    const changed = new Set();
    let isLoud = false;
    for (const [key, value] of Object.entries(changes)) {
      const text = value === null || value === "" ? undefined : String(value);
      if (this._values.get(key) === text) continue;
      if (text === undefined) this._values.delete(key);
      else this._values.set(key, text);
      changed.add(key);
      isLoud ||= !QUIET.has(key);
    }
    if (!changed.size) return;
    this._write(isLoud);
    for (const listener of [...this._listeners]) listener(changed);
  }

  /** @param {string} key @param {Set<string>} words */
  setWords(key, words) {
    this.set({ [key]: words.size ? [...words].join("|") : null });
  }

  /** Calls back after each change. @param {Listener} listener @returns {() => void} ends it */
  onChange(listener) {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  /** @param {boolean} isLoud */
  _write(isLoud) {
    const text = `#${new URLSearchParams([...this._values]).toString()}`;
    if (isLoud) {
      clearTimeout(this._writing);
      history.pushState(null, "", text);
      return;
    }
    // Browsers refuse more than a few hundred changes in half a minute.
    clearTimeout(this._writing);
    this._writing = window.setTimeout(() => {
      history.replaceState(null, "", `#${new URLSearchParams([...this._values]).toString()}`);
    }, 200);
  }

  _read() {
    const fresh = new Map(new URLSearchParams(location.hash.slice(1)));
    const changed = new Set();
    for (const key of new Set([...fresh.keys(), ...this._values.keys()])) {
      if (fresh.get(key) !== this._values.get(key)) changed.add(key);
    }
    this._values = fresh;
    if (changed.size) for (const listener of [...this._listeners]) listener(changed);
  }
}
