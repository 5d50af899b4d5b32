// @ts-check
/** Memory over time, its state at a moment, and single allocations: of a snapshot, or of the host in a trace. */

import { getJson, isAbort } from "../api.js";
import { h, replace } from "../dom.js";
import { answer } from "./answer.js";
import { titleOf, untilReady } from "../loading.js";
import { MemoryChart } from "../memory/chart.js";
import { linePaint, memoryPaint, memoryWord } from "../memory-colours.js";
import { allocationOf, stateOf } from "../memory/panel.js";
import { count, plural, size } from "../units.js";

const STAGES = /** @type {import("../loading.js").Stages} */ ([["reading", "Reading the snapshot"], ["arranging", "Arranging the allocations"]]);
const PANELS = /** @type {[string, string][]} */ ([["moment", "Moment"], ["allocation", "Allocation"]]);

/**
 * Memory: of a snapshot, of the host in a trace, and of a trace's GPUs what their events tell.
 * @param {import("../main.js").Context} context
 * @returns {import("../main.js").View}
 */
export function memoryView(context) {
  const { selection, overview, trace } = context;
  if (!overview?.has_gpu_memory) return new MemoryView(context);
  const tabs = h("div", { class: "tabs memory-whose", role: "group", "aria-label": "Whose memory" });
  const place = h("div", { class: "memory-place" });
  /** @type {import("../main.js").View | null} */
  let inner = null;
  const show = () => {
    inner?.close();
    const isHost = selection.number("device") === -1 && overview.has_memory;
    const kinds = /** @type {[string, number | null][]} */ ([["GPU", null], ["Host", -1]]);
    replace(tabs, ...(overview.has_memory ? kinds.map(([title, device]) => h("button", { type: "button", "aria-pressed": String(isHost === (device === -1)), onclick: () => selection.set({ device, at: null, allocation: null, m_from: null, m_to: null }) }, title)) : []));
    inner = isHost ? new MemoryView(context) : gpuMemory(trace, selection);
    replace(place, inner.element);
  };
  const end = selection.onChange((changed) => {
    if (changed.has("device")) show();
  });
  show();
  return { element: h("div", { class: "memory-both" }, tabs, place), close: () => { end(); inner?.close(); } };
}

/** @param {string} trace @param {import("../selection.js").Selection} selection @returns {import("../main.js").View} */
function gpuMemory(trace, selection) {
  const asking = new AbortController();
  const element = h("div", { class: "view" }, h("p", { class: "note" }, "Following the memory…"));
  getJson(`/api/traces/${trace}/table`, { question: "memory" }, asking.signal).then((found) => {
    replace(element, ...answer(found, selection, "What the trace's memory events tell; a snapshot (memory_history=True) also shows whose each block is."));
    element.dataset.ready = "memory";
  }).catch((error) => {
    if (!isAbort(error)) replace(element, h("p", { class: "error" }, String(error.message)));
  });
  return { element, close: () => asking.abort() };
}

export class MemoryView {
  /** @param {import("../main.js").Context} context */
  constructor(context) {
    this._context = context;
    this._head = h("div", { class: "view-head memory-head" });
    this._main = h("div", { class: "memory-main is-shrunk" });
    this._tabs = h("div", { class: "tabs" });
    /** @type {Record<string, HTMLElement>} */
    this._panels = {};
    for (const [key] of PANELS) this._panels[key] = h("div", { class: "panel", "data-panel": key });
    this.element = h("div", { class: "view memory-view" }, h("div", { class: "memory-left" }, this._head, this._main), h("aside", { class: "side" }, this._tabs, ...Object.values(this._panels)));
    /** @type {MemoryChart | null} */
    this.chart = null;
    /** @type {any} */
    this._about = null;
    this._isClosed = false;
    /** @type {AbortController | null} */
    this._asking = null;
    this._end = context.selection.onChange((changed) => {
      if (["device", "axis", "colour"].some((key) => changed.has(key))) this._load();
      else if (["at", "allocation"].some((key) => changed.has(key))) this._choose();
    });
    this._choosePanel("moment");
    this._open();
  }

  close() {
    this._isClosed = true;
    this._end();
    this._asking?.abort();
    this.chart?.close();
  }

  /** The moment that is shown first: the last request that failed, else the peak. */
  get _first() {
    return this._about.failed.length ? "oom" : "peak";
  }

  get _path() {
    return `/api/traces/${this._context.trace}/memory`;
  }

  /** Waits until the memory is read. */
  async _open() {
    const { traces, trace } = this._context;
    try {
      if (await untilReady(this._main, `${this._path}/open`, titleOf(traces, trace), STAGES, () => this._isClosed)) await this._load();
    } catch (error) {
      this._failed(error);
    }
  }

  async _load() {
    const { selection, trace } = this._context;
    try {
      const about = await getJson(this._path, { device: selection.number("device") });
      if (this._isClosed) return;
      this._about = about;
      about.by = selection.get("colour", about.is_mostly_unknown ? "line" : "category");
      const axis = about.has_times && selection.get("axis") !== "events" ? "time" : "events";
      this.chart?.close();
      this.chart = new MemoryChart({
        trace, about, axis,
        picked: (event, allocation) => selection.set({ at: `event ${event}`, allocation }),
        moved: (start, end) => selection.set({ m_from: Math.floor(start), m_to: Math.ceil(end) }),
        toPeak: () => selection.set({ at: "peak", allocation: null }),
        clear: () => selection.set({ allocation: null }),
        failed: (error) => this._failed(error),
      });
      const [from, to] = [selection.number("m_from"), selection.number("m_to")];
      if (from !== null && to !== null) this.chart.camera.show(from, to);
      this._showHead(axis);
      replace(this._main, this.chart.element);
      await this._choose();
    } catch (error) {
      this._failed(error);
    }
  }

  /** @param {import("../memory/columns.js").Axis} axis */
  _showHead(axis) {
    const { selection } = this._context;
    const about = this._about;
    const device = (/** @type {number} */ one) => (one < 0 ? "host" : `GPU ${one}`);
    const reset = { m_from: null, m_to: null, at: null, allocation: null };
    const devices = about.devices.length > 1
      ? h("select", { "aria-label": "Device", onchange: (/** @type {any} */ event) => selection.set({ device: event.target.value, ...reset }) }, ...about.devices.map((/** @type {number} */ one) => h("option", { value: one, selected: one === about.device }, device(one))))
      : h("strong", {}, device(about.device));
    const axes = /** @type {[string, string][]} */ ([["time", "Time"], ["events", "Events"]]).map(([key, title]) => h("button", { type: "button", disabled: key === "time" && !about.has_times, "aria-pressed": String(key === axis), onclick: () => selection.set({ axis: key === "time" ? null : key, m_from: null, m_to: null }) }, title));
    const goTo = (/** @type {string} */ title, /** @type {string | null} */ at) => h("button", { type: "button", onclick: () => selection.set({ at, allocation: null }) }, title);
    const colours = /** @type {[string, string][]} */ ([["category", "By category"], ["line", "By line"]]).map(([key, title]) => h("button", { type: "button", "aria-pressed": String(key === about.by), onclick: () => selection.set({ colour: key }) }, title));
    const last = about.failed.at(-1);
    replace(
      this._head, last ? h("p", { class: "verdict" }, `Out of memory: a request for ${size(last.size_bytes)} failed${about.failed.length > 1 ? `, the last of ${count(about.failed.length)}` : ""}.`) : null, devices, h("div", { class: "tabs", role: "group", "aria-label": "Axis" }, ...axes), h("div", { class: "tabs", role: "group", "aria-label": "Colour" }, ...colours),
      goTo("Peak", "peak"), goTo("Start", "start"), goTo("End", "end"), about.failed.length ? goTo(`Out of memory${about.failed.length > 1 ? ` (${about.failed.length})` : ""}`, "oom") : null,
      h("span", { class: "note" }, `peak ${size(about.peak.allocated_bytes)} allocated, ${size(about.peak.reserved_bytes)} reserved · ${plural(about.events, "event")}`),
      h("ul", { class: "memory-legend" }, ...(about.by === "line" ? [...about.lines, "other lines"].map((/** @type {string} */ one, /** @type {number} */ at) => legend(one, linePaint(at, about.lines.length))) : about.categories.map((/** @type {string} */ one) => legend(memoryWord(one), memoryPaint(one)))), h("li", {}, h("span", { class: "memory-reserved" }), "reserved")),
    );
  }

  /** Shows the chosen moment and allocation. */
  async _choose() {
    const { selection } = this._context;
    const { chart } = this;
    if (!chart) return;
    this._asking?.abort();
    this._asking = new AbortController();
    const signal = this._asking.signal;
    const allocation = selection.number("allocation");
    const { moment, allocation: panel } = this._panels;
    delete moment.dataset.ready;
    chart.picked = allocation;
    chart.redraw();
    try {
      const pick = (/** @type {number} */ number) => selection.set({ allocation: number });
      const state = await getJson(`${this._path}/state`, { device: this._about.device, at: selection.get("at", this._first) }, signal);
      chart.moment = this._about.has_times && selection.get("axis") !== "events" ? (state.time_ns ?? this._about.first_ns) : state.row;
      chart.redraw();
      replace(moment, ...stateOf(state, pick));
      moment.dataset.ready = String(state.event);
      if (allocation === null) replace(panel, h("p", { class: "note" }, "Click an allocation to see who asked for it, when, and for how long."));
      else {
        replace(panel, ...allocationOf(await getJson(`${this._path}/allocation`, { number: allocation }, signal), this._about.has_times));
        panel.dataset.allocation = String(allocation);
      }
      this._choosePanel(allocation === null ? "moment" : "allocation");
      this.element.dataset.ready = "1";
    } catch (error) {
      if (!isAbort(error)) replace(moment, h("p", { class: "error" }, String(/** @type {Error} */ (error).message)));
    }
  }

  /** @param {string} key */
  _choosePanel(key) {
    replace(this._tabs, ...PANELS.map(([one, title]) => h("button", { type: "button", "aria-pressed": String(one === key), onclick: () => this._choosePanel(one) }, title)));
    for (const [one, panel] of Object.entries(this._panels)) panel.hidden = one !== key;
  }

  /** @param {unknown} error */
  _failed(error) {
    if (!this._isClosed && !isAbort(error)) replace(this._main, h("div", { class: "loading" }, h("p", { class: "error" }, String(/** @type {Error} */ (error).message))));
  }
}

/** @param {string} word @param {string} colour */
function legend(word, colour) {
  const dot = h("span", { class: "dot" });
  dot.style.background = colour;
  return h("li", {}, dot, word);
}
