// @ts-check
/** Where the marks of an axis stand, at round moments and round amounts, and what they say. Viewer and reports share it. */

const STEPS = [1, 2, 5];

/** The smallest round step (1, 2 or 5 times a power of ten) of at least so much, and of 1. @param {number} least */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return Math.max(1, power * (STEPS.find((one) => one * power >= least) ?? 10));
}

/** Round numbers from the first on, up to the last, at least so far apart. @param {number} first @param {number} last @param {number} apart @returns {number[]} */
export function roundNumbers(first, last, apart) {
  const step = roundStep(apart);
  const found = [];
  for (let at = Math.ceil(first / step) * step; at <= last; at += step) found.push(at);
  return found;
}

/**
 * The side of a centred label that would stick out of its picture, as a class: none, the last, or neither.
 * @param {number} x
 * @param {number} width
 * @param {number} left
 * @param {number} right
 */
export function sideOf(x, width, left, right) {
  return x - width / 2 < left ? "" : x + width / 2 > right ? " is-last" : " is-between";
}

/** Round amounts in binary units, from nothing up to the most. @param {number} most @returns {number[]} */
export function roundAmounts(most) {
  const power = 2 ** Math.floor(Math.log2(most / 4));
  const step = Math.max(1, most / power > 6 ? power * 2 : power);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, number) => number * step);
}

/** @type {Map<number, Intl.NumberFormat>} */
const formats = new Map();

/**
 * Writes numbers with so many digits after the point. Making a format takes long.
 * @param {number} most
 * @param {number} [least]
 */
function inDigits(most, least = 0) {
  const key = most * 100 + least;
  const known = formats.get(key) ?? new Intl.NumberFormat("en-US", { maximumFractionDigits: most, minimumFractionDigits: least });
  formats.set(key, known);
  return known;
}

/** What a mark says: the moment, in the digits that tell it from its neighbours. @param {number} ns @param {number} span */
export function momentText(ns, span) {
  if (ns === 0) return "0";
  // Far from the start the leading digits are the same on every mark: a larger unit has fewer of them.
  const isFar = span < 5e5 && Math.abs(ns) >= 1e9;
  const [size, unit] = span >= 5e9 ? [1e9, "s"] : span >= 5e5 || isFar ? [1e6, "ms"] : span >= 5e3 ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.max(0, Math.ceil(-Math.log10(span / size / 20)));
  return `${inDigits(digits, isFar ? digits : 0).format(ns / size)} ${unit}`;
}
