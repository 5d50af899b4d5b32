// @ts-check
/** The elements of the timeline: canvases above each other, axis, minimap, titles. */

import { h } from "../dom.js";
import { legend } from "./legend.js";

export const AXIS = 26;

export class Surface {
  /** @param {any} overview */
  constructor(overview) {
    this.ground = h("canvas", { class: "layer", "aria-hidden": "true" });
    this.slices = h("canvas", { class: "layer", "aria-hidden": "true" });
    this.over = h("canvas", { class: "layer", "aria-hidden": "true" });
    /** What is selected, for who cannot see it. */
    this.said = h("div", { class: "only-read", role: "status", id: "timeline-said" });
    this.pane = h("div", { class: "surface", tabindex: "0", role: "application", "aria-label": "Timeline: full stop and comma go from slice to slice, up and down from row to row, F zooms to the slice, Escape lets it go", "aria-describedby": "timeline-said" }, this.ground, this.slices, this.over, overview.events ? null : h("p", { class: "nothing" }, "This trace holds no events: nothing was recorded between the start and the stop of its profiler."));
    this.axis = h("canvas", { class: "axis", "aria-hidden": "true" });
    this.map = h("canvas", { class: "minimap", "aria-hidden": "true" });
    this.titles = h("div", { class: "lane-headers" });
    this.filter = h("input", { type: "search", class: "lane-filter", placeholder: "Filter lanes", "aria-label": "Filter lanes" });
    this.tip = h("div", { class: "tip", role: "status" });
    const corner = h("div", { class: "corner" }, this.filter);
    const top = h("div", { class: "top" }, this.map, this.axis);
    this.element = h("div", { class: "timeline is-shrunk" }, corner, top, this.pane, this.titles, legend(overview), this.tip, this.said);
  }

  /** Gives every canvas the pixels of its place. @returns {[number, number] | null} width and height; null while it has no place */
  resize() {
    const width = this.pane.clientWidth;
    const height = this.pane.clientHeight;
    if (!width || !height) return null;
    const ratio = devicePixelRatio || 1;
    for (const canvas of [this.slices, this.ground, this.over]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.axis.width = Math.round(width * ratio);
    this.axis.height = Math.round(AXIS * ratio);
    return [width, height];
  }

  /** What draws into a canvas, in CSS pixels. @param {HTMLCanvasElement} canvas */
  context(canvas) {
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const ratio = this.over.width / (this.pane.clientWidth || 1);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  }
}
