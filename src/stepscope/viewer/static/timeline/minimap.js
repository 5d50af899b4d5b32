// @ts-check
/** The whole trace on a strip: how busy each GPU is (or the host's main thread), and where one is. */

import { getColumns } from "../api.js";
import { h } from "../dom.js";
import { colour, token } from "../theme.js";

const HEIGHT = 34;

export class Minimap {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {string} trace
   * @param {import("./camera.js").Camera} camera
   * @param {() => void} moved called when the camera was moved
   */
  constructor(canvas, trace, camera, moved) {
    this._canvas = canvas;
    this._trace = trace;
    this._camera = camera;
    /** @type {{share: Float32Array, colour: number}[]} */
    this._rows = [];
    /** @type {number[]} */
    this._density = [];
    /** @type {HTMLCanvasElement | null} */
    this._picture = null;
    let isDown = false;
    /** @param {PointerEvent} event */
    const go = (event) => {
      const at = (event.offsetX / canvas.clientWidth) * camera.endNs;
      camera.show(at - camera.span / 2, at + camera.span / 2);
      moved();
    };
    canvas.addEventListener("pointerdown", (event) => {
      isDown = true;
      canvas.setPointerCapture(event.pointerId);
      go(event);
    });
    canvas.addEventListener("pointermove", (event) => isDown && go(event));
    canvas.addEventListener("pointerup", () => (isDown = false));
  }

  /** @param {import("./layout.js").Lane[]} lanes */
  async load(lanes) {
    const busy = lanes.filter((lane) => lane.kind === "busy");
    const chosen = busy.length ? busy.slice(0, 8) : lanes.filter((lane) => lane.kind === "thread").slice(0, 1);
    const level = Math.max(0, Math.ceil(Math.log2(this._camera.endNs / 1200)));
    /** @type {{share: Float32Array, colour: number}[]} */
    const rows = [];
    for (const lane of chosen) {
      const buckets = Math.ceil(this._camera.endNs / 2 ** level) + 1;
      const params = { of: lane.rows_of, rows: String(lane.first_row), start: 0, level, buckets };
      const { columns } = await getColumns(`/api/traces/${this._trace}/slices`, params);
      const share = new Float32Array(buckets + 1);
      const step = 2 ** level;
      for (let at = 0; at < columns.start.length; at++) {
        const first = columns.start[at] / step;
        const last = (columns.start[at] + columns.width[at]) / step;
        for (let bucket = Math.floor(first); bucket < last && bucket < share.length; bucket++) {
          const part = Math.min(last, bucket + 1) - Math.max(first, bucket);
          share[bucket] = Math.min(1, share[bucket] + part * columns.share[at]);
        }
      }
      rows.push({ share, colour: lane.kind === "busy" ? 1 : 5 });
    }
    this._rows = rows;
    this.repaint();
  }

  /** Marks where the hits of a search are. @param {number[]} density hits in equal parts of the trace */
  mark(density) {
    this._density = density;
    this.repaint();
  }

  /** Paints everything again, as after a change of colours. */
  repaint() {
    this._picture = null;
    this.draw();
  }

  /** Draws where one is; the picture of the trace is kept. */
  draw() {
    const canvas = this._canvas;
    const ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    if (!width) return;
    const across = Math.round(width * ratio), down = Math.round(HEIGHT * ratio);
    if (canvas.width !== across || canvas.height !== down) {
      canvas.width = across;
      canvas.height = down;
      this._picture = null;
    }
    this._picture ??= this._painted(width, ratio);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this._picture, 0, 0);
    context.scale(ratio, ratio);
    const camera = this._camera;
    const x0 = Math.max(0, (camera.start / camera.endNs) * width);
    const x1 = Math.min(width, (camera.end / camera.endNs) * width);
    context.fillStyle = token("paper");
    context.globalAlpha = 0.62;
    context.fillRect(0, 0, x0, HEIGHT);
    context.fillRect(x1, 0, width - x1, HEIGHT);
    context.globalAlpha = 1;
    context.strokeStyle = token("accent");
    context.lineWidth = 1.5;
    context.strokeRect(x0 + 0.75, 0.75, Math.max(x1 - x0 - 1.5, 3), HEIGHT - 1.5);
  }

  /** How busy each part of the trace is, and where hits are. @param {number} width in CSS pixels @param {number} ratio */
  _painted(width, ratio) {
    const picture = h("canvas", { width: this._canvas.width, height: this._canvas.height });
    const context = /** @type {CanvasRenderingContext2D} */ (picture.getContext("2d"));
    context.scale(ratio, ratio);
    context.fillStyle = token("paper-sunken");
    context.fillRect(0, 0, width, HEIGHT);
    const tall = (HEIGHT - 4) / Math.max(1, this._rows.length);
    this._rows.forEach(({ share, colour: number }, row) => {
      context.fillStyle = colour(number);
      // One column per pixel, from the buckets that fall into it: no moiré.
      const step = (share.length - 2) / width;
      for (let x = 0; x < width; x++) {
        const first = Math.floor(x * step);
        const last = Math.max(first + 1, Math.floor((x + 1) * step));
        let sum = 0;
        for (let at = first; at < last; at++) sum += share[at];
        const part = sum / (last - first);
        if (part > 0) context.fillRect(x, 2 + row * tall + (1 - part) * (tall - 1), 1, part * (tall - 1));
      }
    });
    context.fillStyle = token("hit");
    const most = Math.max(1, ...this._density);
    this._density.forEach((count, at) => {
      if (count) context.fillRect((at / this._density.length) * width, HEIGHT - 3 - (count / most) * 5, Math.max(2, width / this._density.length), 3 + (count / most) * 5);
    });
    return picture;
  }
}
