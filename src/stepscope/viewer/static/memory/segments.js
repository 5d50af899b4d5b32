// @ts-check
/** The allocator's segments at a moment, each as a strip of what lies in it. */

import { h } from "../dom.js";
import { token, whileShown } from "../theme.js";
import { count, share, size } from "../units.js";
import { memoryWord } from "../memory-colours.js";
import { memoryColour } from "./paint.js";

const HEIGHT = 13;
const FIRST = 20;

/** @param {any} found what the server says; null: there are no segments @param {(allocation: number) => void} pick */
export function segmentMap(found, pick) {
  if (!found || !found.segments.length) return null;
  const widest = found.segments[0].size_bytes;
  const strips = found.segments.map((/** @type {any} */ one) => segment(one, widest, pick));
  const holder = h("div", {}, ...strips.slice(0, FIRST));
  const more = strips.length > FIRST ? h("button", { type: "button", class: "quiet", onclick: (/** @type {any} */ event) => { holder.append(...strips.slice(FIRST)); event.target.remove(); } }, `Show ${strips.length - FIRST} more`) : null;
  return h(
    "section", { class: "segments" }, h("h3", {}, "Segments, the largest first"),
    h("p", { class: "note" }, "Each strip is memory that the allocator had of the device. What has no colour is free."),
    holder, more,
    found.others ? h("p", { class: "note" }, `${count(found.others)} smaller ones of ${size(found.others_bytes)} in all are left out.`) : null,
  );
}

/** @param {any} one @param {number} widest @param {(allocation: number) => void} pick */
function segment(one, widest, pick) {
  const canvas = h("canvas", { class: "segment" });
  const kind = [one.is_large === false ? "small" : "", one.is_expandable ? "expandable" : "", one.pool ? `pool ${one.pool}` : "", one.stream ? "another stream" : ""].filter(Boolean).join(", ");
  const words = `${size(one.size_bytes)} at ${one.address}${kind ? ` (${kind})` : ""}: ${share(one.allocated_bytes / one.size_bytes)} in use`;
  const part = Math.max(0.06, one.size_bytes / widest);
  canvas.style.width = `${part * 100}%`;
  const draw = () => paintSegment(canvas, one);
  new ResizeObserver(draw).observe(canvas);
  whileShown(canvas, "theme-changed", draw);
  /** @param {MouseEvent} event */
  const at = (event) => {
    const offset = (event.offsetX / Math.max(canvas.clientWidth, 1)) * one.size_bytes;
    return one.cells.find((/** @type {any} */ cell) => offset >= cell[0] && offset < cell[0] + cell[1]);
  };
  canvas.addEventListener("pointermove", (event) => { canvas.title = cellWords(at(event), words); });
  canvas.addEventListener("click", (event) => {
    const allocation = at(event)?.[4];
    if (allocation !== null && allocation !== undefined) pick(allocation);
  });
  return h("div", { class: "segment-row", title: words }, canvas, h("span", { class: "number" }, `${size(one.size_bytes)} ${share(one.allocated_bytes / one.size_bytes)}`));
}

/** @param {any[] | undefined} cell @param {string} words */
function cellWords(cell, words) {
  if (!cell) return words;
  const [, all, held, category] = cell;
  if (!category) return `${size(all)} free\n${words}`;
  return `${size(held)} ${memoryWord(category)}${held < all ? ` of ${size(all)}` : ""}\n${words}`;
}

/** @param {HTMLCanvasElement} canvas @param {any} one */
function paintSegment(canvas, one) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(HEIGHT * ratio);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  context.fillStyle = token("paper-sunken");
  context.fillRect(0, 0, width, HEIGHT);
  for (const [start, all, held, category] of one.cells) {
    if (!category) continue;
    const x = (start / one.size_bytes) * width;
    context.fillStyle = memoryColour(context, category);
    const tall = HEIGHT * (held / all);
    context.fillRect(x, HEIGHT - tall, Math.max((all / one.size_bytes) * width - 0.4, 0.6), tall);
  }
}
