// @ts-check
/** The timeline with its panel: findings, what was clicked, the selected range, search. */

import { getColumns } from "../api.js";
import { h, oneTabStop, replace } from "../dom.js";
import { showDetails } from "../panels/details.js";
import { card, showFindings } from "../panels/findings.js";
import { Notes, showMarks } from "../panels/notes.js";
import { showRange } from "../panels/range.js";
import { SearchPanel } from "../panels/search.js";
import { Timeline } from "../timeline/view.js";

const PANELS = /** @type {[string, string][]} */ ([["findings", "Findings"], ["details", "Slice"], ["range", "Range"], ["search", "Search"]]);

export class TimelineView {
  /** @param {import("../main.js").Context} context */
  constructor(context) {
    this._context = context;
    const { selection, trace, overview } = context;
    this._tabs = h("div", { class: "tabs", role: "group", "aria-label": "Panel" });
    oneTabStop(this._tabs);
    /** @type {Record<string, HTMLElement>} */
    this._panels = {};
    for (const [key] of PANELS) this._panels[key] = h("div", { class: "panel", "data-panel": key });
    this._chosen = "findings";
    const jump = (/** @type {number} */ event) => selection.set({ event: String(event) });
    this._searching = new SearchPanel(this._panels.search, trace, jump, (text) => selection.set({ search: text }));
    this._pinned = h("div", { class: "pinned" });
    const goTo = (/** @type {{start_ns: number, end_ns: number}} */ { start_ns: start, end_ns: end }) => {
      selection.set({ range: `${Math.floor(start)}-${Math.ceil(end)}`, event: null });
      this.timeline.goTo(start, end);
    };
    this._goTo = goTo;
    this._notes = new Notes(trace, goTo, () => this._showFlags());
    this._marks = h("section", { class: "marked-rows", "aria-label": "Rows of the query" });
    const side = h("aside", { class: "side" }, this._tabs, this._pinned, ...Object.values(this._panels), this._marks, this._notes.element);
    this.timeline = new Timeline(trace, overview, selection, (picked) => this._picked(picked));
    this.element = h("div", { class: "timeline-view" }, this.timeline.element, side);
    this._started = false;
    /** @type {import("../timeline/flags.js").Flag[]} findings with a place */
    this._flags = [];
    /** How many hits the search has. */
    this._total = 0;
    /** @type {Promise<void> | null} the search that runs, or ran */
    this._searched = null;
    this._pathButton = h("button", { type: "button", class: "path-button", "aria-pressed": "false", title: "What would have to be shorter for the steps to end earlier", onclick: () => selection.set({ path: selection.get("path") ? null : "on" }) }, "Critical path");
    this.timeline.element.querySelector(".timeline-legend")?.prepend(h("li", {}, this._pathButton));
    this._end = selection.onChange((changed) => {
      if (changed.has("path")) this._showPath();
      if (changed.has("range")) this._showRange();
      if (changed.has("search")) this._search();
      else if (changed.has("event")) this._sayHit();
    });
    if (overview.extras) this.addExtras(overview.extras);
    replace(this._panels.details, h("p", { class: "note" }, "Click a slice to see what it is, what launched it and what it launched."));
    replace(this._panels.range, h("p", { class: "note" }, "Shift-drag over the timeline, or click a step, to add up a range of time."));
    this._show(this._chosen);
  }

  /** Called whenever it is on the page. */
  shown() {
    if (!this._started) {
      this._started = true;
      this.timeline.start();
      this._showRange();
      this._showPath();
      this._notes.load();
      if (this._context.selection.get("search")) this._search();
    }
    this._showFlags();
  }

  /** Marks the notes and findings over the time axis, and what a query found. */
  _showFlags() {
    const notes = this._notes.notes.map((note) => ({ title: note.text, ...note }));
    const marks = this._context.marks ?? [];
    this.timeline.flags = [...notes, ...this._flags, ...marks];
    showMarks(this._marks, marks, this._goTo, () => {
      this._context.marks = [];
      this._showFlags();
    });
    this.timeline.redraw();
  }

  /** @param {any} extras */
  addExtras(extras) {
    this.timeline.addExtras(extras);
    // The diagnosis reads the trace once more: it waits until the picture is complete.
    showFindings(this._panels.findings, this._context.trace, (finding) => this._goToFinding(finding)).then((flags) => {
      this._flags = flags;
      this._showFlags();
    });
  }

  /** Shows the place of a finding, with what the host did there, beside the finding. @param {any} finding */
  _goToFinding(finding) {
    const { event } = finding.place;
    replace(this._pinned, card(finding, () => replace(this._pinned)));
    this._goTo(finding.place);
    if (event !== null) this._context.selection.set({ event: String(event) });
  }

  /** Draws the critical path over the slices, or takes it away. */
  async _showPath() {
    const isOn = Boolean(this._context.selection.get("path"));
    const button = this._pathButton;
    button.setAttribute("aria-pressed", String(isOn));
    this.timeline.path = null;
    if (isOn) {
      button.textContent = "Finding the path…";
      try {
        const { columns } = await getColumns(`/api/traces/${this._context.trace}/critical-path`);
        this.timeline.path = /** @type {any} */ ({ start: columns.start, end: columns.end, lane: columns.lane });
      } catch (error) {
        button.title = /** @type {Error} */ (error).message;
      }
    }
    button.textContent = isOn && !this.timeline.path ? "No critical path" : "Critical path";
    button.dataset.ready = isOn ? "1" : "";
    this.timeline.redraw();
  }

  /** Ends listening. */
  close() {
    this._end();
    this.timeline.close();
  }

  /** @param {string} key */
  _show(key) {
    this._chosen = key;
    replace(this._tabs, ...PANELS.map(([one, title]) => h("button", { type: "button", "aria-pressed": String(one === key), tabindex: one === key ? "0" : "-1", onclick: () => this._show(one) }, title)));
    for (const [one, panel] of Object.entries(this._panels)) panel.hidden = one !== key;
  }

  /** @param {any} picked */
  _picked(picked) {
    if (!picked) {
      if (this._chosen === "details") this._show(this._context.selection.range() ? "range" : "findings");
      return;
    }
    showDetails(this._panels.details, picked, (event) => this._context.selection.set({ event: String(event) }));
    this._panels.details.dataset.event = String(picked.event?.event ?? picked.event ?? "");
    this._show("details");
  }

  _showRange() {
    const { selection, trace } = this._context;
    const range = selection.range();
    if (!range) {
      if (this._chosen === "range") this._show("findings");
      return;
    }
    this._show("range");
    delete this._panels.range.dataset.ready;
    showRange(this._panels.range, trace, range, this._notes.field(range), {
      zoom: () => this.timeline.goTo(...range),
      flame: () => selection.set({ view: "flame" }),
      clear: () => selection.set({ range: null }),
    });
  }

  /** Goes to the next hit of the search, or the one before. @param {number} direction 1 or -1 */
  async nextHit(direction) {
    await this._searched;
    await this._searching.next(this._context.selection.get("event"), direction, this.timeline.camera.start);
  }

  _search() {
    this._searched = this._find(this._context.selection.get("search"));
  }

  /** @param {string} text */
  async _find(text) {
    this.timeline.hits = new Set();
    this.timeline.minimap.mark([]);
    this._total = 0;
    const found = await this._searching.show(text);
    if (found) {
      this._total = found.total;
      this.timeline.hits = new Set(found.name_ids);
      this.timeline.minimap.mark(found.density);
      this._show("search");
    }
    this._sayHit();
    this.timeline.redraw();
  }

  /** Tells the search box which of the hits is selected. */
  _sayHit() {
    const number = this._searching.numberOf(this._context.selection.get("event"));
    window.dispatchEvent(new CustomEvent("hits-changed", { detail: { number, total: this._total } }));
  }
}
