// @ts-check
/** The timeline: puts camera, layout, slices, counters, titles and mouse together. */

import { getJson } from "../api.js";
import { oncePerFrame } from "../dom.js";
import { Names } from "../names.js";
import { token } from "../theme.js";
import { duration } from "../units.js";
import { arrowsOf, paintArrows } from "./arrows.js";
import { drawAxis } from "./axis.js";
import { Camera } from "./camera.js";
import { CanvasRenderer } from "./canvas.js";
import { CounterTiles } from "./counters.js";
import { GlRenderer } from "./gl.js";
import { flagAt, paintFlags, paintMarks } from "./flags.js";
import { Headers } from "./headers.js";
import { listen } from "./input.js";
import { Layout } from "./layout.js";
import { Minimap } from "./minimap.js";
import { paintCounter, paintFrame, paintGround, paintHits, paintLabels, paintPath, paintRange } from "./paint.js";
import { wantVisible } from "./needs.js";
import { Scenes } from "./scenes.js";
import { AXIS, Surface } from "./surface.js";
import { showTip } from "./tip.js";

export class Timeline {
  /**
   * @param {string} trace id of the trace
   * @param {any} overview what the server says of it
   * @param {import("../selection.js").Selection} selection
   * @param {(event: any) => void} picked called with what was clicked: an event, a gap, or null
   */
  constructor(trace, overview, selection, picked) {
    this.trace = trace;
    this.overview = overview;
    this.selection = selection;
    this._picked = picked;
    this.camera = new Camera(overview.end_ns);
    this.layout = new Layout(overview.lanes);
    this.redraw = oncePerFrame(() => this._draw());
    this.scenes = new Scenes(trace, this.redraw);
    this.counterTiles = new CounterTiles(trace, this.redraw);
    this.names = new Names(trace, this.redraw);
    /** @type {Set<number>} names that were searched for */
    this.hits = new Set();
    /** @type {import("./flags.js").Flag[]} findings with a place, notes, and rows of a query */
    this.flags = [];
    /** @type {import("./paint.js").CriticalPath | null} */
    this.path = null;
    /** @type {import("./paint.js").Mark | null} */
    this._hovered = null;
    /** @type {import("./paint.js").Mark | null} */
    this._selected = null;
    /** @type {import("./arrows.js").Arrow[]} */
    this._arrows = [];
    /** @type {[number, number] | null} */
    this._dragged = null;
    this.frames = 0;
    this.lastFrameMs = 0;
    const surface = new Surface(overview);
    this._surface = surface;
    this.element = surface.element;
    this._headers = new Headers(surface.titles, this.layout, () => this._layoutChanged());
    const wanted = new URLSearchParams(location.search).get("renderer");
    this._renderer = (wanted === "canvas2d" ? null : GlRenderer.create(surface.slices, wanted === "webgl2")) ?? new CanvasRenderer(surface.slices);
    this.minimap = new Minimap(surface.map, trace, this.camera, () => this._moved());
    this._watch = new ResizeObserver(() => this._resize());
    this._restore();
    this._ends = [
      listen(surface.pane, this._handlers()),
      selection.onChange((changed) => this._selectionChanged(changed)),
    ];
    const repaint = () => {
      this._renderer.setColours();
      this.minimap.repaint();
      this.redraw();
    };
    window.addEventListener("theme-changed", repaint);
    // What WebGL has drawn can be read until the frame ends.
    const drawNow = () => this._draw();
    window.addEventListener("draw-now", drawNow);
    this._listenToTitles();
    this._watch.observe(surface.pane);
    this._ends.push(() => window.removeEventListener("theme-changed", repaint), () => window.removeEventListener("draw-now", drawNow));
  }

  _listenToTitles() {
    const { titles, filter, axis } = this._surface;
    axis.addEventListener("pointermove", (event) => {
      const flag = flagAt(this.flags, event.offsetX, this.camera);
      axis.title = flag?.title ?? "";
      axis.style.cursor = flag ? "pointer" : "default";
    });
    axis.addEventListener("click", (event) => {
      const flag = flagAt(this.flags, event.offsetX, this.camera);
      if (flag) this.selection.set({ range: `${Math.floor(flag.start_ns)}-${Math.ceil(flag.end_ns)}` });
    });
    titles.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.layout.scrollTo(this.layout.scroll + event.deltaY);
      this.redraw();
    }, { passive: false });
    filter.addEventListener("input", () => {
      this.layout.filter = filter.value;
      this.layout.scroll = 0;
      this._layoutChanged();
    });
  }

  /** What draws the slices: "webgl2" or "canvas2d". */
  get renderer() {
    return this._renderer.kind;
  }

  /** Whether everything that the screen needs has come and is drawn. */
  get isSettled() {
    return this.frames > 0 && this.scenes.isSettled;
  }

  _restore() {
    const { selection, layout, camera } = this;
    for (const key of selection.words("pin")) layout.pinned.add(key);
    for (const key of selection.words("fold")) (key.startsWith("+") ? layout.opened.add(key.slice(1)) : layout.folded.add(key));
    layout.filter = selection.get("lanes");
    this._surface.filter.value = layout.filter;
    layout.arrange();
    const from = selection.number("from");
    const to = selection.number("to");
    if (from !== null && to !== null && to > from) camera.show(from, to);
    else this._showTypicalStep();
  }

  /** Shows the whole trace, or its first steps where it has many. */
  _showTypicalStep() {
    const { steps } = this.overview;
    if (steps.length > 6) this.camera.frame(steps[1].start_ns, steps[4].end_ns);
    else this.camera.showAll();
  }

  /** Loads what comes after the slices. @param {any} extras */
  addExtras(extras) {
    this.layout.addExtras(extras.lanes, extras.counters);
    this.redraw();
  }

  /** Takes what the overview says now: lanes and colours of what was worked out after the first picture. */
  refresh() {
    this.layout.lanes = this.overview.lanes;
    this.layout.arrange();
    this.names.forget();
    this.scenes.forget();
    this.minimap.load(this.overview.lanes).catch(() => {});
    this.redraw();
  }

  /** Starts drawing. */
  start() {
    this._resize();
    this.minimap.load(this.overview.lanes).catch(() => {});
    this._selectEventOfLink();
  }

  /** Ends listening. */
  close() {
    for (const end of this._ends) end();
    this._watch.disconnect();
    this.element.remove();
  }

  _resize() {
    const size = this._surface.resize();
    if (!size) return;
    [this.camera.width, this.layout.viewHeight] = size;
    this.layout.arrange();
    this._draw();
  }

  _layoutChanged() {
    const { layout, selection } = this;
    layout.arrange();
    selection.set({ lanes: layout.filter || null });
    selection.setWords("pin", layout.pinned);
    selection.setWords("fold", new Set([...layout.folded, ...[...layout.opened].map((key) => `+${key}`)]));
    this.redraw();
  }

  _moved() {
    this.selection.set({ from: Math.round(this.camera.start), to: Math.round(this.camera.end) });
    this.redraw();
  }

  /** Shows a range of time. @param {number} start @param {number} end */
  goTo(start, end) {
    this.camera.frame(start, end);
    this._moved();
  }

  /** @param {Set<string>} changed */
  _selectionChanged(changed) {
    if (changed.has("from") || changed.has("to")) {
      const from = this.selection.number("from");
      const to = this.selection.number("to");
      const isOurs = from === Math.round(this.camera.start) && to === Math.round(this.camera.end);
      if (from !== null && to !== null && to > from && !isOurs) this.camera.show(from, to);
    }
    if (changed.has("event")) this._selectEventOfLink();
    this.redraw();
  }

  _handlers() {
    return {
      camera: this.camera, layout: this.layout,
      moved: () => this._moved(),
      hover: (/** @type {number} */ x, /** @type {number} */ y) => this._hover(x, y),
      leave: () => this._leave(),
      click: (/** @type {number} */ x, /** @type {number} */ y) => this._click(x, y),
      doubleClick: (/** @type {number} */ x, /** @type {number} */ y) => {
        const mark = this._markAt(x, y);
        if (mark) this.goTo(mark.start_ns, mark.start_ns + mark.dur_ns);
      },
      select: (/** @type {number} */ from, /** @type {number} */ to, /** @type {boolean} */ isDone) => this._select(from, to, isDone),
      // What is selected first, then what is searched for.
      escape: () => this.selection.set(this.selection.get("event") || this.selection.get("range") ? { event: null, range: null } : { search: null }),
      focus: () => this._selected && this.goTo(this._selected.start_ns, this._selected.start_ns + this._selected.dur_ns),
      mark: () => {
        const [start, end] = this._selected ? [this._selected.start_ns, this._selected.start_ns + this._selected.dur_ns] : [this.camera.start, this.camera.end];
        this.selection.set({ range: `${Math.max(0, Math.floor(start))}-${Math.ceil(end)}` });
      },
      next: (/** @type {number} */ direction) => this._nextInRow(direction),
      row: (/** @type {number} */ direction) => this._nextRow(direction),
    };
  }

  /** @param {number} from @param {number} to @param {boolean} isDone */
  _select(from, to, isDone) {
    const first = Math.max(0, Math.floor(Math.min(from, to)));
    const last = Math.min(this.camera.endNs, Math.ceil(Math.max(from, to)));
    this._dragged = isDone ? null : [first, last];
    if (isDone && last > first) this.selection.set({ range: `${first}-${last}` });
    this.redraw();
  }

  /** The slice at a point. @param {number} x @param {number} y */
  _itemAt(x, y) {
    const place = this.layout.at(y);
    const lane = place?.lane;
    if (!place || !lane || (!place.pinned && y < this.layout.pinnedHeight)) return null;
    const row = Math.min(Math.floor((y - this.layout.screenY(place)) / place.rowHeight), place.rows - 1);
    const found = this.scenes.itemAt(lane.rows_of, lane.first_row + row, this.camera.ns(x), 2 * this.camera.nsPerPixel);
    return found ? { ...found, lane, row: lane.first_row + row } : null;
  }

  /** @param {number} x @param {number} y @returns {import("./paint.js").Mark | null} */
  _markAt(x, y) {
    const found = this._itemAt(x, y);
    if (!found) return null;
    const { scene, at, lane, row } = found;
    return { event: scene.event[at], of: lane.rows_of, row, start_ns: scene.start + scene.startNs[at], dur_ns: scene.width[at] };
  }

  /** @param {number} x @param {number} y */
  _hover(x, y) {
    const found = this._itemAt(x, y);
    const place = this.layout.at(y);
    this._hovered = found ? this._markAt(x, y) : null;
    showTip(this._surface.tip, { x, y, found, place, camera: this.camera, names: this.names, counters: this.counterTiles, surface: this._surface.pane });
    this._surface.pane.style.cursor = found ? "pointer" : "default";
    this.redraw();
  }

  _leave() {
    this._hovered = null;
    this._surface.tip.classList.remove("is-shown");
    this.redraw();
  }

  /** @param {number} x @param {number} y */
  _click(x, y) {
    this._surface.pane.focus();
    const found = this._itemAt(x, y);
    if (!found) {
      this.selection.set({ event: null });
      return;
    }
    const event = found.scene.event[found.at];
    if (found.lane.rows_of === "idle") this.selection.set({ event: `idle:${event}` });
    else if (found.lane.kind === "steps" || found.lane.kind === "device_steps") {
      const mark = this._markAt(x, y);
      const steps = this._stepsOf(found.lane);
      const step = steps[event];
      if (step) this.selection.set({ range: `${step.start_ns}-${step.end_ns}`, event: null });
      else if (mark) this.selection.set({ event: null });
    } else if (found.lane.rows_of === "events") this.selection.set({ event: String(event) });
  }

  /** @param {import("./layout.js").Lane} lane */
  _stepsOf(lane) {
    /** @type {{start_ns: number, end_ns: number, device?: number}[]} */
    const all = lane.kind === "steps" ? this.overview.steps : this.overview.device_steps.filter((/** @type {any} */ one) => one.device === lane.device);
    return [...all].sort((a, b) => a.start_ns - b.start_ns);
  }

  /** The next slice of the row; the first in view where none is selected. @param {number} direction */
  _nextInRow(direction) {
    const mark = this._selected;
    const scene = this.scenes.shown.get("events");
    if (!mark || !scene) {
      this._nextRow(1);
      return;
    }
    const slot = scene.slot.get(mark.row);
    if (mark.of !== "events" || slot === undefined) return;
    for (let at = scene.offset[slot]; at < scene.offset[slot + 1]; at++) {
      if (scene.event[at] !== mark.event) continue;
      const next = at + direction;
      if (next >= scene.offset[slot] && next < scene.offset[slot + 1]) this.selection.set({ event: String(scene.event[next]) });
      return;
    }
  }

  /**
   * The slice of the next row that has one in view, as near in time as can be; of the first row where none is selected.
   * @param {number} direction
   */
  _nextRow(direction) {
    const { layout, camera, _selected: mark } = this;
    const lanes = layout.places.flatMap(({ lane, rows }) => (lane?.rows_of === "events" && lane.kind !== "busy" ? Array.from({ length: rows }, (_, row) => lane.first_row + row) : []));
    const from = mark?.of === "events" ? lanes.indexOf(mark.row) : direction > 0 ? -1 : lanes.length;
    const middle = mark ? mark.start_ns + Math.min(mark.dur_ns, camera.span) / 2 : camera.start;
    for (let at = from + direction; at >= 0 && at < lanes.length; at += direction) {
      const found = this.scenes.itemAt("events", lanes[at], middle, camera.span);
      if (!found) continue;
      this.selection.set({ event: String(found.scene.event[found.at]) });
      return;
    }
  }

  /** Says what is selected, to who cannot see it. @param {any} found what the server says; null where nothing is selected */
  _say(found) {
    const lane = found?.lane_title ? `, in ${found.lane_title}` : "";
    const inside = found?.stack?.length ? `, inside ${found.stack.at(-1).name}` : "";
    const words = !found ? "" : found.cause ? `GPU ${found.device} idle: ${found.cause}` : `${found.name}${lane}${inside}`;
    this._surface.said.textContent = words && `${words}; ${duration(found.dur_ns)}, ${duration(found.start_ns)} after the first event`;
  }

  /** Shows what the address names. */
  async _selectEventOfLink() {
    const text = this.selection.get("event");
    this._selected = null;
    this._arrows = [];
    this.redraw();
    if (!text) {
      this._say(null);
      this._picked(null);
      return;
    }
    try {
      const isIdle = text.startsWith("idle:");
      const number = isIdle ? text.slice(5) : text;
      const path = `/api/traces/${this.trace}/${isIdle ? "gap" : "event"}`;
      const found = await getJson(path, isIdle ? { row: number } : { event: number });
      if (this.selection.get("event") !== text) return;
      this._say(found);
      if (isIdle) {
        const lane = this.layout.extraLanes.find((one) => one.device === found.device);
        if (lane) this._selected = { event: Number(number), of: "idle", row: lane.first_row, start_ns: found.start_ns, dur_ns: found.dur_ns };
        this._picked({ type: "gap", ...found });
      } else {
        if (found.drawn) {
          this._selected = { event: found.event, of: "events", row: found.row, start_ns: found.start_ns, dur_ns: found.dur_ns };
          this._bringIntoView(this._selected);
        }
        this._arrows = arrowsOf(found);
        this._picked({ type: "event", ...found });
      }
    } catch (error) {
      this._picked({ type: "error", message: error instanceof Error ? error.message : String(error) });
    }
    this.redraw();
  }

  /** Moves only as far as needed. @param {import("./paint.js").Mark} mark */
  _bringIntoView(mark) {
    const { camera } = this;
    const end = mark.start_ns + mark.dur_ns;
    const isOut = end < camera.start || mark.start_ns > camera.end;
    if (isOut) {
      const half = Math.max(camera.span / 2, mark.dur_ns);
      const middle = mark.start_ns + mark.dur_ns / 2;
      camera.show(middle - half, middle + half);
      this._moved();
    } else if (mark.dur_ns / camera.nsPerPixel < 1) {
      const middle = mark.start_ns + mark.dur_ns / 2;
      camera.show(middle - mark.dur_ns * 30, middle + mark.dur_ns * 30);
      this._moved();
    }
    this.layout.reveal(mark.of, mark.row);
  }

  _draw() {
    if (!this._surface.pane.clientWidth) return;
    const began = performance.now();
    const { camera, layout } = this;
    wantVisible(layout, camera, this.scenes, this.counterTiles);
    const width = camera.width;
    const height = layout.viewHeight;
    const ground = this._surface.context(this._surface.ground);
    paintGround(ground, camera, layout, height, this.overview.steps);
    const range = this._dragged ?? this.selection.range();
    if (range) paintRange(ground, range, camera, height, "tint");
    this._renderer.draw(this.scenes.shown.values(), camera, layout, height);
    const over = this._surface.context(this._surface.over);
    over.clearRect(0, 0, width, height);
    for (const place of layout.visible()) {
      if (place.counter) paintCounter(over, this.counterTiles.shown.get(place.counter.number), place, layout.screenY(place), camera);
    }
    paintLabels(over, this.scenes.shown.values(), camera, layout, this.names);
    if (range) paintRange(over, range, camera, height, "edges");
    paintMarks(over, this.flags, camera, height);
    paintHits(over, this.hits, this.scenes.shown.get("events"), camera, layout);
    if (this.path) paintPath(over, this.path, camera, layout);
    if (this._hovered) paintFrame(over, this._hovered, camera, layout, token("ink-soft"), 1);
    if (this._selected) paintFrame(over, this._selected, camera, layout, token("ink"), 2);
    paintArrows(over, this._arrows, camera, layout);
    const axis = this._surface.context(this._surface.axis);
    axis.clearRect(0, 0, width, AXIS);
    drawAxis(axis, camera, AXIS, { ink: token("ink-soft"), line: token("line-strong"), font: `${token("size-small")} ${token("font")}` });
    paintFlags(axis, this.flags, camera);
    this._headers.draw();
    this.minimap.draw();
    this.names.fetch();
    this.frames++;
    this.lastFrameMs = performance.now() - began;
  }
}
