// @ts-check
/** The time axis: where its marks stand and what they say. */


const STEPS = [1, 2, 5];

/**
 * Marks at round moments, about `room` pixels apart.
 * @param {import("./camera.js").Camera} camera
 * @param {number} [room]
 * @returns {{ns: number, x: number}[]}
 */
export function marks(camera, room = 110) {
  const least = camera.nsPerPixel * room;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = Math.max(1, power * (STEPS.find((one) => one * power >= least) ?? 10));
  const found = [];
  for (let ns = Math.ceil(camera.start / step) * step; ns <= camera.end; ns += step) found.push({ ns, x: camera.x(ns) });
  return found;
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
export function label(ns, span) {
  if (ns === 0) return "0";
  const [size, unit] = span >= 5e9 ? [1e9, "s"] : span >= 5e6 ? [1e6, "ms"] : span >= 5e3 ? [1e3, "µs"] : [1, "ns"];
  if (span < 5e6 && Math.abs(ns) >= 1e9) {
    // Far from the start the leading digits are the same on every mark.
    const digits = span >= 5e3 ? 3 : 6;
    return `${inDigits(digits, digits).format(ns / 1e6)} ms`;
  }
  const digits = Math.max(0, Math.ceil(-Math.log10(span / size / 20)));
  return `${inDigits(digits).format(ns / size)} ${unit}`;
}

/**
 * Draws the axis into a canvas of its own.
 * @param {CanvasRenderingContext2D} context
 * @param {import("./camera.js").Camera} camera
 * @param {number} height
 * @param {{ink: string, line: string, font: string}} look
 */
export function drawAxis(context, camera, height, look) {
  context.font = look.font;
  context.textBaseline = "middle";
  for (const { ns, x } of marks(camera)) {
    context.fillStyle = look.line;
    context.fillRect(Math.round(x), height - 6, 1, 6);
    context.fillStyle = look.ink;
    context.fillText(label(ns, camera.span), x + 4, height - 9);
  }
}
