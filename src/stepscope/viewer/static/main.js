// @ts-check
/** Starts the page: waits for the trace, shows the chosen view, keeps the selection in the address. */

import { getJson, postJson } from "./api.js";
import { h, oneTabStop, replace } from "./dom.js";
import { stepStrips } from "./draw/step-strips.js";
import { isTyping } from "./timeline/input.js";
import { TimelineView } from "./views/timeline.js";
import { Selection } from "./selection.js";
import { preparePrinting, startTheme, toggleTheme } from "./theme.js";
import { showHelp } from "./help.js";
import { showPalette } from "./palette.js";
import { showShare } from "./share.js";
import { loading } from "./loading.js";
import { count } from "./units.js";

/**
 * @typedef {{id: string, title: string, rank: number, window: number | null, stage: string, error: string,
 *   elapsed_s: number, is_memory: boolean}} TraceStatus
 * @typedef {{selection: Selection, trace: string, overview: any, traces: TraceStatus[], marks?: import("./timeline/flags.js").Flag[]}} Context
 *   `overview` is null for a memory snapshot: only the memory view can show it. `marks`: rows of a query, over the timeline
 * @typedef {{element: HTMLElement, close: () => void}} View
 */

const VIEWS = /** @type {[string, string][]} */ ([
  ["timeline", "Timeline"], ["flame", "Flame graph"], ["memory", "Memory"], ["ranks", "Ranks"], ["tables", "Tables"], ["sql", "SQL"], ["compare", "Compare"],
]);
/** What belongs to one trace, and goes when another is chosen. */
const OF_TRACE = { from: null, to: null, range: null, event: null, device: null, axis: null, m_from: null, m_to: null, at: null, allocation: null, colour: null, step: null, path: null };
const POLL_MS = 250;
const FIRST_POLL_MS = 20;
/** Letters that titles have in common before the picker leaves them out. */
const LEAST_COMMON = 16;

/** What is missing in the first picture of a large trace. */
const REST = "The first picture: links between slices, steps on the GPU, idle time, counters and findings are still being worked out.";

/** Makes a view; its modules are fetched when it is first shown. @type {Record<string, (context: Context) => Promise<View>>} */
const MAKE = {
  flame: async (context) => (await import("./views/flame.js")).flameView(context),
  memory: async (context) => (await import("./views/memory.js")).memoryView(context),
  ranks: async (context) => (await import("./views/ranks.js")).ranksView(context),
  tables: async (context) => (await import("./views/tables.js")).tablesView(context),
  sql: async (context) => (await import("./views/sql.js")).sqlView(context),
  compare: async (context) => (await import("./views/compare.js")).compareView(context),
};

/** Whether a view has anything to show. @param {Context} context @param {string} view */
function canShow({ overview }, view) {
  if (!overview) return view === "memory";
  if (view === "ranks") return overview.ranks > 1;
  return view !== "memory" || overview.has_memory || overview.has_gpu_memory;
}

/**
 * Titles without the long beginning that all have in common, at the end of a word: the picker is narrow,
 * and what tells files of one job apart comes last in their names.
 * @param {string[]} titles
 */
function withoutCommonStart(titles) {
  if (titles.length < 2) return titles;
  let common = titles[0];
  for (const title of titles) while (!title.startsWith(common)) common = common.slice(0, -1);
  const length = /^.*[-_./ ]/.exec(common)?.[0].length ?? 0;
  return length > LEAST_COMMON ? titles.map((title) => `…${title.slice(length)}`) : titles;
}

class Page {
  constructor() {
    this.selection = new Selection();
    /** @type {TraceStatus[]} */
    this.traces = [];
    /** @type {Context | null} */
    this.context = null;
    /** @type {View | null} */
    this.view = null;
    /** @type {TimelineView | null} */
    this.timeline = null;
    this._shown = "";
    this._tabs = h("nav", { class: "views", "aria-label": "Views" });
    this._picker = h("select", { class: "trace-picker", "aria-label": "Trace" });
    this._search = h("input", { type: "search", class: "search", placeholder: "Search names  /", "aria-label": "Search the trace" });
    this._hits = h("span", { class: "hits", role: "status" });
    this._banner = h("div", { class: "banner", role: "alert" });
    this._rest = h("div", { class: "rest", role: "status" });
    this._steps = h("section", { class: "run-steps", "aria-label": "Every step" });
    this._heading = h("h1", { class: "only-read" });
    this._main = h("main", { class: "main" });
    this._build();
    this.selection.onChange((changed) => {
      if (changed.has("trace") || (changed.has("step") && this.selection.get("step"))) this.open();
      else if (changed.has("view")) this.show();
      if (changed.has("search") && document.activeElement !== this._search) this._search.value = this.selection.get("search");
    });
    window.addEventListener("hits-changed", (event) => this._sayHit(/** @type {CustomEvent} */ (event).detail));
    window.addEventListener("trace-changed", (event) => this._offerReload(/** @type {CustomEvent} */ (event).detail));
    window.addEventListener("keydown", (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        this._command();
        return;
      }
      if (isTyping(event.target) || event.ctrlKey || event.metaKey) return;
      if (event.key === "/") {
        event.preventDefault();
        this._search.focus();
      } else if (event.key === "?") showHelp();
    });
  }

  _build() {
    this._picker.addEventListener("change", () => this.selection.set({ trace: this._picker.value, ...OF_TRACE }));
    let timer = 0;
    const search = () => {
      clearTimeout(timer);
      this.selection.set({ search: this._search.value || null, view: this._search.value ? "timeline" : this.selection.get("view") || null });
    };
    this._search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = window.setTimeout(search, 150);
    });
    // The keys of the timeline are those of the page, and none of them while one types.
    this._search.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this._search.value = "";
        search();
        this._search.blur();
      }
      else if (event.key === "Enter") {
        search(); // what was typed a moment ago, too
        this.timeline?.nextHit(event.shiftKey ? -1 : 1);
      }
    });
    this._search.value = this.selection.get("search");
    const brand = h("span", { class: "brand" }, h("img", { src: "/static/icon.svg", alt: "", width: "18", height: "18" }), "Stepscope");
    const theme = h("button", { type: "button", class: "icon", title: "Dark or light", "aria-label": "Dark or light", onclick: toggleTheme }, "◐");
    const share = h("button", { type: "button", title: "Copy a link, save a picture or a page", onclick: () => showShare(this._picker.title, this._shown) }, "Share");
    const command = h("button", { type: "button", class: "icon", title: "Go to anything (Ctrl K)", "aria-label": "Go to anything", onclick: () => this._command() }, "⌘");
    const help = h("button", { type: "button", class: "icon", title: "Keys and mouse (?)", "aria-label": "Help", onclick: showHelp }, "?");
    const skip = h("button", { type: "button", class: "skip", onclick: () => /** @type {HTMLElement | null} */ (this._main.querySelector("[tabindex='0'], button, select, input"))?.focus() }, "Skip to the view");
    oneTabStop(this._tabs);
    replace(/** @type {HTMLElement} */ (document.getElementById("app")), skip, h("header", { class: "bar-top" }, brand, this._picker, this._tabs, h("span", { class: "searching" }, this._search, this._hits), share, command, theme, help), this._banner, this._rest, this._steps, this._heading, this._main);
  }

  /** Opens the trace of the address, showing how far it is. */
  async open() {
    this._close();
    try {
      this.traces = (await getJson("/api/traces")).traces;
      const chosen = this.traces[this.selection.number("trace") ?? 0] ?? this.traces[0];
      const titles = withoutCommonStart(this.traces.map((one) => one.title));
      replace(this._picker, ...this.traces.map((one, at) => h("option", { value: at, title: one.title, selected: one.id === chosen.id }, titles[at])));
      this._picker.title = chosen.title;
      document.title = `${chosen.title} · Stepscope`;
      this._search.hidden = chosen.is_memory;
      this._sayHit({ number: null, total: 0 });
      if (chosen.is_memory) {
        this.context = { selection: this.selection, trace: chosen.id, overview: null, traces: this.traces };
        this.show();
        return;
      }
      let status = await postJson(`/api/traces/${chosen.id}/open`);
      const progress = loading(chosen.title);
      replace(this._main, progress.element);
      for (let wait = FIRST_POLL_MS; status.stage !== "ready"; wait = Math.min(2 * wait, POLL_MS)) {
        progress.show(status);
        if (status.stage === "failed") return;
        await new Promise((go) => setTimeout(go, wait));
        status = (await getJson("/api/traces")).traces.find((/** @type {TraceStatus} */ one) => one.id === chosen.id);
      }
      const overview = await getJson(`/api/traces/${chosen.id}/overview`);
      this.context = { selection: this.selection, trace: chosen.id, overview, traces: this.traces };
      this._goToStep(overview, this.selection.number("step"));
      this.show();
      this._showSteps(this.context);
      this._waitForExtras(chosen.id).catch((error) => replace(this._rest, h("span", { class: "error" }, String(error.message))));
    } catch (error) {
      replace(this._main, h("div", { class: "loading" }, h("p", { class: "error" }, String(/** @type {Error} */ (error).message))));
    }
  }

  /**
   * A link or a click can name a step: it becomes the range, with some room around it.
   * @param {any} overview @param {number | null} step
   */
  _goToStep(overview, step) {
    // The step of a link is that of the GPU, which comes after the first picture of a large trace.
    if (step === null || !overview.is_whole) return false;
    const all = overview.device_steps.length ? overview.device_steps : overview.steps;
    const found = all.find((/** @type {any} */ one) => one.step === step);
    if (!found) return false;
    const room = (found.end_ns - found.start_ns) * 0.08;
    this.selection.set({ view: "timeline", step: null, event: null, range: `${found.start_ns}-${found.end_ns}`, from: Math.floor(found.start_ns - room), to: Math.ceil(found.end_ns + room) });
    return true;
  }

  /** Shows every step of the run above the views. @param {Context} context */
  async _showSteps(context) {
    // Its place is kept meanwhile: the lanes below must not move away under the pointer.
    this._steps.ariaBusy = String(context.overview.steps.length > 1);
    const { strips } = await getJson(`/api/traces/${context.trace}/steps`).catch(() => ({ strips: [] })); // the other views show what is wrong
    if (this.context !== context) return;
    this._steps.ariaBusy = "false";
    if (strips.length && strips[0].first.length > 1) replace(this._steps, stepStrips(strips, { tall: 40, picked: (_, bar) => this._goToBar(context, strips[0], bar) }).element);
  }

  /** Goes to a recorded step of a bar, in the trace that has it. @param {Context} context @param {import("./draw/step-strips.js").Strip} strip @param {number} bar */
  _goToBar(context, strip, bar) {
    const { overview, traces } = context;
    const [first, last, window] = [strip.first[bar], strip.last[bar], strip.windows[bar]];
    const mine = traces.find((one) => one.id === context.trace);
    const inside = overview.steps.map((/** @type {any} */ one) => one.step).filter((/** @type {number} */ one) => first <= one && one <= last);
    if (inside.length && (window === null || window === mine?.window)) this._goToStep(overview, inside.includes(strip.slowest[bar]) ? strip.slowest[bar] : inside[0]);
    else if (window !== null) {
      const at = traces.findIndex((one) => one.rank === mine?.rank && one.window === window);
      if (at >= 0) this.selection.set({ ...OF_TRACE, view: "timeline", trace: String(at), step: first });
    }
  }

  /**
   * Idle causes and counters come a little after the picture; before them, of a large trace that is
   * opened for the first time, links and the steps of GPUs.
   * @param {string} trace
   */
  async _waitForExtras(trace) {
    // The server works them out when it is asked; the picture must not wait for that.
    for (let tries = 0; tries < 100 && this.timeline && !this.timeline.timeline.isSettled; tries++) await new Promise((go) => setTimeout(go, 50));
    for (;;) {
      if (this.context?.trace !== trace) return;
      if (!this.context.overview.is_whole) replace(this._rest, REST);
      const extras = await getJson(`/api/traces/${trace}/extras`);
      if (this.context?.trace !== trace) return;
      if (extras.is_whole && !this.context.overview.is_whole) await this._complete(this.context);
      if (extras.ready) {
        this.context.overview.extras = extras;
        this.context.overview.has_memory = extras.has_memory;
        this.context.overview.has_gpu_memory = extras.has_gpu_memory;
        this.timeline?.addExtras(extras);
        this.show();
        return;
      }
      await new Promise((go) => setTimeout(go, POLL_MS));
    }
  }

  /** Takes what was missing in the first picture. @param {Context} context */
  async _complete(context) {
    const overview = await getJson(`/api/traces/${context.trace}/overview`);
    if (this.context !== context) return;
    Object.assign(context.overview, overview);
    this.timeline?.timeline.refresh();
    this._goToStep(context.overview, this.selection.number("step"));
    replace(this._rest);
  }

  /** Shows the command palette, unless a dialog is open. */
  _command() {
    const { context } = this;
    if (context && !document.querySelector("dialog[open]")) showPalette(context, VIEWS.filter(([key]) => canShow(context, key)));
  }

  /** Beside what is searched: which of the hits is selected. @param {{number: number | null, total: number}} found */
  _sayHit({ number, total }) {
    replace(this._hits, total && number ? `${count(number)} of ${count(total)}` : null);
  }

  _close() {
    replace(this._rest);
    replace(this._steps);
    this.view?.close();
    if (this.timeline && this.timeline !== this.view) this.timeline.close();
    this.view = this.timeline = this.context = null;
    this._shown = "";
  }

  /** Shows the view of the address; the timeline stays in memory behind the others. */
  show() {
    const { context } = this;
    if (!context) return;
    const views = VIEWS.filter(([key]) => canShow(context, key));
    const name = views.find(([key]) => key === this.selection.get("view"))?.[0] ?? views[0][0];
    replace(this._tabs, ...views.map(([key, title]) => h("button", { type: "button", "data-view": key, "aria-current": key === name ? "page" : null, tabindex: key === name ? "0" : "-1", onclick: () => this.selection.set({ view: key }) }, title)));
    if (name === this._shown) return;
    this._shown = name;
    replace(this._heading, `${VIEWS.find(([key]) => key === name)?.[1]} of ${this.traces.find((one) => one.id === context.trace)?.title}`);
    if (this.view && this.view !== this.timeline) this.view.close();
    this.view = null;
    if (name === "timeline") {
      this.timeline ??= new TimelineView(context);
      this.view = this.timeline;
      replace(this._main, this.timeline.element);
      this.timeline.shown();
    } else {
      replace(this._main);
      this._make(name, context);
    }
  }

  /** @param {string} name @param {Context} context */
  async _make(name, context) {
    try {
      const view = await MAKE[name](context);
      if (this._shown !== name || this.context !== context) {
        view.close(); // another was chosen meanwhile
        return;
      }
      this.view = view;
      replace(this._main, view.element);
    } catch (error) {
      replace(this._main, h("p", { class: "error" }, String(/** @type {Error} */ (error).message)));
    }
  }

  /** @param {string} message */
  _offerReload(message) {
    const again = async () => {
      replace(this._banner);
      const chosen = this.context?.trace;
      if (chosen) await postJson(`/api/traces/${chosen}/reopen`);
      this.open();
    };
    replace(this._banner, h("span", {}, message), h("button", { type: "button", onclick: again }, "Open it again"));
  }
}

startTheme();
preparePrinting();
if (location.search.includes("token=")) {
  // The cookie is set: the token need not stay in the address, the history and screenshots.
  const query = new URLSearchParams(location.search);
  query.delete("token");
  const rest = query.toString();
  history.replaceState(null, "", `/${rest ? `?${rest}` : ""}${location.hash}`);
}
const page = new Page();
/** For tests and for the curious. */
Object.assign(window, { stepscope: page });
page.open();
