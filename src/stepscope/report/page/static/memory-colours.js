// @ts-check
/** The colour and the name of each category of memory, the same in viewer and reports. */

const CATEGORIES = new Set([
  "parameter", "buffer", "gradient", "optimizer-state", "cache", "activation", "input", "temporary", "workspace", "communication", "unknown",
]);
/** For names that are no categories, such as the phases of a run's own timeline. */
const OTHERS = ["compute", "communication", "copy", "operator", "annotation", "call", "idle-python", "idle-compilation", "idle-garbage-collection"];

/**
 * A category's colour as a value for a style, which follows the theme. Names come from untrusted files.
 * @param {string} category
 * @param {number} [place] where it stands among others
 */
export function memoryPaint(category, place = 0) {
  const slug = category.toLowerCase().replaceAll(/[_ ]/g, "-");
  return `var(--colour-${CATEGORIES.has(slug) ? `memory-${slug}` : OTHERS[place % OTHERS.length]})`;
}

/** What a category is called. @param {string} category */
export function memoryWord(category) {
  return category.replaceAll("_", " ");
}
