// @ts-check
/** The colour and the name of each category of memory, the same in viewer and reports. */

const CATEGORIES = new Set([
  "parameter", "buffer", "gradient", "optimizer-state", "cache", "activation", "input", "temporary", "workspace", "communication", "unknown",
]);
/** What is drawn over the colours of some, so that each is told from all others. */
const PATTERNS = /** @type {Record<string, import("./theme.js").Pattern>} */ ({
  buffer: "stripes", temporary: "stripes", workspace: "dots", communication: "dots", cache: "lines",
});
/** For names that are no categories, such as the phases of a run's own timeline. */
const OTHERS = ["compute", "communication", "copy", "operator", "annotation", "call", "idle-python", "idle-compilation", "idle-garbage-collection"];

/** The pattern of a category; undefined for plain colours. @param {string} category */
export function memoryPattern(category) {
  return PATTERNS[category];
}

/** Colour and pattern of a category as a background. @param {string} category @param {number} [place] */
export function memoryPaint(category, place = 0) {
  const over = PATTERNS[category];
  return over ? `var(--pattern-${over}), ${memoryFill(category, place)}` : memoryFill(category, place);
}

/**
 * A category's colour as a value for a style, which follows the theme. Names come from untrusted files.
 * @param {string} category
 * @param {number} [place] where it stands among others
 */
export function memoryFill(category, place = 0) {
  const slug = category.toLowerCase().replaceAll(/[_ ]/g, "-");
  return `var(--colour-${CATEGORIES.has(slug) ? `memory-${slug}` : OTHERS[place % OTHERS.length]})`;
}

const OF_LINES = ["parameter", "activation", "gradient", "input", "optimizer_state", "cache", "buffer", "temporary", "communication", "workspace"];

/** The category whose colour and pattern the line of a place has; "unknown" for lines without one. @param {number} place @param {number} lines */
export function lineCategory(place, lines) {
  return place >= 0 && place < Math.min(lines, OF_LINES.length) ? OF_LINES[place] : "unknown";
}

/** Colour and pattern of a line as a background. @param {number} place @param {number} lines */
export function linePaint(place, lines) {
  return memoryPaint(lineCategory(place, lines));
}

/** What a category is called. @param {string} category */
export function memoryWord(category) {
  return category.replaceAll("_", " ");
}
