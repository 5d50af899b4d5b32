// @ts-check
/** Numbers as a person reads them, the same words as in the terminal (`report/units.py`). */

/** @type {[number, string][]} */
const TIMES = [[60e9, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
/** @type {[number, string][]} */
const RATES = [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"]];
/** @type {[number, string][]} */
const SIZES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
/** @type {[number, string][]} */
const FLOPS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"]];

const IDENTITIES = new Set([
  "event", "step", "device", "stream", "rank", "launch", "op", "ended_by", "lane_id", "gap", "parent", "node",
]);

/** The device whose memory is the host's. */
const HOST = -1;

/** @param {number} value */
function threeDigits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

/** A duration: 92.1 ms. @param {number} ns */
export function duration(ns) {
  for (const [size, unit] of TIMES) if (Math.abs(ns) >= size * 0.9995) return `${threeDigits(ns / size)} ${unit}`;
  return `${Math.round(ns)} ns`;
}

/** A change: +3.10 ms. @param {number} ns */
export function signed(ns) {
  return `${ns > 0 ? "+" : ns < 0 ? "−" : "±"}${duration(Math.abs(ns))}`;
}

/** Bytes in binary units: 1.50 GiB. @param {number} bytes */
export function size(bytes) {
  for (const [step, unit] of SIZES) if (Math.abs(bytes) >= step * 0.9995) return `${threeDigits(bytes / step)} ${unit}`;
  return `${Math.round(bytes)} B`;
}

/** Bytes per second in decimal units, as bandwidths are stated: 1.50 GB/s. @param {number} value */
export function rate(value) {
  for (const [step, unit] of RATES) if (Math.abs(value) >= step * 0.9995) return `${threeDigits(value / step)} ${unit}`;
  return `${Math.round(value)} B/s`;
}

/**
 * A share: 38%, and 3.2%, with a decimal below ten. What is more than nothing never reads 0%, nor a
 * part of something 100%. @param {number} fraction
 */
export function share(fraction) {
  const percent = fraction * 100;
  const size = Math.abs(percent);
  if (size > 0 && size < 0.1) return "<0.1%";
  if (size >= 99.95 && size < 100) return ">99.9%";
  const hasDecimal = (size > 0 && size < 9.95) || (size >= 99.5 && size < 100);
  return `${percent.toFixed(hasDecimal ? 1 : 0)}%`;
}

/** A count with its thousands set apart. @param {number} value */
export function count(value) {
  if (Number.isInteger(value) || Math.abs(value) >= 100) return Math.round(value).toLocaleString("en-US");
  return Math.abs(value) >= 0.95 ? value.toFixed(1) : value.toPrecision(2);
}

/** A number of things: "1 step", "2 steps". @param {number} number @param {string} word */
export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** Floating-point operations: 344 GFLOP. @param {number} value */
export function flops(value) {
  for (const [step, prefix] of FLOPS) if (Math.abs(value) >= step * 0.9995) return `${threeDigits(value / step)} ${prefix}FLOP`;
  return `${count(value)} FLOP`;
}

/** A counter's value in its unit. @param {number} value @param {string} unit */
export function inUnit(value, unit) {
  if (unit === "bytes") return size(value);
  if (unit === "mebibytes") return size(value * 2 ** 20);
  if (unit === "bytes_per_second") return rate(value);
  if (unit === "share") return share(value);
  if (unit === "percent") return `${count(value)}%`;
  if (unit === "watts") return `${count(value)} W`;
  if (unit === "celsius") return `${count(value)} °C`;
  if (unit === "megahertz") return `${count(value)} MHz`;
  return count(value);
}

/** Whether a column holds times, sizes or shares, and no moments. @param {string} name */
export function isAmount(name) {
  return /_(ns|bytes|share)$/.test(name) && !/(^|_)(start|end|time)_ns$/.test(name);
}

/**
 * A cell of a table; the column's name tells the unit.
 * @param {string} name
 * @param {unknown} value
 * @returns {string}
 */
export function cell(name, value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.length ? value.map((one) => cell("", one)).join(", ") : "–";
  if (typeof value === "object") return JSON.stringify(value);
  if (typeof value !== "number") return String(value);
  if (/(^|_)(start|end|time)_ns$/.test(name)) return `${value < 0 ? "−" : "+"}${duration(Math.abs(value))}`;
  if (name === "delta_ns") return value ? signed(value) : duration(0);
  if (name.endsWith("_ns") || name === "ns") return duration(value);
  if (name.endsWith("_bytes") || name === "bytes") return size(value);
  if (name.endsWith("bytes_per_s")) return rate(value);
  if (name.endsWith("_share") || name === "share") return share(value);
  if (/(^|_)flops(_per_s)?$/.test(name)) return flops(value) + (name.endsWith("_per_s") ? "/s" : "");
  if (name === "device" && value === HOST) return "host";
  if (IDENTITIES.has(name) || name.endsWith("_id")) return String(value);
  return count(value);
}

const NOISE = /^void |\(anonymous namespace\)::|at::native::|at::cuda::/g;
const MODULE = "nn.Module: ";
const ATEN = "aten::";
const BACKWARD = "autograd::engine::evaluate_function: ";
const FEWEST_LETTERS = 4;

/** A name without what nearly all of its kind begin with. @param {string} name */
export function shortName(name) {
  if (name.startsWith(MODULE)) return name.slice(MODULE.length);
  return name.length > 24 ? name.replace(NOISE, "") : name;
}

/** What a name is written as where it does not fit, each shorter than the one before: without what its neighbours share, or its arguments. @param {string} name */
function shorterNames(name) {
  if (name.startsWith(ATEN)) return [name.slice(ATEN.length)];
  if (name.startsWith(BACKWARD)) return [name.slice(BACKWARD.length)];
  const [, file, called] = /^(?:.*\/)?([^/]+\.py\(\d+\)): (.+)$/.exec(name) ?? [];
  if (called) return [`${file}: ${called}`, called];
  // <built-in method cat of type object at 0x7f4ea9b0cc00>
  const builtIn = /^<built-in (?:method|function) (\S+)/.exec(name)?.[1];
  if (builtIn) return [builtIn.replace(/>$/, "")];
  const bare = /^([\w:~]+)[<(].*[>)]$/.exec(name)?.[1] ?? /^(.+) \(\d+ merged\)$/.exec(name)?.[1];
  return bare ? [bare, ...(bare.includes("::") ? [bare.slice(bare.lastIndexOf("::") + 2)] : [])] : [];
}

/**
 * A short name: without its arguments where it does not fit, then cut in the middle; empty where too little would be left.
 * @param {CanvasRenderingContext2D} context
 * @param {string} name
 * @param {number} room in pixels
 * @param {number} letter the width of most letters
 */
export function fittingName(context, name, room, letter) {
  let short = shortName(name);
  let letters = Math.floor(room / letter);
  for (const next of [...shorterNames(short), ""]) {
    if (short.length <= letters && context.measureText(short).width <= room) return short;
    if (next) short = next;
  }
  for (; letters >= FEWEST_LETTERS; letters--) {
    const end = Math.floor((letters - 1) / 2);
    const text = `${short.slice(0, letters - 1 - end)}…${short.slice(short.length - end)}`;
    if (context.measureText(text).width <= room) return text;
  }
  return "";
}

const LONGEST_PATH = 52;

/** The end of a module's path, which tells it from its neighbours. @param {string} path */
export function shortPath(path) {
  if (path.length <= LONGEST_PATH) return path;
  const names = path.split("/");
  while (names.length > 1 && names.join("/").length > LONGEST_PATH - 2) names.shift();
  return `…/${names.join("/")}`;
}
