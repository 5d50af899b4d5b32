// @ts-check
/** Notes on places of the trace, which the viewer keeps in a file beside it. */

import { getJson, postJson } from "../api.js";
import { h, replace } from "../dom.js";
import { count, duration, shortName } from "../units.js";

/** @typedef {{start_ns: number, end_ns: number, text: string}} Note */
/** @typedef {import("../timeline/flags.js").Flag} Mark */

const MOST_ROWS = 100;

/** A place in a list. @param {string} text @param {string} title @param {() => void} goTo @param {string} where @param {...Node} more */
function place(text, title, goTo, where, ...more) {
  return h("div", { class: "kept-note" }, h("button", { type: "button", class: "link", title, onclick: goTo }, text), h("span", { class: "note" }, where), ...more);
}

/**
 * Lists the rows of a query that are marked in the timeline.
 * @param {HTMLElement} element
 * @param {Mark[]} marks
 * @param {(mark: Mark) => void} goTo
 * @param {() => void} clear takes all marks away
 */
export function showMarks(element, marks, goTo, clear) {
  const more = marks.length > MOST_ROWS ? `, the first ${MOST_ROWS} of ${count(marks.length)}` : "";
  replace(element, ...(marks.length ? [
    h("h3", {}, `Rows of the query${more}`, h("button", { type: "button", class: "quiet", onclick: clear }, "Clear")),
    ...marks.slice(0, MOST_ROWS).map((mark) => place(shortName(mark.title), mark.title, () => goTo(mark), `${duration(mark.end_ns - mark.start_ns)} at ${duration(mark.start_ns)}`)),
  ] : []));
}

export class Notes {
  /**
   * @param {string} trace
   * @param {(note: Note) => void} goTo goes to the place of a note
   * @param {() => void} changed called when there are others
   */
  constructor(trace, goTo, changed) {
    this._path = `/api/traces/${trace}/notes`;
    this._goTo = goTo;
    this._changed = changed;
    /** @type {Note[]} */
    this.notes = [];
    this.element = h("section", { class: "notes", "aria-label": "Notes" });
  }

  /** Asks for them; a trace that cannot have any has none. */
  async load() {
    try {
      this._show((await getJson(this._path)).notes);
    } catch {
      this._show([]);
    }
  }

  /** What notes a range: a field, and a button. @param {[number, number]} range */
  field([start, end]) {
    const text = h("input", { type: "text", maxlength: "500", placeholder: "Note on this range", "aria-label": "Note on this range" });
    const problem = h("span", { class: "error", role: "alert" });
    const keep = async () => {
      if (!text.value.trim()) return;
      try {
        this._show((await postJson(`${this._path}/keep`, { start_ns: Math.floor(start), end_ns: Math.ceil(end), text: text.value })).notes);
        text.value = "";
        problem.textContent = "";
      } catch (error) {
        problem.textContent = String(/** @type {Error} */ (error).message);
      }
    };
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter") keep();
    });
    return h("div", { class: "note-field" }, text, h("button", { type: "button", onclick: keep }, "Keep note"), problem);
  }

  /** @param {Note[]} notes */
  _show(notes) {
    this.notes = notes;
    replace(this.element, notes.length ? h("h3", {}, "Notes") : null, ...notes.map((note) => place(
      note.text, note.text, () => this._goTo(note), `at ${duration(note.start_ns)}`,
      h("button", { type: "button", class: "quiet", "aria-label": `Forget the note ${note.text}`, onclick: () => this._forget(note) }, "×"),
    )));
    this.element.dataset.notes = String(notes.length);
    this._changed();
  }

  /** @param {Note} note */
  async _forget(note) {
    this._show((await postJson(`${this._path}/forget`, note)).notes);
  }
}
