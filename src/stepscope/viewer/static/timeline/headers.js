// @ts-check
/** The column left of the timeline: titles of lanes, with buttons to fold and to pin them. */

import { h, replace } from "../dom.js";
import { inUnit, plural } from "../units.js";

export class Headers {
  /**
   * @param {HTMLElement} element
   * @param {import("./layout.js").Layout} layout
   * @param {() => void} changed called when a lane was folded or pinned
   */
  constructor(element, layout, changed) {
    this._element = element;
    this._layout = layout;
    this._changed = changed;
    this._drawn = "";
    /** @type {number[]} */
    this._tops = [];
  }

  /** Redraws titles that have changed, and moves all to their places. */
  draw() {
    const places = this._layout.visible(100);
    const key = places.map((place) => `${place.key}${place.folded}${place.pinned}${place.height}`).join();
    if (key !== this._drawn) {
      this._drawn = key;
      replace(this._element, ...places.map((place) => this._header(place)));
      this._tops = [];
    }
    const elements = this._element.children;
    const tops = places.map((place) => this._layout.screenY(place));
    tops.forEach((top, at) => {
      if (this._tops[at] !== top) /** @type {HTMLElement} */ (elements[at]).style.transform = `translateY(${top}px)`;
    });
    this._tops = tops;
  }

  /** @param {import("./layout.js").Place} place */
  _header(place) {
    const element = h("div", { class: `lane-header is-${place.type}${place.pinned ? " is-pinned" : ""}`, "data-key": place.key });
    element.style.height = `${place.height + (place.type === "group" ? 0 : 6)}px`;
    if (place.type === "group" || place.children > 1) element.append(this._fold(place));
    const about = place.lane ? `${place.title} · ${plural(place.lane.slices, "slice")}` : place.title;
    const most = place.counter ? h("span", { class: "lane-note" }, `at most ${inUnit(place.counter.highest, place.counter.unit)}`) : null;
    element.append(h("span", { class: "lane-title", title: about }, place.title, most));
    if (place.type !== "group") element.append(this._pin(place));
    return element;
  }

  /** @param {import("./layout.js").Place} place */
  _fold(place) {
    const toggle = () => {
      this._layout.toggleFold(place.key);
      this._changed();
    };
    const label = place.folded ? `Unfold ${place.title}` : `Fold ${place.title}`;
    return h("button", { class: "fold", type: "button", "aria-expanded": String(!place.folded), "aria-label": label, onclick: toggle }, place.folded ? "▸" : "▾");
  }

  /** @param {import("./layout.js").Place} place */
  _pin(place) {
    const toggle = () => {
      this._layout.togglePin(place.key);
      this._changed();
    };
    const label = place.pinned ? `Unpin ${place.title}` : `Pin ${place.title} above the others`;
    return h("button", { class: "pin", type: "button", "aria-pressed": String(place.pinned), "aria-label": label, title: label, onclick: toggle }, place.pinned ? "★" : "☆");
  }
}
