// @ts-check
/** Light or dark, and the tokens as the canvas needs them. */

import { drawNow } from "./dom.js";

const STORED = "stepscope.theme";
/** Width of a sheet between its margins, in pixels. */
const PAPER = 680;

/** Names of the colours by number: `colours.py` has the same. */
export const COLOURS = [
  "other", "compute", "communication", "copy", "fill", "operator", "annotation", "python", "call",
  "synchronisation", "overhead", "step", "attention", "convolution", "elementwise", "normalisation",
  "idle-device-wait",
  "idle-input", "idle-synchronisation", "idle-allocation", "idle-pageable-copy",
  "idle-annotated-phase", "idle-op-dispatch", "idle-python", "idle-unknown",
  "idle-compilation", "idle-garbage-collection", "idle-waiting-for-communication", "idle-profiler",
  "idle-graph-gap", "idle-one-off", "idle-backward", "idle-not-recorded",
  "reduction", "other-kernel", "idle-cpu-operators",
];

/** @typedef {"stripes" | "dots" | "lines"} Pattern */

/** What is drawn over a colour, by its number: idle time is told from work by it. */
const PATTERNS = /** @type {Record<number, Pattern>} */ ({
  16: "stripes", 17: "stripes", 18: "stripes", 22: "stripes", 23: "stripes", 27: "stripes",
  19: "dots", 20: "dots", 25: "dots", 26: "dots", 30: "dots", 32: "dots",
  21: "lines", 24: "lines", 28: "lines", 29: "lines", 31: "lines", 35: "lines",
});

/** Applies what was chosen before, else what the system prefers, now and when that changes. */
export function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = stored();
    const isChosen = chosen === "light" || chosen === "dark";
    document.documentElement.dataset.theme = isChosen ? chosen : system.matches ? "dark" : "light";
    announce();
  };
  apply();
  system.addEventListener("change", apply);
}

/** The other one, from now on. */
export function toggleTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  setTheme(next);
  try {
    localStorage.setItem(STORED, next);
  } catch {
    // A page in a sandbox, such as a build server's, may store nothing: the choice lasts until it closes.
  }
}

/** Draws again on a change of the window's, as long as an element is shown. @param {Element} element @param {"theme-changed" | "resize"} change @param {() => void} draw */
export function whileShown(element, change, draw) {
  window.addEventListener(change, function again() {
    if (element.isConnected) draw();
    else window.removeEventListener(change, again);
  });
}

/** On paper everything is light, unfolded and as wide as a sheet: `data-paper` stands for that in the styles. */
export function preparePrinting() {
  const root = document.documentElement;
  /** @type {string | undefined} */
  let theme;
  /** @type {HTMLDetailsElement[]} */
  let folded = [];
  /** @param {boolean} isPaper */
  const lay = (isPaper) => {
    if (isPaper === root.hasAttribute("data-paper")) return;
    if (isPaper) {
      theme = root.dataset.theme;
      folded = [...document.querySelectorAll("details")].filter((one) => !one.open);
    }
    // What a server has sent for this size is shrunk, as it cannot send it anew.
    for (const one of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".is-shrunk"))) {
      const { clientWidth: wide, clientHeight: tall } = one;
      Object.assign(one.style, isPaper ? { width: `${wide}px`, height: `${tall}px`, zoom: String(PAPER / wide) } : { width: "", height: "", zoom: "" });
    }
    root.toggleAttribute("data-paper", isPaper);
    for (const one of folded) one.open = isPaper;
    setTheme(isPaper ? "light" : theme ?? "light");
    drawNow();
    for (const one of document.querySelectorAll("table")) fitSheet(one, isPaper);
    // What WebGL has drawn, and single pixels, are gone when the sheet is drawn: a copy stands over them.
    for (const copy of document.querySelectorAll(".copied + canvas")) copy.remove();
    for (const canvas of /** @type {NodeListOf<HTMLCanvasElement>} */ (document.querySelectorAll("canvas.layer"))) {
      canvas.classList.toggle("copied", isPaper);
      if (!isPaper || !canvas.width || !canvas.height) continue;
      const copy = /** @type {HTMLCanvasElement} */ (canvas.cloneNode());
      copy.classList.remove("copied");
      copy.getContext("2d")?.drawImage(canvas, 0, 0);
      canvas.after(copy);
    }
  };
  window.addEventListener("beforeprint", () => lay(true));
  window.addEventListener("afterprint", () => lay(false));
  matchMedia("print").addEventListener("change", ({ matches }) => lay(matches));
}

/** Shrinks a table that is wider than a sheet however its cells break, rather than have the browser shrink all of the page. @param {HTMLTableElement} one @param {boolean} isPaper */
function fitSheet(one, isPaper) {
  one.style.width = isPaper ? "min-content" : "";
  const wide = one.offsetWidth;
  one.style.width = "";
  one.style.zoom = isPaper && wide > PAPER ? String(PAPER / wide) : "";
}

/** Shows a theme. @param {string} theme */
export function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  announce();
}

/** What was chosen before; null where nothing was, or nothing may be stored. */
function stored() {
  try {
    return localStorage.getItem(STORED);
  } catch {
    return null;
  }
}

function announce() {
  known.clear();
  drawPatterns();
  window.dispatchEvent(new CustomEvent("theme-changed"));
}

/** @type {Map<string, string>} */
const known = new Map();

/** The value of a token, such as "ink". @param {string} name */
export function token(name) {
  let value = known.get(name);
  if (value === undefined) {
    value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    known.set(name, value);
  }
  return value;
}

/** The colour of a number. @param {number} number */
export function colour(number) {
  return token(`colour-${COLOURS[number] ?? "other"}`);
}

/** The pattern of a number; undefined for plain colours. @param {number} number */
export function pattern(number) {
  return PATTERNS[number];
}

/** Pixels after which every pattern comes again. */
export const TILE = 30;

/** Whether a pixel lies in a light part of a pattern. @param {Pattern} name @param {number} x @param {number} y */
export function isLit(name, x, y) {
  if (name === "stripes") return (x + y) % 6 >= 4;
  if (name === "dots") return x % 5 < 2 && y % 5 < 2;
  return (((x - y) % 6) + 6) % 6 >= 3;
}

/** The light parts of a pattern's tile as a path of SVG. @param {Pattern} name */
export function litPath(name) {
  let path = "";
  for (let y = 0; y < TILE; y++) {
    for (let x = 0, end = 0; x < TILE; x = end + 1) {
      for (end = x; end < TILE && isLit(name, end, y); end++);
      if (end > x) path += `M${x} ${y}h${end - x}v1H${x}z`;
    }
  }
  return path;
}

/** Gives backgrounds the patterns, as tokens. */
function drawPatterns() {
  for (const name of /** @type {Pattern[]} */ (["stripes", "dots", "lines"])) {
    const tile = `<svg xmlns="http://www.w3.org/2000/svg" width="${TILE}" height="${TILE}" shape-rendering="crispEdges"><path fill="${token("pattern-ink")}" d="${litPath(name)}"/></svg>`;
    document.documentElement.style.setProperty(`--pattern-${name}`, `url("data:image/svg+xml,${encodeURIComponent(tile)}")`);
  }
}

/** Colour and pattern of a number as a background, which follows the theme. @param {number} number */
export function paint(number) {
  const plain = `var(--colour-${COLOURS[number] ?? "other"})`;
  return PATTERNS[number] ? `var(--pattern-${PATTERNS[number]}), ${plain}` : plain;
}

/** Red, green and blue from 0 to 1. @param {string} text a colour as #rrggbb @returns {[number, number, number]} */
export function channels(text) {
  const value = parseInt(text.slice(1), 16);
  return [((value >> 16) & 255) / 255, ((value >> 8) & 255) / 255, (value & 255) / 255];
}

/** How much lighter or darker slices of one name are drawn, from -1 to 1. @param {number} name */
export function shadeOf(name) {
  return (Math.imul(name + 1, 2654435761) >>> 24) / 127.5 - 1;
}
