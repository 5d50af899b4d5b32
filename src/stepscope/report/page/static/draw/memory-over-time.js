// @ts-check
/** Memory over time: what was held, stacked by category or by line, what was reserved, steps, the peak. Static, with titles. */

import { h, svg } from "../dom.js";
import { lineCategory, memoryFill, memoryPaint, memoryPattern, memoryWord } from "../memory-colours.js";
import { count, duration, size } from "../units.js";
import { definitions } from "./patterns.js";
import { momentText, roundAmounts, roundNumbers, sideOf } from "./ticks.js";

/**
 * @typedef {{is_by_event: boolean, lines: number, start: number, step: number, allocated: number[], reserved: number[] | null,
 *   bands: {name: string, bytes: number[]}[], steps: [number, number][], peak: [number, number],
 *   failed: [number, number][], caption: string}} Memory
 */

const WIDTH = 1040;
const HEIGHT = 300;
const LEFT = 76;
const RIGHT = 12;
const TOP = 40;
const BOTTOM = 24;
const LETTER = 6.4;
const STEP_ROOM = 52;
const DENSE = 5;
const MOMENTS = 6;

/** @param {Memory} data */
export function memoryOverTime(data) {
  const number = data.allocated.length;
  const most = Math.max(1, ...data.allocated, ...(data.reserved ?? [])) * 1.04;
  const room = WIDTH - LEFT - RIGHT;
  const low = HEIGHT - BOTTOM;
  /** @param {number} column */
  const x = (column) => LEFT + (room * column) / number;
  /** @param {number} bytes */
  const y = (bytes) => low - ((low - TOP) * bytes) / most;
  /** Where a moment lies. @param {number} at */
  const place = (at) => x((at - data.start) / data.step);
  const picture = svg("svg", { class: "memory-over-time", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": `Memory over time. ${data.caption}` }, definitions());
  for (const bytes of roundAmounts(most)) {
    picture.append(
      svg("line", { class: "memory-grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(bytes), y2: y(bytes) }),
      svg("text", { class: "memory-amount", x: LEFT - 8, y: y(bytes) }, size(bytes)),
    );
  }
  const ground = new Array(number).fill(0);
  data.bands.forEach((band, at) => {
    const top = band.bytes.map((bytes, column) => ground[column] + bytes);
    const area = svg("path", { class: "memory-band", d: between(top, ground, x, y) });
    area.style.fill = memoryFill(paintOf(data, at), at);
    picture.append(area);
    const over = memoryPattern(paintOf(data, at));
    if (over) picture.append(svg("path", { class: `pattern-${over}`, d: between(top, ground, x, y) }));
    top.forEach((bytes, column) => { ground[column] = bytes; });
  });
  if (data.reserved) picture.append(svg("path", { class: "memory-reserved-line", d: along(data.reserved, x, y) }));
  picture.append(...steps(data, place), ...moments(data, place), svg("line", { class: "memory-ground", x1: LEFT, x2: WIDTH - RIGHT, y1: low, y2: low }));
  for (const [at, bytes] of data.failed) picture.append(upright("memory-failed", place(at), `A request failed, with ${size(bytes)} held`));
  picture.append(...peak(data, place(data.peak[0]), y(data.peak[1])));
  for (let column = 0; column < number; column++) picture.append(said(data, column, x));
  return h("figure", { class: "memory-picture" }, h("div", { class: "wide-picture" }, picture), legend(data), h("figcaption", { class: "note" }, data.caption));
}

/** The category whose colour and pattern a band has; beyond the lines there are all others. @param {Memory} data @param {number} at */
function paintOf(data, at) {
  return data.lines ? lineCategory(at, data.lines) : data.bands[at].name;
}

/** @param {Memory} data @param {{name: string}} band */
function nameOf(data, { name }) {
  return data.lines ? name : memoryWord(name);
}

/** A line that holds each amount for the width of its column. @param {number[]} amounts @param {(column: number) => number} x @param {(bytes: number) => number} y */
function along(amounts, x, y) {
  return `M${round(x(0))},${round(y(amounts[0]))}${amounts.map((bytes, column) => `V${round(y(bytes))}H${round(x(column + 1))}`).join("")}`;
}

/** What lies between two such lines. @param {number[]} top @param {number[]} ground @param {(column: number) => number} x @param {(bytes: number) => number} y */
function between(top, ground, x, y) {
  const back = ground.map((bytes, column) => `V${round(y(bytes))}H${round(x(column))}`).reverse().join("");
  return `${along(top, x, y)}${back}Z`;
}

/** @param {number} value */
function round(value) {
  return Math.round(value * 10) / 10;
}

/** @param {Memory} data @param {(at: number) => number} place */
function steps(data, place) {
  const gap = data.steps.length > 1 ? (place(data.steps[data.steps.length - 1][1]) - place(data.steps[0][1])) / (data.steps.length - 1) : WIDTH;
  const found = [];
  let free = -Infinity;
  for (const [number, at] of data.steps) {
    const x = place(at);
    const isNamed = x >= free;
    if (gap < DENSE && !isNamed) continue;
    found.push(svg("line", { class: "memory-step", x1: x, x2: x, y1: isNamed ? 4 : TOP, y2: HEIGHT - BOTTOM }));
    if (!isNamed || x > WIDTH - RIGHT - STEP_ROOM) continue;
    found.push(svg("text", { class: "memory-step-name", x: x + 4, y: 10 }, `step ${number}`));
    free = x + Math.max(STEP_ROOM, `step ${number}`.length * LETTER + 12);
  }
  return found;
}

/** Round moments below the picture, each with a mark. @param {Memory} data @param {(at: number) => number} place */
function moments(data, place) {
  const end = data.start + data.step * data.allocated.length;
  return roundNumbers(data.start, end, (end - data.start) / MOMENTS).flatMap((at) => {
    const words = data.is_by_event ? moment(data, at) : momentText(at, end - data.start);
    const x = place(at);
    const side = sideOf(x, words.length * LETTER, LEFT, WIDTH - RIGHT);
    return [
      svg("line", { class: "memory-ground", x1: x, x2: x, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }),
      svg("text", { class: `memory-moment${side}`, x, y: HEIGHT - 9 }, words),
    ];
  });
}

/** @param {Memory} data @param {number} at */
function moment(data, at) {
  return data.is_by_event ? `event ${count(Math.round(at))}` : at ? `+${duration(at)}` : "0";
}

/** @param {string} kind @param {number} x @param {string} words */
function upright(kind, x, words) {
  return svg("line", { class: kind, x1: x, x2: x, y1: TOP - 12, y2: HEIGHT - BOTTOM }, svg("title", {}, words));
}

/** The peak: a line, a dot, and how much. @param {Memory} data @param {number} x @param {number} y */
function peak(data, x, y) {
  const words = `peak ${size(data.peak[1])}`;
  const isLate = x + words.length * LETTER > WIDTH - RIGHT;
  return [
    svg("line", { class: "memory-peak", x1: x, x2: x, y1: TOP - 12, y2: HEIGHT - BOTTOM }),
    svg("circle", { class: "memory-peak-dot", cx: x, cy: y, r: 4 }),
    svg("text", { class: `memory-peak-name${isLate ? " is-last" : ""}`, x: x + (isLate ? -6 : 6), y: TOP - 8 }, words),
  ];
}

/** An invisible column that says what it shows. @param {Memory} data @param {number} column @param {(column: number) => number} x */
function said(data, column, x) {
  const from = data.start + data.step * column;
  const held = data.bands.map((band) => ({ name: band.name, bytes: band.bytes[column] })).filter((one) => one.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  const words = [
    data.step > 1 ? `${moment(data, from)} to ${moment(data, from + data.step)}` : moment(data, from),
    `${size(data.allocated[column])} held${data.reserved ? `, ${size(data.reserved[column])} reserved` : ""}`,
    ...held.map((one) => `${nameOf(data, one)} ${size(one.bytes)}`),
  ];
  return svg("rect", { class: "memory-column", x: x(column), y: TOP, width: x(column + 1) - x(column), height: HEIGHT - BOTTOM - TOP }, svg("title", {}, words.join("\n")));
}

/** The order of the picture, from the top. @param {Memory} data */
function legend(data) {
  const bands = data.bands.map((band, at) => {
    const dot = h("span", { class: "dot" });
    dot.style.background = memoryPaint(paintOf(data, at), at);
    return h("li", {}, dot, nameOf(data, band));
  });
  const reserved = data.reserved ? h("li", {}, h("span", { class: "memory-reserved-key" }), "reserved") : null;
  const failed = data.failed.length ? h("li", {}, h("span", { class: "memory-failed-key" }), "a request failed") : null;
  return h("ul", { class: "memory-key" }, reserved, ...bands.reverse(), failed);
}
