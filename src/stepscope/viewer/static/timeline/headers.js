// @ts-check
/** The column left of the timeline: titles of lanes, with buttons to fold and to pin them. */

import { h, oneTabStop, replace } from "../dom.js";
import { inUnit, plural } from "../units.js";

/** Height of a lane's title. */
const TITLE = 18;

export class Headers {
  /**
   * @param {HTMLElement} element
   * @param {import("./layout.js").Layout} layout
   * @param {() => void} changed called when a lane was folded or pinned
   */
  constructor(element, layout, changed) {
    this._element = element;
    oneTabStop(element);
    this._layout = layout;
    this._changed = changed;
    this._drawn = "";
    /** @type {number[]} */
    this._tops = [];
  }

  /** Redraws titles that have changed, and moves all to their places. */
  draw() {
    const stuck = this._layout.sticky();
    const places = this._layout.visible(100).filter((place) => place !== stuck?.place);
    if (stuck) places.push(stuck.place);
    const key = places.map((place) => `${place.key}${place.folded}${place.pinned}${place.height}`).join();
    if (key !== this._drawn) {
      this._drawn = key;
      const focused = this._element.contains(document.activeElement) ? document.activeElement : null;
      replace(this._element, ...places.map((place) => this._header(place)));
      const buttons = [...this._element.querySelectorAll("button")];
      buttons.forEach((one, at) => { one.tabIndex = at ? -1 : 0; });
      if (focused) buttons.find((one) => one.className === focused.className && keyOf(one) === keyOf(focused))?.focus();
      this._tops = [];
    }
    const elements = this._element.children;
    // The title of a lane stays in sight below that of its group.
    const edge = stuck ? stuck.y + stuck.place.height : this._layout.pinnedHeight;
    const tops = places.map((place) => (place === stuck?.place ? stuck.y : this._layout.screenY(place)));
    tops.forEach((top, at) => {
      const [place, element] = [places[at], /** @type {HTMLElement} */ (elements[at])];
      element.classList.toggle("is-stuck", place === stuck?.place);
      if (this._tops[at] === top) return;
      element.style.transform = `translateY(${top}px)`;
      const within = place.type === "group" || place.pinned ? 0 : Math.min(edge - top, place.height - TITLE);
      element.style.paddingTop = within > 1 ? `${within}px` : "";
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
    if (place.lane?.outer_rows) element.append(this._outer(place.lane));
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

  /** @param {import("./layout.js").Lane} lane */
  _outer({ key, outer_rows: number }) {
    const toggle = () => {
      this._layout.toggleOuter(key);
      this._changed();
    };
    const isShown = this._layout.opened.has(`outer:${key}`);
    const label = `${isShown ? "Hide" : "Show"} the ${number} Python frames around everything`;
    return h("button", { class: "outer", type: "button", "aria-expanded": String(isShown), "aria-label": label, title: label, onclick: toggle }, `${isShown ? "−" : "+"}${number}`);
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

/** The lane of a button. @param {Element} button */
function keyOf(button) {
  return button.parentElement?.dataset.key;
}
