// @ts-check
/** What is drawn over a colour so that it is told from others, in SVG pictures and on canvases. */

import { svg } from "../dom.js";
import { TILE, channels, isLit, litPath, token } from "../theme.js";

/** @typedef {import("../theme.js").Pattern} Pattern */

/** Fills that draw.css refers to: pattern-stripes, pattern-dots and pattern-lines. */
export function definitions() {
  const tiles = { patternUnits: "userSpaceOnUse", width: TILE, height: TILE };
  const names = /** @type {Pattern[]} */ (["stripes", "dots", "lines"]);
  return svg("defs", {}, ...names.map((name) => svg("pattern", { ...tiles, id: `pattern-${name}` }, svg("path", { class: "pattern-light", d: litPath(name) }))));
}

/** @type {Map<string, CanvasPattern>} */
const made = new Map();
window.addEventListener("theme-changed", () => made.clear());

/**
 * A colour with a pattern, to fill with.
 * @param {CanvasRenderingContext2D} context
 * @param {string} colour as #rrggbb
 * @param {Pattern | undefined} over
 * @returns {string | CanvasPattern}
 */
export function canvasPaint(context, colour, over) {
  if (!over) return colour;
  const key = `${over} ${colour}`;
  let found = made.get(key);
  if (!found) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = TILE;
    const on = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
    on.fillStyle = `rgb(${channels(colour).map((part) => Math.round(part * 255)).join(" ")})`;
    on.fillRect(0, 0, TILE, TILE);
    on.fillStyle = token("pattern-ink");
    for (let x = 0; x < TILE; x++) for (let y = 0; y < TILE; y++) if (isLit(over, x, y)) on.fillRect(x, y, 1, 1);
    found = /** @type {CanvasPattern} */ (context.createPattern(tile, "repeat"));
    made.set(key, found);
  }
  return found;
}
