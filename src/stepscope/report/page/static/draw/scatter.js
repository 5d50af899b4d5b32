// @ts-check
/** Points on two logarithmic axes, below lines: kernels by count and duration, a roofline. A static picture that can be asked. */

import { h, replace, svg } from "../dom.js";
import { hasColour, partFill } from "../part-colours.js";
import { cell, shortName } from "../units.js";

/**
 * @typedef {{x: number, y: number, weight: number, name: string, kind: string, event: number | null, text: string}} Point
 * @typedef {[number, number, number, number]} Box left, top, right, bottom
 * @typedef {{title: string, x: [string, string], y: [string, string], points: Point[], lines: {at: [number, number][], label: string}[], caption: string}} Scatter
 */

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [960, 380, 84, 16, 22, 44];
const [SMALLEST, LARGEST] = [3, 15];
const MOST_KINDS = 8;
/** How wide a letter of a label is at most, and how tall. */
const [LETTER, TALL] = [6.6, 13];
/** Parts whose colours stand for kinds that have none, such as those of collectives: never those of compute or communication. */
const OTHERS = ["backward", "optimizer", "python", "annotation", "copy", "fill", "synchronisation", "other"];
/** @type {Record<string, string>} */
const PART_OF = { compute: "compute", communication: "exposed communication", memcpy: "exposed copies", memset: "other" };

/**
 * @param {Scatter} data
 * @param {((point: Point) => (() => void) | null) | undefined} [link] where a point leads
 */
export function scatter(data, link) {
  const { points, lines } = data;
  const corners = lines.flatMap((line) => line.at);
  const x = axis(data.x[0], [...points.map((one) => one.x), ...corners.map((one) => one[0])], LEFT, WIDTH - RIGHT);
  const y = axis(data.y[0], [...points.map((one) => one.y), ...corners.map((one) => one[1])], HEIGHT - BOTTOM, TOP);
  const kinds = [...new Set(points.map((one) => one.kind))].slice(0, MOST_KINDS);
  const heaviest = Math.max(...points.map((one) => one.weight), 1);
  const said = h("p", { class: "picture-said", role: "status" }, data.caption);
  const picture = svg("svg", { class: "scatter", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, tabindex: "0", role: "img", "aria-label": `${data.title}: ${points.length} points. Left and right go from one to the next, the most costly first.` });
  picture.append(...marks(data, x, y));
  /** @type {[[number, number][], string][]} */
  const labels = [];
  for (const { at, label } of lines) {
    const corners = at.map(([a, b]) => /** @type {[number, number]} */ ([x.place(a), y.place(b)]));
    picture.append(svg("polyline", { class: "scatter-line", points: corners.map((one) => one.join(",")).join(" ") }));
    labels.push([corners, label]);
  }
  // Large ones first, so that small ones can be reached.
  const drawn = [...points].sort((a, b) => b.weight - a.weight);
  const dots = drawn.map((one) => {
    const dot = svg("circle", { class: "scatter-point", cx: x.place(one.x), cy: y.place(one.y), r: Math.max(SMALLEST, LARGEST * Math.sqrt(one.weight / heaviest)) });
    [dot.style.fill] = fillOf(one.kind, kinds);
    return dot;
  });
  picture.append(...dots);
  /** @type {Box[]} */
  const taken = drawn.map((one, at) => {
    const size = Number(dots[at].getAttribute("r"));
    return [x.place(one.x) - size, y.place(one.y) - size, x.place(one.x) + size, y.place(one.y) + size];
  });
  for (const [corners, label] of labels) {
    const box = freePlace(corners, label.length * LETTER, taken);
    taken.push(box);
    picture.append(svg("text", { class: "scatter-label", x: box[0], y: box[3] - 3 }, label));
  }
  let at = -1;
  /** @param {number} next */
  const choose = (next) => {
    dots[at]?.classList.remove("is-chosen");
    at = next;
    dots[at]?.classList.add("is-chosen");
    replace(said, ...(at < 0 ? [data.caption] : [h("strong", {}, shortName(drawn[at].name)), ` ${drawn[at].text}`]));
  };
  const go = () => {
    if (at >= 0) link?.(drawn[at])?.();
  };
  picture.addEventListener("pointermove", (event) => choose(dots.indexOf(/** @type {SVGElement} */ (event.target))));
  picture.addEventListener("pointerleave", () => choose(-1));
  picture.addEventListener("click", go);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[/** @type {KeyboardEvent} */ (event).key];
    if (step) choose((Math.max(at, step > 0 ? -1 : 0) + step + drawn.length) % drawn.length);
    else if (/** @type {KeyboardEvent} */ (event).key === "Enter") go();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  if (link) picture.classList.add("is-linked");
  /** @type {Map<string, string[]>} */
  const byFill = new Map();
  for (const kind of kinds) byFill.set(fillOf(kind, kinds)[0], [...(byFill.get(fillOf(kind, kinds)[0]) ?? []), kind.replaceAll("_", " ")]);
  const keys = kinds.length > 1 ? h("ul", { class: "strip-keys" }, ...[...byFill].map(([fill, names]) => {
    const dot = h("span", { class: "dot" });
    dot.style.background = fill;
    return h("li", {}, dot, names.join(", "));
  })) : null;
  return h("figure", { class: "picture" }, h("h3", {}, data.title), h("div", { class: "wide-picture" }, picture), keys, said);
}

/**
 * Where a line's label covers neither a point nor another label: a roof's as far right as can be on its level, a
 * straight line's as near as can be to where it begins.
 * @param {[number, number][]} corners @param {number} wide @param {Box[]} taken
 * @returns {Box}
 */
function freePlace(corners, wide, taken) {
  const isRoof = corners.length > 2;
  const [from, to] = corners.slice(-2);
  /** @type {Box | null} */
  let first = null;
  for (let left = isRoof ? to[0] - wide : from[0] + 4; left >= from[0] && left + wide <= to[0] + 1; left += isRoof ? -12 : 12) {
    const slope = (to[1] - from[1]) / Math.max(to[0] - from[0], 1);
    const line = Math.min(from[1] + slope * (left - from[0]), from[1] + slope * (left + wide - from[0]));
    for (const bottom of [line - 2, line + (slope ? Math.abs(slope) * wide : 0) + TALL + 2]) {
      const box = /** @type {Box} */ ([left, bottom - TALL, left + wide, bottom]);
      first ??= box;
      if (!taken.some(([a, b, c, d]) => a < box[2] && c > box[0] && b < box[3] && d > box[1])) return box;
    }
  }
  return first ?? [from[0], from[1] - TALL, from[0] + wide, from[1]];
}

/** The colour of a kind. @param {string} kind @param {string[]} kinds */
function fillOf(kind, kinds) {
  if (hasColour(partOf(kind))) return partFill(partOf(kind));
  const taken = new Set(kinds.map(partOf).filter(hasColour).map((part) => partFill(part)[0]));
  const free = OTHERS.filter((part) => !taken.has(partFill(part)[0]));
  const others = kinds.filter((one) => !hasColour(partOf(one)));
  return partFill(free[Math.max(0, others.indexOf(kind)) % free.length]);
}

/** @param {string} kind */
function partOf(kind) {
  return PART_OF[kind] ?? kind.replaceAll("_", " ");
}

/** A logarithmic axis: places, and the round values on it. @param {string} name @param {number[]} values @param {number} from @param {number} to */
function axis(name, values, from, to) {
  let [low, high] = [Math.log10(Math.min(...values)), Math.log10(Math.max(...values))];
  const room = Math.max(0.12 * (high - low), 0.15);
  [low, high] = [low - room, high + room];
  const marked = rounds(name.endsWith("_bytes"), low, high);
  return { place: (/** @type {number} */ value) => from + ((Math.log10(value) - low) / (high - low)) * (to - from), marked };
}

/** The round values of a logarithmic axis: powers of ten, or of two for bytes; more where these are few. @param {boolean} areBytes @param {number} low @param {number} high powers of ten */
function rounds(areBytes, low, high) {
  const found = multiples(areBytes ? 32 : 10, [1], low, high);
  if (found.length >= 2) return found;
  return areBytes ? multiples(2, [1], low, high) : multiples(10, [1, 2, 5], low, high);
}

/** Powers of a base, each times some numbers, between two powers of ten. @param {number} base @param {number[]} times @param {number} low @param {number} high */
function multiples(base, times, low, high) {
  const step = Math.log10(base);
  const found = [];
  for (let power = Math.floor(low / step); power * step <= high; power++) found.push(...times.map((one) => one * base ** power));
  return found.filter((value) => value >= 10 ** low && value <= 10 ** high);
}

/** @param {Scatter} data @param {ReturnType<typeof axis>} x @param {ReturnType<typeof axis>} y */
function marks({ x: [xName, xTitle], y: [yName, yTitle] }, x, y) {
  const found = [
    svg("text", { class: "scatter-title is-x", x: WIDTH - RIGHT, y: HEIGHT - 6 }, xTitle),
    svg("text", { class: "scatter-title", x: 0, y: 10 }, yTitle),
  ];
  for (const value of x.marked) {
    const at = x.place(value);
    found.push(svg("line", { class: "scatter-grid", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }), svg("text", { class: "scatter-mark is-x", x: at, y: HEIGHT - BOTTOM + 16 }, cell(xName, value)));
  }
  for (const value of y.marked) {
    const at = y.place(value);
    found.push(svg("line", { class: "scatter-grid", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }), svg("text", { class: "scatter-mark", x: LEFT - 8, y: at + 4 }, cell(yName, value)));
  }
  return found;
}
