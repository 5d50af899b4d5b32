// @ts-check
/** Search over the whole trace: how often each name occurs, the hits in order of time, and the way from one to the next. */

import { getJson } from "../api.js";
import { h, replace } from "../dom.js";
import { count, duration, plural } from "../units.js";
import { dot, list } from "./details.js";

const MOST_NAMES = 12;

export class SearchPanel {
  /**
   * @param {HTMLElement} element
   * @param {string} trace
   * @param {(event: number) => void} jump goes to a hit
   * @param {(text: string) => void} narrow searches for one of the names
   */
  constructor(element, trace, jump, narrow) {
    this.element = element;
    this._trace = trace;
    this._jump = jump;
    this._narrow = narrow;
    this._text = "";
    /** What was found last: the hits that are listed, and how many there are before them. @type {any} */
    this._found = null;
    /** Where the lists began, to the one that is shown: a moment, and hits of it that an earlier list has. @type {[number, number][]} */
    this._starts = [];
    this._clear();
  }

  /** Forgets what was found. */
  _clear() {
    this._text = "";
    this._found = null;
    this._starts = [];
    replace(this.element, h("p", { class: "note" }, "Type in the search box above; / goes there, and Enter from hit to hit."));
  }

  /**
   * Looks for a text, and lists the hits from a moment on.
   * @param {string} text
   * @param {number} [after]
   * @param {number} [skip] how many hits of that very moment are left out
   * @returns {Promise<any>} what was found; null where nothing is looked for, or something else meanwhile
   */
  async show(text, after = 0, skip = 0) {
    if (!text) {
      this._clear();
      return null;
    }
    this._text = text;
    const found = await getJson(`/api/traces/${this._trace}/search`, { text, after: Math.max(0, Math.floor(after)), skip });
    if (this._text !== text) return null;
    this._found = found;
    this._starts = [...this._starts.filter(([moment, of]) => moment < after || (moment === after && of < skip)), [after, skip]];
    this._draw();
    return found;
  }

  /** Which hit an event is, the first being 1; null: it is none that is listed. @param {string} event */
  numberOf(event) {
    const at = this._found ? this._found.hits.findIndex((/** @type {any} */ one) => String(one.event) === event) : -1;
    return at < 0 ? null : this._found.before + at + 1;
  }

  /**
   * Goes to the hit after or before an event, from the last one to the first; from an event that is no hit to the
   * first one in view.
   * @param {string} event
   * @param {number} direction 1 or -1
   * @param {number} viewStart the first moment in view
   */
  async next(event, direction, viewStart) {
    if (!this._found?.total) return;
    const at = this._found.hits.findIndex((/** @type {any} */ one) => String(one.event) === event);
    if (at < 0) {
      let inView = await this.show(this._text, viewStart);
      if (inView && !inView.hits.length) inView = await this.show(this._text);
      if (inView?.hits.length) this._jump(inView.hits[0].event);
      return;
    }
    const { hits } = this._found;
    const next = at + direction;
    if (hits[next]) {
      this._jump(hits[next].event);
      return;
    }
    const found = direction > 0 ? await this._later() : await this._earlier();
    if (found?.hits.length) this._jump(found.hits.at(direction > 0 ? 0 : -1).event);
  }

  /** The list after the one that is shown; after the last one the first. */
  _later() {
    return this.show(this._text, ...(this._found.next ?? [0]));
  }

  /** The list before the one that is shown; before the first one nothing, but itself where it has all hits. */
  async _earlier() {
    const { hits, total } = this._found;
    const before = this._starts.at(-2);
    if (before !== undefined) return this.show(this._text, ...before);
    return hits.length === total ? this._found : null;
  }

  _draw() {
    const found = this._found;
    if (!found.total) {
      replace(this.element, h("h2", {}, `Nothing is called “${this._text}”`), h("p", { class: "note" }, "Names of kernels, operators, functions, calls and annotations are searched, whatever their case."));
      return;
    }
    const rest = found.total - found.before - found.hits.length;
    const names = found.by_name.slice(0, MOST_NAMES);
    const unlisted = found.names - names.length;
    replace(
      this.element,
      h("h2", {}, `${plural(found.total, "hit")} for “${this._text}”`),
      h("section", {}, h("h3", {}, plural(found.names, "name")),
        h("ul", { class: "events" }, ...names.map((/** @type {any} */ one) => this._name(one))),
        unlisted > 0 ? h("p", { class: "note" }, `and ${plural(unlisted, "less frequent name")}`) : null),
      h("section", {}, h("h3", {}, "In order of time"),
        found.before ? h("button", { type: "button", class: "quiet", onclick: () => this.show(this._text) }, `${count(found.before)} earlier: from the start`) : null,
        list(found.hits, this._jump),
        rest > 0 && found.next ? h("button", { type: "button", class: "quiet", onclick: () => this._later() }, `${count(rest)} later`) : null),
    );
  }

  /** @param {any} one */
  _name(one) {
    return h("li", {}, h(
      "button", { type: "button", title: `Search for ${one.name}`, onclick: () => this._narrow(one.name) },
      dot(one.colour), h("span", { class: "name" }, one.name),
      h("span", { class: "side-of" }, one.is_gpu ? "GPU" : "CPU"),
      h("span", { class: "number" }, `${count(one.count)}×`), h("span", { class: "number" }, duration(one.total_ns)),
    ));
  }
}
