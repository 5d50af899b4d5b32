// @ts-check
/** Draws slices with Canvas2D, where the browser has no WebGL2; the same picture. */

import { colour, shadeOf } from "../theme.js";
import { itemsInView, rowsInView } from "./scenes.js";

export class CanvasRenderer {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.kind = "canvas2d";
    this._canvas = canvas;
    this._context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  }

  /** Colours are read at each drawing. */
  setColours() {}

  /**
   * @param {Iterable<import("./scenes.js").Scene>} scenes
   * @param {import("./camera.js").Camera} camera
   * @param {import("./layout.js").Layout} layout
   * @param {number} height in CSS pixels
   */
  draw(scenes, camera, layout, height) {
    const context = this._context;
    const ratio = this._canvas.width / camera.width;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, camera.width, height);
    for (const scene of scenes) this._scene(scene, camera, layout);
    context.globalAlpha = 1;
  }

  /**
   * @param {import("./scenes.js").Scene} scene
   * @param {import("./camera.js").Camera} camera
   * @param {import("./layout.js").Layout} layout
   */
  _scene(scene, camera, layout) {
    const context = this._context;
    const scale = 1 / camera.nsPerPixel;
    const offset = camera.x(scene.start);
    for (const { slot, top, place } of rowsInView(scene, layout)) {
      const isArea = place.lane?.kind === "busy";
      const tall = place.rowHeight - 1;
      let last = -1;
      const [first, end] = itemsInView(scene, slot, camera);
      for (let at = first; at < end; at++) {
        const width = scene.width[at] * scale;
        const x = offset + scene.startNs[at] * scale;
        if (scene.colour[at] !== last) {
          last = scene.colour[at];
          context.fillStyle = colour(last);
        }
        const share = scene.share[at];
        const isWide = scene.wide[at] > 0;
        const part = isWide ? 1 : isArea ? share : 0.35 + 0.65 * share;
        context.globalAlpha = isArea ? 1 : isWide ? 0.88 + 0.12 * shadeOf(scene.name[at]) : 0.5 + 0.5 * share;
        const drawn = Math.max(width > 4 ? width - 1 : width, 1);
        context.fillRect(x, top + tall * (1 - part), drawn, tall * part);
      }
    }
  }
}
