// @ts-check
/**
 * Draws slices without a graphics processor; the same picture as WebGL2.
 *
 * A timeline zoomed out has tens of thousands of slices on the screen, most of them a pixel wide.
 * Software WebGL and Canvas2D both pay for each by itself; here they are written straight into an
 * image. An item covers the pixels whose middle is in it, as in WebGL2.
 */

import { COLOURS, channels, colour, isLit, pattern, shadeOf, token } from "../theme.js";
import { itemsInView, rowsInView } from "./scenes.js";

const LIGHTEST = 0.16;
const DARKEST = 0.1;
/** How much of the colour the light parts of a pattern take from white. */
const LIT = 0.45;

export class CanvasRenderer {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.kind = "canvas2d";
    this._canvas = canvas;
    this._context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this._image = new ImageData(1, 1);
    this._pixels = new Uint32Array(this._image.data.buffer);
    /** @type {number[]} */
    this._paper = [];
    /** @type {number[][]} */
    this._palette = [];
    /** @type {WeakMap<import("./scenes.js").Scene, Uint32Array>} colours of the items of each scene */
    this._colours = new WeakMap();
    this.setColours();
  }

  /** Takes the tokens' colours. */
  setColours() {
    this._paper = channels(token("paper")).map((part) => part * 255);
    this._palette = COLOURS.map((_, number) => channels(colour(number)).map((part) => part * 255));
    this._colours = new WeakMap();
  }

  /**
   * @param {Iterable<import("./scenes.js").Scene>} scenes
   * @param {import("./camera.js").Camera} camera
   * @param {import("./layout.js").Layout} layout
   */
  draw(scenes, camera, layout) {
    const { width, height } = this._canvas;
    if (this._image.width !== width || this._image.height !== height) {
      this._image = new ImageData(width, height);
      this._pixels = new Uint32Array(this._image.data.buffer);
    }
    this._pixels.fill(0);
    for (const scene of scenes) this._scene(scene, camera, layout, width / camera.width);
    this._context.putImageData(this._image, 0, 0);
  }

  /**
   * @param {import("./scenes.js").Scene} scene
   * @param {import("./camera.js").Camera} camera
   * @param {import("./layout.js").Layout} layout
   * @param {number} ratio device pixels of a CSS pixel
   */
  _scene(scene, camera, layout, ratio) {
    const pixels = this._pixels;
    const across = this._image.width;
    const down = this._image.height;
    const { startNs, width, share, wide } = scene;
    const colours = this._coloursOf(scene, layout);
    const scale = ratio / camera.nsPerPixel;
    const offset = camera.x(scene.start) * ratio;
    for (const { slot, top, place } of rowsInView(scene, layout)) {
      const isArea = place.lane?.kind === "busy";
      const tall = (place.rowHeight - 1) * ratio;
      const bottom = Math.min(Math.ceil(top * ratio + tall - 0.5), down);
      const [first, end] = itemsInView(scene, slot, camera);
      for (let at = first; at < end; at++) {
        const x0 = offset + startNs[at] * scale;
        const drawn = width[at] * scale;
        const left = Math.max(Math.ceil(x0 - 0.5), 0);
        const right = Math.min(Math.ceil(x0 + Math.max(drawn > 4 * ratio ? drawn - ratio : drawn, ratio) - 0.5), across);
        if (right <= left) continue;
        // A bucket of narrow slices is as tall as the share of it that they cover, and never nothing.
        const part = wide[at] ? 1 : isArea ? share[at] : 0.35 + 0.65 * share[at];
        const fill = colours[at];
        const upper = Math.max(Math.ceil(top * ratio + tall * (1 - part) - 0.5), 0);
        let line = upper * across;
        const over = pattern(scene.colour[at]);
        if (over) {
          const lit = lighter(fill);
          for (let y = upper; y < bottom; y++) {
            for (let x = left; x < right; x++) pixels[y * across + x] = isLit(over, Math.floor(x / ratio), Math.floor(y / ratio)) ? lit : fill;
          }
          continue;
        }
        if (right - left > 8) {
          for (; line < bottom * across; line += across) pixels.fill(fill, line + left, line + right);
          continue;
        }
        for (; line < bottom * across; line += across) {
          for (let x = line + left; x < line + right; x++) pixels[x] = fill;
        }
      }
    }
  }

  /**
   * The colour of each item, computed when a scene is first drawn.
   * @param {import("./scenes.js").Scene} scene
   * @param {import("./layout.js").Layout} layout
   */
  _coloursOf(scene, layout) {
    const known = this._colours.get(scene);
    if (known) return known;
    const found = new Uint32Array(scene.startNs.length);
    const areas = layout.lanes.filter((lane) => lane.kind === "busy" && lane.rows_of === scene.of);
    scene.rows.forEach((row, slot) => {
      const isArea = areas.some((lane) => row >= lane.first_row && row < lane.first_row + lane.rows);
      for (let at = scene.offset[slot]; at < scene.offset[slot + 1]; at++) {
        const strength = scene.wide[at] || isArea ? 1 : 0.5 + 0.5 * scene.share[at];
        found[at] = this._mixed(scene.colour[at], isArea ? 0 : shadeOf(scene.name[at]), strength);
      }
    });
    this._colours.set(scene, found);
    return found;
  }

  /**
   * A colour in a shade of its own, as the image's bytes hold it.
   * @param {number} number
   * @param {number} shade from -1 to 1
   * @param {number} strength what is left of 1 is paper
   */
  _mixed(number, shade, strength) {
    const base = this._palette[number] ?? this._palette[0];
    const by = shade > 0 ? shade * LIGHTEST : -shade * DARKEST;
    const target = shade > 0 ? 255 : 0;
    let found = 0xff000000;
    for (let channel = 0; channel < 3; channel++) {
      const shaded = base[channel] + (target - base[channel]) * by;
      const paper = this._paper[channel];
      found |= Math.round(paper + (shaded - paper) * strength) << (8 * channel);
    }
    return found >>> 0;
  }
}

/** A colour as the light parts of a pattern have it. @param {number} fill as the image's bytes hold it */
function lighter(fill) {
  let found = 0xff000000;
  for (let at = 0; at < 24; at += 8) {
    const channel = (fill >>> at) & 255;
    found |= Math.round(channel + (255 - channel) * LIT) << at;
  }
  return found >>> 0;
}
