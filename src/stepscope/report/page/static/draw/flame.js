// @ts-check
/**
 * A flame graph on a canvas: the root above, each node as wide as its time. A click zooms into a
 * node, and again on the root out of it. Each node has the colour of its slices in the timeline.
 *
 * With `delta`, nodes are coloured by how much they grew (warm) or shrank (cool) against another run.
 */

import { oncePerFrame, h } from "../dom.js";
import { channels, colour, shadeOf, token } from "../theme.js";
import { count, duration, fittingName, share, shortName, signed } from "../units.js";

/**
 * @typedef {{name: string[], parent: number[], self_ns: number[], total_ns: number[], count: number[],
 *   whole_ns: number, colour?: number[], delta?: number[], before?: number[], count_before?: number[], is_upward?: boolean}} FlameData
 *   `is_upward`: the root is below
 */

const ROW = 19;
const LEAST = 0.6;

/** Text as a number, for its shade. @param {string} text */
function hash(text) {
  let value = 0;
  for (let at = 0; at < text.length; at++) value = (Math.imul(value, 31) + text.charCodeAt(at)) | 0;
  return value >>> 0;
}

export class FlameGraph {
  /** @param {FlameData} data @param {((name: string) => void) | null} [both] shows who calls a name, and what that calls */
  constructor(data, both = null) {
    this._data = data;
    this._both = both;
    this._root = -1;
    this._found = "";
    this._hover = -1;
    this._arrange();
    this._canvas = h("canvas", { class: "flame-canvas", tabindex: "0", role: "application", "aria-label": "Flame graph: the arrow keys go from node to node, Enter zooms into one and again out of it, Escape out of all" });
    this._tip = h("div", { class: "tip", role: "status" });
    this._path = h("div", { class: "flame-path" });
    this.element = h("div", { class: "flame" }, this._path, h("div", { class: "flame-holder" }, this._canvas, this._tip));
    this.redraw = oncePerFrame(() => this._draw());
    this._canvas.addEventListener("click", (event) => this._zoom(this._at(event)));
    this._canvas.addEventListener("pointermove", (event) => this._say(this._at(event), event.offsetX + 14, event.offsetY + 18));
    this._canvas.addEventListener("keydown", (event) => this._key(event));
    for (const left of ["pointerleave", "blur"]) this._canvas.addEventListener(left, () => this._leave());
    new ResizeObserver(() => this.redraw()).observe(this.element);
    window.addEventListener("theme-changed", this.redraw);
    this.redraw();
  }

  /** Children, depth and place of each node, as shares of the whole. */
  _arrange() {
    const { parent, total_ns: total, whole_ns: whole } = this._data;
    const number = parent.length;
    this._depth = new Uint16Array(number);
    this._start = new Float64Array(number);
    this._size = new Float64Array(number);
    const used = new Float64Array(number);
    let roots = 0;
    for (let node = 0; node < number; node++) {
      const above = parent[node];
      this._size[node] = whole ? total[node] / whole : 0;
      if (above < 0) {
        this._start[node] = roots;
        roots += this._size[node];
      } else {
        this._depth[node] = this._depth[above] + 1;
        this._start[node] = this._start[above] + used[above];
        used[above] += this._size[node];
      }
    }
    this._deepest = this._depth.reduce((most, one) => Math.max(most, one), 0);
  }

  /** Marks the nodes whose name has a text in it. @param {string} text @returns {number} their share */
  find(text) {
    this._found = text.toLowerCase();
    this.redraw();
    if (!text) return 0;
    const { name, parent } = this._data;
    const hit = name.map((one) => one.toLowerCase().includes(this._found));
    // A node below another hit is counted with it.
    const within = new Uint8Array(name.length);
    let sum = 0;
    name.forEach((_, node) => {
      const above = parent[node];
      within[node] = hit[node] || (above >= 0 && within[above]) ? 1 : 0;
      if (hit[node] && !(above >= 0 && within[above])) sum += this._size?.[node] ?? 0;
    });
    return sum;
  }

  /** The part of the whole that is shown. @returns {[number, number]} */
  _view() {
    const start = this._start ?? [];
    const size = this._size ?? [];
    return this._root < 0 ? [0, 1] : [start[this._root], start[this._root] + size[this._root]];
  }

  /** Whether a node is the root that is zoomed into, or above it. @param {number} node */
  _isAbove(node) {
    for (let at = this._root; at >= 0; at = this._data.parent[at]) if (at === node) return true;
    return false;
  }

  _draw() {
    const width = this.element.clientWidth;
    if (!width || !this._depth || !this._start || !this._size) return;
    const height = ((this._deepest ?? 0) + 1) * ROW + 4;
    const ratio = devicePixelRatio || 1;
    const canvas = this._canvas;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(ratio, ratio);
    context.font = `${token("size-small")} ${token("font")}`;
    context.textBaseline = "middle";
    const [from, to] = this._view();
    const scale = width / (to - from || 1);
    const ink = token("slice-ink");
    const letter = context.measureText("n").width;
    for (let node = 0; node < this._data.name.length; node++) {
      const x0 = Math.max(0, (this._start[node] - from) * scale);
      const x1 = Math.min(width, (this._start[node] + this._size[node] - from) * scale);
      if (x1 - x0 < LEAST) continue;
      const y = this._row(this._depth[node]) * ROW;
      context.globalAlpha = this._isAbove(node) && node !== this._root ? 0.45 : 1;
      context.fillStyle = this._fill(node);
      context.fillRect(x0, y, Math.max(x1 - x0 - 0.7, 0.7), ROW - 1);
      const isHit = this._found && this._data.name[node].toLowerCase().includes(this._found);
      if (isHit || node === this._hover) {
        context.strokeStyle = token(isHit ? "hit" : "ink");
        context.lineWidth = isHit ? 2 : 1;
        context.strokeRect(x0 + 0.5, y + 0.5, Math.max(x1 - x0 - 2, 1), ROW - 2);
      }
      const room = x1 - x0 - 8;
      if (room < 20) continue;
      context.fillStyle = ink;
      context.fillText(fittingName(context, this._data.name[node], room, letter), x0 + 4, y + ROW / 2);
    }
    context.globalAlpha = 1;
    this._showPath();
  }

  /** The row of a depth, and the depth of a row. @param {number} depth */
  _row(depth) {
    return this._data.is_upward ? (this._deepest ?? 0) - depth : depth;
  }

  /** @param {number} node */
  _fill(node) {
    const name = this._data.name[node];
    if (this._data.delta) {
      const size = Math.max(this._data.total_ns[node], this._data.before?.[node] ?? 0, 1);
      const grown = Math.max(-1, Math.min(1, this._data.delta[node] / size));
      return mix(token("colour-step"), grown > 0 ? token("colour-idle-input") : token("colour-compute"), Math.min(1, Math.abs(grown) * 1.4));
    }
    const base = colour(this._data.colour?.[node] ?? 0);
    const shade = shadeOf(hash(name));
    return shade > 0 ? mix(base, "#ffffff", shade * 0.16) : mix(base, "#000000", -shade * 0.1);
  }

  /** Where one is, with a way out. */
  _showPath() {
    const { name, total_ns: total, whole_ns: whole } = this._data;
    const out = () => {
      this._root = -1;
      this.redraw();
    };
    this._path.replaceChildren(
      this._root < 0
        ? h("span", { class: "note" }, `${duration(whole)} in all`)
        : h("span", {}, h("button", { type: "button", onclick: out }, "Show all"), this._both ? h("button", { type: "button", onclick: () => this._both?.(name[this._root]) }, "Callers and callees") : null, ` ${shortName(name[this._root])}: ${duration(total[this._root])}`),
    );
  }

  /** @param {MouseEvent} event */
  _at(event) {
    if (!this._depth || !this._start || !this._size) return -1;
    const depth = this._row(Math.floor(event.offsetY / ROW));
    const [from, to] = this._view();
    const place = from + (event.offsetX / this.element.clientWidth) * (to - from);
    for (let node = 0; node < this._data.name.length; node++) {
      if (this._depth[node] === depth && place >= this._start[node] && place < this._start[node] + this._size[node]) return node;
    }
    return -1;
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    const { parent, is_upward: isUpward } = this._data;
    const at = this._hover;
    const beside = parent.flatMap((above, node) => (above === parent[at] ? [node] : []));
    const place = beside.indexOf(at);
    const keys = /** @type {Record<string, number | undefined>} */ ({
      ArrowLeft: beside[place - 1], ArrowRight: beside[place + 1],
      [isUpward ? "ArrowDown" : "ArrowUp"]: parent[at], [isUpward ? "ArrowUp" : "ArrowDown"]: parent.indexOf(at),
    });
    if (event.key === "Enter") this._zoom(at);
    else if (event.key === "Escape" && this._root >= 0) this._zoom(-1);
    else if (!(event.key in keys)) return;
    event.preventDefault();
    event.stopPropagation();
    const to = at < 0 ? Math.max(this._root, 0) : keys[event.key] ?? -1;
    const node = to < 0 ? this._hover : to;
    if (node < 0) return;
    const [from, end] = this._view();
    const left = Math.max(0, ((this._start?.[node] ?? 0) - from) / (end - from || 1));
    this._say(node, left * this.element.clientWidth, (this._row(this._depth?.[node] ?? 0) + 1) * ROW + 4);
  }

  /** Zooms into a node, or out of it again. @param {number} node */
  _zoom(node) {
    this._root = node === this._root ? (node < 0 ? -1 : this._data.parent[node]) : node;
    this.redraw();
  }

  /** Says what a node is, at a place. @param {number} node @param {number} x @param {number} y */
  _say(node, x, y) {
    if (node !== this._hover) {
      this._hover = node;
      this.redraw();
    }
    this._tip.classList.toggle("is-shown", node >= 0);
    if (node < 0) return;
    const { name, self_ns: own, total_ns: total, count: number, whole_ns: whole, delta, before, count_before: times } = this._data;
    this._tip.replaceChildren(
      h("div", { class: "tip-name" }, name[node].slice(0, 300)),
      ...(delta && before && times
        ? [
          h("div", { class: "tip-more" }, `${duration(before[node])} → ${duration(before[node] + delta[node])} per step (${signed(delta[node])})`),
          h("div", { class: "tip-more" }, `${rounded(times[node])}× → ${rounded(number[node])}× per step`),
        ]
        : [h("div", { class: "tip-more" }, `${duration(total[node])} (${share(whole ? total[node] / whole : 0)}), itself ${duration(own[node])}, ${count(number[node])}×`)]),
    );
    this._tip.style.left = `${Math.min(x, Math.max(0, this.element.clientWidth - this._tip.offsetWidth - 4))}px`;
    this._tip.style.top = `${y}px`;
  }

  _leave() {
    this._hover = -1;
    this._tip.classList.remove("is-shown");
    this.redraw();
  }
}

/** A mean number of times. @param {number} times */
function rounded(times) {
  return times < 10 && !Number.isInteger(times) ? times.toFixed(1) : count(Math.round(times));
}

/** A colour between two. @param {string} a @param {string} b @param {number} part */
function mix(a, b, part) {
  const [first, second] = [channels(a), channels(b)];
  return `rgb(${first.map((one, at) => Math.round((one + (second[at] - one) * part) * 255)).join(" ")})`;
}
