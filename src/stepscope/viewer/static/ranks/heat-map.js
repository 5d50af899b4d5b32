// @ts-check
/** Ranks by steps as a canvas, so that thousands of ranks scroll as easily as four. */

import { channels, token } from "../theme.js";
import { h, oncePerFrame, replace } from "../dom.js";
import { duration } from "../units.js";

const TITLE = 170;
const AXIS = 20;
const TALLEST = 26;
const LOWEST = 4;
const WIDEST = 110;
const NARROWEST = 6;
const MOST_HEIGHT = 560;
/** Colours beyond these shares of all values do not differ, so that one slow step does not flatten the rest. */
const CUT = 0.02;
/** The colours span at least this share of the median: where ranks are alike, a little noise must not look like much. */
const LEAST_SPAN = 0.1;
/** Height of a title. */
const LINE = 12;
const COLOURS = /** @type {Record<string, string>} */ ({
  input_ns: "colour-idle-input", compute_ns: "colour-compute", exposed_comm_ns: "colour-communication", copies_ns: "colour-copy",
  other_ns: "colour-idle-python", wait_ns: "colour-idle-waiting-for-communication",
});

export class HeatMap {
  /**
   * @param {any} about what the server says of the ranks
   * @param {(rank: any, step: number) => void} open
   * @param {(cell: string | null) => void} moved
   */
  constructor(about, open, moved) {
    this._about = about;
    this._open = open;
    this._moved = moved;
    this._measure = "";
    /** @type {Float64Array} */
    this._values = new Float64Array(0);
    this._low = 0;
    this._high = 1;
    this._isCut = false;
    this._row = 0;
    this._column = -1;
    this._canvas = h("canvas", { class: "heat-canvas" });
    this._space = h("div", { class: "heat-space" }, this._canvas);
    this._scroller = h("div", { class: "heat-scroller", tabindex: "0", role: "grid", "aria-label": "Ranks by steps; arrow keys move, Enter opens the timeline" }, this._space);
    this._scale = h("div", { class: "heat-scale note" });
    this._tip = h("div", { class: "heat-tip", role: "status", "aria-live": "polite" }, "\u00a0");
    this.element = h("div", { class: "heat" }, this._scroller, h("div", { class: "heat-foot" }, this._tip, this._scale));
    this._redraw = oncePerFrame(() => this._draw());
    this._watch = new ResizeObserver(this._redraw);
    this._watch.observe(this._scroller);
    this._themed = () => { this._showScale(); this._redraw(); };
    window.addEventListener("theme-changed", this._themed);
    this._scroller.addEventListener("scroll", this._redraw);
    this._scroller.addEventListener("pointermove", (event) => this._say(this._at(event)));
    this._scroller.addEventListener("pointerleave", () => this._say(this._chosen()));
    this._scroller.addEventListener("click", (event) => this._go(this._at(event)));
    this._scroller.addEventListener("keydown", (event) => this._key(event));
  }

  close() {
    this._watch.disconnect();
    window.removeEventListener("theme-changed", this._themed);
  }

  /** @param {string} measure @param {Float64Array} values by rank, then by step; NaN: no such step */
  show(measure, values) {
    this._measure = measure;
    this._values = values;
    const known = values.filter((one) => !Number.isNaN(one)).sort();
    this._low = known[Math.floor((known.length - 1) * CUT)] ?? 0;
    this._high = known[Math.ceil((known.length - 1) * (1 - CUT))] ?? 1;
    const median = known[Math.floor(known.length / 2)] ?? 0;
    this._high = Math.max(this._high, this._low + LEAST_SPAN * Math.abs(median));
    this._isCut = this._high < (known.at(-1) ?? 0);
    this._showScale();
    this._say(this._chosen());
    this._redraw();
  }

  /** Marks a cell that the address names, as "rank-step". @param {string} cell */
  choose(cell) {
    const [rank, step] = cell ? cell.split("-").map(Number) : [-1, -1];
    const row = this._about.ranks.findIndex((/** @type {any} */ one) => one.rank === rank);
    this._row = Math.max(0, row);
    this._column = row < 0 ? -1 : this._about.steps.indexOf(step);
    this._redraw();
  }

  get _size() {
    const { ranks, steps } = this._about;
    const room = Math.max(1, this._scroller.clientWidth - TITLE);
    return {
      tall: Math.min(TALLEST, Math.max(LOWEST, Math.floor((MOST_HEIGHT - AXIS) / ranks.length))),
      wide: Math.min(WIDEST, Math.max(NARROWEST, room / steps.length)),
    };
  }

  _chosen() {
    return this._column < 0 ? null : { row: this._row, column: this._column };
  }

  /** @param {MouseEvent} event @returns {{row: number, column: number} | null} */
  _at(event) {
    const box = this._scroller.getBoundingClientRect();
    const { tall, wide } = this._size;
    const row = Math.floor((event.clientY - box.top - AXIS + this._scroller.scrollTop) / tall);
    const column = Math.floor((event.clientX - box.left - TITLE + this._scroller.scrollLeft) / wide);
    const isInside = row >= 0 && row < this._about.ranks.length && event.clientX - box.left > TITLE && column < this._about.steps.length;
    return isInside && event.clientY - box.top > AXIS ? { row, column } : null;
  }

  /** @param {{row: number, column: number} | null} cell */
  _say(cell) {
    if (!cell) {
      replace(this._tip, "Point at a cell; a click opens the rank's timeline at that step.");
      return;
    }
    const value = this._values[cell.row * this._about.steps.length + cell.column];
    const rank = this._about.ranks[cell.row];
    replace(this._tip, `rank ${rank.rank}, step ${this._about.steps[cell.column]}: ${Number.isNaN(value) ? "not recorded" : duration(value)}${rank.cause ? ` · ${rank.cause} here makes others wait` : ""}`);
  }

  /** @param {{row: number, column: number} | null} cell */
  _go(cell) {
    if (cell) this._open(this._about.ranks[cell.row], this._about.steps[cell.column]);
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    const moves = /** @type {Record<string, [number, number]>} */ ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] });
    const move = moves[event.key];
    if (event.key === "Enter") this._go(this._chosen());
    if (!move) return;
    event.preventDefault();
    const { ranks, steps } = this._about;
    this._row = Math.min(Math.max(this._row + (this._column < 0 ? 0 : move[0]), 0), ranks.length - 1);
    this._column = Math.min(Math.max(this._column + move[1], 0), steps.length - 1);
    const { tall, wide } = this._size;
    const [x, y] = [this._column * wide, this._row * tall];
    const seen = this._scroller;
    if (y < seen.scrollTop) seen.scrollTop = y;
    else if (y + tall + AXIS > seen.scrollTop + seen.clientHeight) seen.scrollTop = y + tall + AXIS - seen.clientHeight;
    if (x < seen.scrollLeft) seen.scrollLeft = x;
    else if (x + wide + TITLE > seen.scrollLeft + seen.clientWidth) seen.scrollLeft = x + wide + TITLE - seen.clientWidth;
    this._moved(`${ranks[this._row].rank}-${steps[this._column]}`);
    this._say(this._chosen());
    this._redraw();
  }

  /** The colour of a value. @param {number} value @param {number[]} from @param {number[]} to */
  _paint(value, from, to) {
    const part = Math.min(1, Math.max(0, (value - this._low) / (this._high - this._low || 1)));
    return `rgb(${from.map((one, at) => Math.round((one + (to[at] - one) * part) * 255)).join(",")})`;
  }

  get _ends() {
    return [channels(token("line")), channels(token(COLOURS[this._measure] ?? "accent"))];
  }

  _showScale() {
    const [from, to] = this._ends;
    const strip = h("span", { class: "heat-strip" });
    strip.style.background = `linear-gradient(to right, ${this._paint(this._low, from, to)}, ${this._paint(this._high, from, to)})`;
    replace(this._scale, duration(this._low), strip, `${duration(this._high)}${this._isCut ? " and more" : ""}`);
  }

  _draw() {
    const { ranks, steps } = this._about;
    const { tall, wide } = this._size;
    const seen = this._scroller;
    seen.style.height = `${Math.min(MOST_HEIGHT, ranks.length * tall + AXIS + 2)}px`;
    const [width, height] = [seen.clientWidth, seen.clientHeight];
    this._space.style.width = `${TITLE + steps.length * wide}px`;
    this._space.style.height = `${AXIS + ranks.length * tall}px`;
    const ratio = devicePixelRatio || 1;
    this._canvas.width = Math.round(width * ratio);
    this._canvas.height = Math.round(height * ratio);
    this._canvas.style.width = `${width}px`;
    this._canvas.style.height = `${height}px`;
    const context = /** @type {CanvasRenderingContext2D} */ (this._canvas.getContext("2d"));
    context.scale(ratio, ratio);
    context.font = `${token("size-small")} ${token("font")}`;
    context.textBaseline = "middle";
    this._cells(context, tall, wide, width, height);
    this._titles(context, tall, height);
    this._axis(context, wide, width);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} tall @param {number} wide @param {number} width @param {number} height */
  _cells(context, tall, wide, width, height) {
    const { ranks, steps } = this._about;
    const { scrollTop, scrollLeft } = this._scroller;
    const [from, to] = this._ends;
    const gap = tall >= 10 ? 1 : 0;
    const firstRow = Math.floor(scrollTop / tall);
    const lastRow = Math.min(ranks.length, Math.ceil((scrollTop + height - AXIS) / tall));
    const first = Math.floor(scrollLeft / wide);
    const last = Math.min(steps.length, Math.ceil((scrollLeft + width - TITLE) / wide));
    for (let row = firstRow; row < lastRow; row++) {
      for (let column = first; column < last; column++) {
        const value = this._values[row * steps.length + column];
        if (Number.isNaN(value)) continue;
        context.fillStyle = this._paint(value, from, to);
        context.fillRect(TITLE + column * wide - scrollLeft, AXIS + row * tall - scrollTop, wide - (wide >= 10 ? 1 : 0), tall - gap);
      }
    }
    if (this._column >= 0) {
      context.strokeStyle = token("hit");
      context.lineWidth = 2;
      context.strokeRect(TITLE + this._column * wide - scrollLeft, AXIS + this._row * tall - scrollTop, Math.max(wide, 3), Math.max(tall, 3));
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {number} tall @param {number} height */
  _titles(context, tall, height) {
    const { ranks, causes, slowest_rank: slowest } = this._about;
    const { scrollTop } = this._scroller;
    context.fillStyle = token("paper");
    context.fillRect(0, 0, TITLE, height);
    let free = AXIS;
    ranks.forEach((/** @type {any} */ rank, /** @type {number} */ row) => {
      const middle = AXIS + row * tall - scrollTop + tall / 2;
      // The first rank is the one that matters: its title is not cut off where rows are low.
      const y = Math.max(middle, AXIS + LINE / 2);
      if (middle < free || y > height) return;
      context.fillStyle = token(rank.cause ? "bad" : "ink-soft");
      const words = rank.cause ? `: ${rank.cause}` : !causes.length && rank.rank === slowest ? ": the slowest by itself" : "";
      context.fillText(`rank ${rank.rank}${words}`, 0, y, TITLE - 10);
      free = y + LINE;
    });
  }

  /** @param {CanvasRenderingContext2D} context @param {number} wide @param {number} width */
  _axis(context, wide, width) {
    const { steps } = this._about;
    const { scrollLeft } = this._scroller;
    context.fillStyle = token("paper");
    context.fillRect(0, 0, width, AXIS);
    context.fillStyle = token("ink-soft");
    let free = TITLE;
    steps.forEach((/** @type {number} */ step, /** @type {number} */ column) => {
      const x = TITLE + column * wide - scrollLeft;
      if (x < free) return;
      const words = column === 0 ? `step ${step}` : String(step);
      context.fillText(words, x, AXIS / 2);
      free = x + context.measureText(words).width + 14;
    });
  }
}
