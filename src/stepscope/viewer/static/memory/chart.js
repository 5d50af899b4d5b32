// @ts-check
/** Memory over time as stacked allocations, to pan, zoom, point at and click. */

import { isAbort } from "../api.js";
import { h, oncePerFrame, replace } from "../dom.js";
import { Camera } from "../timeline/camera.js";
import { listen } from "../timeline/input.js";
import { count, duration, size } from "../units.js";
import { fetchStack } from "./columns.js";
import { lineCategory, memoryPaint, memoryWord } from "../memory-colours.js";
import { bytesAt, paint } from "./paint.js";

const WAIT_MS = 60;

/**
 * @typedef {{trace: string, about: any, axis: import("./columns.js").Axis,
 *   picked: (event: number, allocation: number | null) => void, moved: (start: number, end: number) => void,
 *   toPeak: () => void, clear: () => void, failed: (error: unknown) => void}} Given
 */

export class MemoryChart {
  /** @param {Given} given */
  constructor(given) {
    this._given = given;
    const { about, axis } = given;
    this.camera = new Camera(axis === "time" ? about.last_ns : Math.max(about.events, 1));
    /** @type {import("./columns.js").Stack | null} */
    this.stack = null;
    /** @type {{column: number, category: number, item: import("./columns.js").Item | null} | null} */
    this._under = null;
    /** @type {number | null} */
    this.moment = null;
    /** @type {number | null} */
    this.picked = null;
    /** Whether what is on the screen has arrived. */
    this.isSettled = false;
    /** The direction of a step that was asked for before what it needs has arrived, or 0. */
    this._owed = 0;
    this._canvas = h("canvas", { class: "layer" });
    this._tip = h("div", { class: "tip", role: "status" });
    this.pane = h("div", { class: "surface memory-surface", tabindex: "0", role: "application", "aria-label": "Memory over time: full stop and comma go from moment to moment, M to the peak, Escape lets it go" }, this._canvas);
    this.element = h("div", { class: "memory-chart" }, this.pane, this._tip);
    this.redraw = oncePerFrame(() => this._draw());
    /** @type {AbortController | null} */
    this._pending = null;
    this._waiting = 0;
    this._resize = new ResizeObserver(() => this._fit());
    this._resize.observe(this.pane);
    this._themed = () => this.redraw();
    window.addEventListener("theme-changed", this._themed);
    this._unlisten = listen(this.pane, this._handlers());
  }

  /** @returns {import("../timeline/input.js").Handlers} */
  _handlers() {
    // The picture scrolls nowhere but in time.
    const layout = /** @type {any} */ ({ scroll: 0, scrollTo: () => {} });
    return {
      camera: this.camera, layout,
      moved: () => this._moved(),
      hover: (x, y) => this._hover(x, y),
      leave: () => this._leave(),
      click: (x, y) => this._click(x, y),
      doubleClick: (x) => { this.camera.zoom(0.25, x); this._moved(); },
      select: (from, to, isDone) => { if (isDone) this.show(Math.min(from, to), Math.max(from, to)); },
      escape: () => this._given.clear(),
      focus: () => this._focus(),
      next: (direction) => this._next(direction),
      mark: () => this._given.toPeak(),
    };
  }

  close() {
    this._unlisten();
    this._resize.disconnect();
    this._pending?.abort();
    clearTimeout(this._waiting);
    window.removeEventListener("theme-changed", this._themed);
  }

  /** Shows part of the axis. @param {number} start @param {number} end */
  show(start, end) {
    this.camera.show(start, end);
    this._moved();
  }

  _fit() {
    const width = this.pane.clientWidth;
    if (!width || !this.pane.clientHeight) return;
    const ratio = devicePixelRatio || 1;
    this.camera.width = width;
    this._canvas.width = Math.round(width * ratio);
    this._canvas.height = Math.round(this.pane.clientHeight * ratio);
    this._load();
    this.redraw();
  }

  _moved() {
    this._given.moved(this.camera.start, this.camera.end);
    this.redraw();
    this.isSettled = false;
    clearTimeout(this._waiting);
    this._waiting = window.setTimeout(() => this._load(), WAIT_MS);
  }

  async _load() {
    this._pending?.abort();
    this._pending = new AbortController();
    this.isSettled = false;
    try {
      this.stack = await fetchStack(this._given.trace, this._given.about.device, this._given.axis, this.camera, this._pending.signal);
      this._under = null;
      this.isSettled = true;
      this.redraw();
      const owed = this._owed;
      this._owed = 0;
      if (owed) this._next(owed);
    } catch (error) {
      if (!isAbort(error)) this._given.failed(error);
    }
  }

  /** @returns {import("./paint.js").Scene} */
  scene() {
    const { about, axis } = this._given;
    const isTime = axis === "time";
    return {
      camera: this.camera, axis, height: this.pane.clientHeight, categories: about.categories,
      colourOf: (item) => this._categoryOf(item),
      most: Math.max(about.peak.reserved_bytes, about.peak.allocated_bytes, 1) * 1.04,
      steps: about.steps.map((/** @type {any} */ one) => ({ step: one.step, at: isTime ? one.start_ns : one.row })),
      failed: about.failed.map((/** @type {any} */ one) => (isTime ? one.time_ns : one.row)),
      moment: this.moment, picked: this.picked, under: this._under,
    };
  }

  /** The category whose colour an allocation has. @param {import("./columns.js").Item} item */
  _categoryOf(item) {
    const { about } = this._given;
    return about.by === "line" ? lineCategory(about.lines.indexOf(item.text), about.lines.length) : about.categories[item.category];
  }

  _draw() {
    const context = /** @type {CanvasRenderingContext2D} */ (this._canvas.getContext("2d"));
    const ratio = this._canvas.width / (this.pane.clientWidth || 1);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(context, this.scene(), this.stack);
  }

  /** What lies at a place of the picture. @param {number} x @param {number} y */
  _find(x, y) {
    if (!this.stack) return null;
    const column = Math.floor((this.camera.ns(x) - this.stack.start) / this.stack.step);
    if (column < 0 || column >= this.stack.count) return null;
    const found = this.stack.at(column, bytesAt(this.scene(), y));
    return { column, category: found?.category ?? -1, item: found?.item ?? null };
  }

  /** @param {number} x @param {number} y */
  _hover(x, y) {
    const before = this._under?.item;
    this._under = this._find(x, y);
    this._showTip(x, y);
    if (before !== this._under?.item) this.redraw();
  }

  _leave() {
    this._under = null;
    this._tip.classList.remove("is-shown");
    this.redraw();
  }

  /** @param {number} x @param {number} y */
  _showTip(x, y) {
    const [found, stack] = [this._under, this.stack];
    this._tip.classList.toggle("is-shown", found !== null);
    if (!found || !stack) return;
    const { about, axis } = this._given;
    const at = stack.start + found.column * stack.step;
    const when = axis === "time" ? duration(at) : `event ${count(at)}`;
    const category = about.categories[found.category];
    const dot = h("span", { class: "dot" });
    if (category) dot.style.background = memoryPaint(found.item ? this._categoryOf(found.item) : category);
    const rest = category ? stack.base[found.category + 1][found.column] - stack.rest[found.category][found.column] : 0;
    replace(
      this._tip,
      category ? h("div", { class: "tip-name" }, dot, found.item ? found.item.text : `smaller ${memoryWord(category)} allocations`) : null,
      category ? h("div", { class: "tip-more" }, `${size(found.item ? found.item.size : rest)} · ${memoryWord(category)}`) : null,
      h("div", { class: "tip-more" }, `${when}: ${size(stack.allocated[found.column])} allocated, ${size(stack.reserved[found.column])} reserved`),
    );
    const room = this.element;
    this._tip.style.left = `${Math.max(4, Math.min(x + 14, room.clientWidth - this._tip.offsetWidth - 8))}px`;
    this._tip.style.top = `${y + 16 + this._tip.offsetHeight > room.clientHeight ? y - this._tip.offsetHeight - 10 : y + 16}px`;
  }

  /** @param {number} x @param {number} y */
  _click(x, y) {
    const found = this._find(x, y);
    if (!found || !this.stack) return;
    this.pane.focus();
    this._given.picked(this.stack.event[found.column], found.item?.number ?? null);
  }

  /** Zooms to the life of the chosen allocation, as far as it is drawn. */
  _focus() {
    const item = this.stack?.items.find((one) => one.number === this.picked);
    if (!item || !this.stack) return;
    this.camera.frame(this.stack.start + item.first * this.stack.step, this.stack.start + item.last * this.stack.step);
    this._moved();
  }

  /** To the next column in which something else is held, which need not be in view. @param {number} direction */
  _next(direction) {
    const { stack, moment, camera } = this;
    if (moment === null) return;
    if (moment < camera.start || moment > camera.end) this._centre(moment);
    if (!this.isSettled || !stack) {
      this._owed = direction;
      return;
    }
    const clamped = Math.min(Math.max(Math.floor((moment - stack.start) / stack.step), 0), stack.count - 1);
    const before = stack.event[clamped];
    let column = clamped;
    while (column >= 0 && column < stack.count && stack.event[column] === before) column += direction;
    if (column >= 0 && column < stack.count) this._given.picked(stack.event[column], null);
    else if (this._centre(moment + (direction * camera.span) / 2.5)) this._owed = direction;
  }

  /** Moves the camera; returns whether it could. @param {number} at */
  _centre(at) {
    const { start, span } = this.camera;
    this.camera.show(at - span / 2, at + span / 2);
    const isMoved = Math.abs(this.camera.start - start) > span / 1000;
    if (isMoved) this._moved();
    return isMoved;
  }
}
