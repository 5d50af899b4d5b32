// @ts-check
/**
 * Every step in order as a bar of its parts, with what is special, a histogram and what was processed: one strip per
 * rank or run, all on one scale. Works from plain values (`analysis/record/step_strip.py`); viewer and reports share it.
 */

import { h, replace, svg } from "../dom.js";
import { partFill, partPaint } from "../part-colours.js";
import { count, duration, plural, share } from "../units.js";
import { definitions } from "./patterns.js";

/**
 * @typedef {{title: string, first: number[], last: number[], mean_ns: number[], longest_ns: number[], slowest: number[],
 *   parts: [string, number[]][], kinds: string[], windows: (number | null)[], lines: [string, (number | null)[]][],
 *   overall_ns: number, bin_ns: number, bins: number[]}} Strip
 * @typedef {{tall?: number, picked?: (strip: number, bar: number) => void}} Options
 */

const WIDEST_BAR = 44;
const WIDTH = 960;
/** Strips of few steps stand beside each other; a title has room above one. */
const NARROWEST = 226;
/** Height of the two rows of marks below the bars: what is special, what was recorded in detail. */
const MARKS = 11;
const LINE = 18;
const BINS = 72;
const FEWEST_IN_HISTOGRAM = 10;
/** Bars are cut at so many times the median, so that one slow step does not flatten the others. */
const CUT = 4;
const RECORDED = "recorded in detail";

/**
 * @param {Strip[]} strips
 * @param {Options} [options] how tall a plot is, and what a click or Enter on a bar does
 */
export function stepStrips(strips, options = {}) {
  const longest = Math.max(1, ...strips.flatMap((one) => one.longest_ns));
  const limit = CUT * Math.max(...strips.map((one) => one.overall_ns));
  const top = limit > 0 && longest > limit ? limit : longest;
  const status = h("p", { class: "strip-status note", role: "status" });
  const drawn = strips.map((one, at) => new Plot(one, top, strips.length === 2 && !one.parts.length ? ["before", "after"][at] : "", status, options.tall ?? 100, (bar) => options.picked?.(at, bar)));
  const rest = () => replace(status, captionOf(strips, top));
  rest();
  const element = h("div", { class: "strips" }, ...drawn.map((one) => one.element), keys(strips), status);
  element.addEventListener("pointerleave", rest);
  element.addEventListener("focusout", rest);
  return { element };
}

/** One strip. */
class Plot {
  /** @param {Strip} strip @param {number} top @param {string} side @param {HTMLElement} status @param {number} tall @param {(bar: number) => void} picked */
  constructor(strip, top, side, status, tall, picked) {
    this._strip = strip;
    this._top = top;
    this._side = side;
    this._tall = tall;
    this._at = -1;
    this._status = status;
    const number = strip.first.length;
    this._height = tall + MARKS + strip.lines.length * LINE;
    this._bars = svg("svg", { class: "strip-bars", preserveAspectRatio: "none", height: this._height, tabindex: "0", role: "slider", "aria-label": `Steps, ${strip.title}: arrow keys move`, "aria-valuemin": 0, "aria-valuemax": number - 1, "aria-valuenow": 0 });
    const frame = h("div", { class: "strip-frame" }, this._bars, h("div", { class: "strip-axis" }, h("span", {}, stepsOf(strip, 0)), number > 1 ? h("span", {}, stepsOf(strip, number - 1)) : null));
    frame.style.maxWidth = `${number * WIDEST_BAR}px`;
    this.element = h("figure", { class: "strip" }, h("figcaption", { class: "strip-title" }, strip.title), h("div", { class: "strip-row" }, frame, number >= FEWEST_IN_HISTOGRAM ? this._histogram() : null));
    this.element.style.flexBasis = `${Math.max(number * WIDEST_BAR, NARROWEST)}px`;
    this._draw(Math.min(WIDTH, number * WIDEST_BAR));
    new ResizeObserver(() => this._draw(this._bars.clientWidth)).observe(this._bars);
    this._bars.addEventListener("pointermove", (event) => this._say(this._barAt(event)));
    this._bars.addEventListener("focus", () => this._say(Math.max(0, this._at)));
    this._bars.addEventListener("click", (event) => {
      this._say(this._barAt(event));
      picked(this._at);
    });
    this._bars.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: this._at - 1, ArrowRight: this._at + 1, Home: 0, End: number - 1 }[event.key];
      if (event.key === "Enter" && this._at >= 0) picked(this._at);
      if (to === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      this._say(Math.min(Math.max(to, 0), number - 1));
    });
  }

  /** @param {MouseEvent} event */
  _barAt(event) {
    const box = this._bars.getBoundingClientRect();
    const number = this._strip.first.length;
    return Math.min(Math.max(Math.floor(((event.clientX - box.left) / box.width) * number), 0), number - 1);
  }

  /** @param {number} at */
  _say(at) {
    this._at = at;
    const words = wordsOf(this._strip, at);
    replace(this._status, words);
    this._bars.setAttribute("aria-valuenow", String(at));
    this._bars.setAttribute("aria-valuetext", words);
    this._frame();
  }

  _frame() {
    const slot = this._width / this._strip.first.length;
    this._chosen.setAttribute("x", String(Math.max(0, this._at) * slot));
    this._chosen.setAttribute("width", String(this._at < 0 ? 0 : Math.max(slot, 2)));
  }

  /** Draws the bars as wide as they are shown, so that patterns keep their shape. @param {number} width */
  _draw(width) {
    if (!width || width === this._width) return;
    this._width = width;
    const strip = this._strip;
    const slot = width / strip.first.length;
    const bar = slot > 3 ? slot - 1 : slot;
    const scale = this._tall / this._top;
    /** @type {SVGElement[]} */
    const shapes = [];
    const bars = (/** @type {(at: number) => [number, number]} */ span) => strip.first.map((_, at) => {
      const [from, to] = span(at).map((ns) => Math.min(ns, this._top) * scale);
      return to > from ? `M${round(at * slot)} ${round(this._tall - to)}h${round(bar)}v${round(to - from)}h${round(-bar)}z` : "";
    }).join("");
    shapes.push(svg("path", { class: `strip-longest ${this._side && `is-${this._side}`}`, d: bars((at) => [0, strip.longest_ns[at]]) }));
    if (!strip.parts.length) shapes.push(svg("path", { class: `strip-whole ${this._side && `is-${this._side}`}`, d: bars((at) => [0, strip.mean_ns[at]]) }));
    const below = strip.first.map(() => 0);
    for (const [name, ns] of strip.parts) {
      const d = bars((at) => [below[at], (below[at] += ns[at])]);
      const [fill, over] = partFill(name);
      const shape = svg("path", { class: "strip-part", "data-part": name, d });
      shape.style.fill = fill;
      shapes.push(shape);
      if (over) shapes.push(svg("path", { class: `pattern-${over}`, d }));
    }
    const y = this._tall * (1 - Math.min(strip.overall_ns, this._top) / this._top);
    shapes.push(svg("line", { class: "strip-median", x1: 0, x2: width, y1: y, y2: y }));
    strip.first.forEach((_, at) => {
      for (const [row, kind] of marksOf(strip, at).entries()) {
        if (kind) shapes.push(svg("rect", { class: `strip-mark is-${slug(kind)}`, x: at * slot, y: this._tall + 2 + 4 * row, width: Math.max(bar, 2), height: 3 }));
      }
    });
    strip.lines.forEach(([name, values], row) => {
      const known = values.filter((one) => one !== null);
      const least = isRate(name) ? 0 : Math.min(...known); // a loss has no zero that it begins at
      const range = Math.max(...known) - least || 1;
      const base = this._tall + MARKS + (row + 1) * LINE;
      const points = values.flatMap((one, at) => one === null ? [] : [`${round((at + 0.5) * slot)},${round(base - 2 - ((one - least) / range) * (LINE - 5))}`]);
      shapes.push(svg("polyline", { class: "strip-line", "data-line": name, points: [...points, points[points.length - 1]].join(" ") }));
    });
    this._chosen = svg("rect", { class: "strip-chosen", y: 0, height: this._tall + MARKS });
    this._bars.setAttribute("viewBox", `0 0 ${width} ${this._height}`);
    replace(this._bars, definitions(), ...shapes, this._chosen);
    this._frame();
  }

  /** How many steps take how long, on the scale of the bars. */
  _histogram() {
    const { bins, bin_ns: wide } = this._strip;
    const most = Math.max(...bins, 1);
    const scale = this._tall / this._top;
    const rows = bins.map((number, at) => {
      if (!number || at * wide > this._top) return null;
      const tall = Math.max(wide * scale, 1);
      const row = svg("rect", { x: 0, y: this._tall - at * wide * scale - tall, width: Math.max((number / most) * BINS, 1.5), height: Math.max(tall - 0.5, 0.8) });
      row.append(svg("title", {}, `${plural(number, "step")} of ${duration(at * wide)} ${at === bins.length - 1 ? "and more" : `to ${duration((at + 1) * wide)}`}`));
      return row;
    });
    return svg("svg", { class: "strip-histogram", viewBox: `0 0 ${BINS} ${this._tall}`, width: BINS, height: this._tall, role: "img", "aria-label": `How many steps take how long, ${this._strip.title}` }, ...rows);
  }

  /** What the bars are drawn into; `_draw` makes it. */
  _chosen = svg("rect");
  _width = 0;
}

/** What is said of one bar. @param {Strip} strip @param {number} at */
function wordsOf(strip, at) {
  const whole = strip.mean_ns[at];
  const parts = strip.parts.filter(([, ns]) => ns[at] > 0).sort(([, a], [, b]) => b[at] - a[at]).map(([name, ns]) => `${name} ${duration(ns[at])} (${share(ns[at] / Math.max(whole, 1))})`);
  const longest = strip.longest_ns[at] > whole ? `, the longest ${duration(strip.longest_ns[at])} (step ${strip.slowest[at]})` : "";
  const lines = strip.lines.flatMap(([name, values]) => values[at] === null ? [] : [isRate(name) ? `${count(Math.round(values[at]))} ${name}` : `${name} ${short(values[at])}`]);
  // Where windows are known, a step outside them has no timeline to go to.
  const recorded = strip.windows[at] !== null ? RECORDED : strip.windows.some((one) => one !== null) ? `not ${RECORDED}` : "";
  return [`${capital(stepsOf(strip, at))}: ${duration(whole)}${longest}`, parts.join(", "), ...lines, strip.kinds[at], recorded].filter(Boolean).join("; ");
}

/** What is said of all. @param {Strip[]} strips @param {number} top */
function captionOf(strips, top) {
  const said = strips.slice(0, 2).map((strip) => {
    const longest = Math.max(...strip.longest_ns);
    const at = strip.longest_ns.indexOf(longest);
    const lines = strip.lines.map(([name, values]) => {
      const known = values.filter((one) => one !== null);
      if (!isRate(name)) return `, ${name} ${short(known[0])} to ${short(known[known.length - 1])}`;
      return `, ${count(Math.round(known.reduce((sum, one) => sum + one, 0) / known.length))} ${name}`;
    });
    return `${strips.length > 1 ? `${capital(strip.title)}: median` : `${capital(steps(strip.first[0], strip.last[strip.last.length - 1]))}: median`} ${duration(strip.overall_ns)} (the line); the longest ${duration(longest)}, step ${strip.slowest[at]}${lines.join("")}.`;
  });
  const per = Math.max(...strips.flatMap((strip) => strip.first.map((first, at) => strip.last[at] - first + 1)));
  if (per > 1 && strips.some((strip) => strip.first.length > 1)) said.push(`A bar is up to ${count(per)} steps: their mean, and paler the longest.`);
  const cut = strips.flatMap((strip) => strip.longest_ns).filter((ns) => ns > top).length;
  if (cut) said.push(`${count(cut)} ${cut === 1 ? "bar is" : "bars are"} cut off at ${duration(top)}.`);
  return said.join(" ");
}

/** The colours of parts and marks. @param {Strip[]} strips */
function keys(strips) {
  const parts = [...new Set(strips.flatMap((one) => one.parts.map(([name]) => name)))];
  const marks = [...new Set(strips.flatMap((one) => one.first.flatMap((_, at) => marksOf(one, at))).filter(Boolean))];
  const lines = [...new Set(strips.flatMap((one) => one.lines.map(([name]) => name.replace("/s", " per second"))))];
  return h(
    "ul", { class: "strip-keys", "aria-label": "Colours" },
    ...parts.map((name) => {
      const dot = h("span", { class: "dot" });
      dot.style.background = partPaint(name);
      return h("li", {}, dot, name);
    }),
    ...marks.map((kind) => h("li", {}, h("span", { class: `strip-key is-${slug(kind)}` }), kind)),
    ...lines.map((name) => h("li", {}, h("span", { class: `strip-key is-line is-${slug(name)}` }), name)),
  );
}

/** What the marks below a bar stand for: what is special, and whether it was recorded in detail. @param {Strip} strip @param {number} at */
function marksOf(strip, at) {
  return [strip.kinds[at], strip.windows[at] === null ? "" : RECORDED];
}

/** @param {Strip} strip @param {number} at */
function stepsOf({ first, last }, at) {
  return steps(first[at], last[at]);
}

/** @param {number} first @param {number} last */
function steps(first, last) {
  return first === last ? `step ${first}` : `steps ${first} to ${last}`;
}

/** @param {string} text */
function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}

/** Whether a line is of something per second. @param {string} name */
function isRate(name) {
  return name.endsWith("/s");
}

/** A number with four digits that count. @param {number} value */
function short(value) {
  return String(Number(value.toPrecision(4)));
}

/** @param {string} kind */
function slug(kind) {
  return kind.replace(/[^a-z]+/g, "-");
}

/** @param {number} value */
function round(value) {
  return Math.round(value * 100) / 100;
}
