// @ts-check
/** Memory over time, its state at a moment, and single allocations: of a snapshot, or of the host in a trace. */

import { getJson, isAbort } from "../api.js";
import { h, replace } from "../dom.js";
import { titleOf, untilReady } from "../loading.js";
import { MemoryChart } from "../memory/chart.js";
import { memoryPaint, memoryWord } from "../memory-colours.js";
import { allocationOf, stateOf } from "../memory/panel.js";
import { plural, size } from "../units.js";

const STAGES = /** @type {import("../loading.js").Stages} */ ([["reading", "Reading the snapshot"], ["arranging", "Arranging the allocations"]]);
const PANELS = /** @type {[string, string][]} */ ([["moment", "Moment"], ["allocation", "Allocation"]]);

export class MemoryView {
  /** @param {import("../main.js").Context} context */
  constructor(context) {
    this._context = context;
    this._head = h("div", { class: "view-head memory-head" });
    this._main = h("div", { class: "memory-main" });
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
      if (["device", "axis"].some((key) => changed.has(key))) this._load();
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
      const axis = about.has_times && selection.get("axis") !== "events" ? "time" : "events";
      this.chart?.close();
      this.chart = new MemoryChart({
        trace, about, axis,
        picked: (event, allocation) => selection.set({ at: `event ${event}`, allocation }),
        moved: (start, end) => selection.set({ m_from: Math.floor(start), m_to: Math.ceil(end) }),
        toPeak: () => selection.set({ at: null, allocation: null }),
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
    replace(
      this._head, devices, h("div", { class: "tabs", role: "group", "aria-label": "Axis" }, ...axes),
      goTo("Peak", null), goTo("Start", "start"), goTo("End", "end"), about.failed.length ? goTo(`Out of memory${about.failed.length > 1 ? ` (${about.failed.length})` : ""}`, "oom") : null,
      h("span", { class: "note" }, `peak ${size(about.peak.allocated_bytes)} allocated, ${size(about.peak.reserved_bytes)} reserved · ${plural(about.events, "event")}`),
      h("ul", { class: "memory-legend" }, ...about.categories.map(legend), h("li", {}, h("span", { class: "memory-reserved" }), "reserved")),
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
      const state = await getJson(`${this._path}/state`, { device: this._about.device, at: selection.get("at", "peak") }, signal);
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

/** @param {string} category */
function legend(category) {
  const dot = h("span", { class: "dot" });
  dot.style.background = memoryPaint(category);
  return h("li", {}, dot, memoryWord(category));
}
