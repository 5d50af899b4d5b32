// @ts-check
/** The answer to a question: numbers, pictures, tables, and what they cover. */

import { PICTURES } from "../draw/pictures.js";
import { table } from "../draw/table.js";
import { h } from "../dom.js";

/**
 * @param {any} found what the server says
 * @param {import("../selection.js").Selection} selection
 * @param {string} [note] what a reader must know first
 */
export function answer(found, selection, note) {
  /** A mark of a picture leads to its event. @type {import("../draw/pictures.js").Link} */
  const toEvent = ({ event }) => (typeof event === "number" ? () => selection.set({ view: "timeline", event }) : null);

  /**
   * Numbers of events, and moments, lead to their place.
   * @param {any} data
   * @param {string} column
   * @param {unknown} value
   * @param {unknown[]} row
   */
  function linkOf(data, column, value, row) {
    if (typeof value !== "number") return null;
    if (column === "event" || column === "ended_by" || column === "launch" || column === "op") return () => selection.set({ view: "timeline", event: value });
    if (column === "step") return () => selection.set({ view: "timeline", step: value });
    if (column === "start_ns") {
      const at = data.columns.findIndex((/** @type {any} */ one) => ["dur_ns", "wall_ns", "total_ns", "device_ns"].includes(one.name));
      const lasting = at >= 0 && typeof row[at] === "number" ? /** @type {number} */ (row[at]) : 1000;
      return () => selection.set({ view: "timeline", from: Math.floor(value - lasting * 0.1), to: Math.ceil(value + lasting * 1.1), range: `${value}-${value + lasting}` });
    }
    return null;
  }

  /** A table without the columns in which no row has a value, which are named below it. @param {any} data */
  function known(data) {
    const isKnown = data.columns.map((/** @type {any} */ _, /** @type {number} */ at) => data.rows.some((/** @type {unknown[]} */ row) => row[at] !== null && row[at] !== undefined));
    /** @param {any[]} all */
    const kept = (all) => all.filter((_, at) => isKnown[at]);
    const shown = { ...data, columns: kept(data.columns), rows: data.rows.map(kept) };
    const missing = data.columns.filter((/** @type {any} */ _, /** @type {number} */ at) => !isKnown[at]).map((/** @type {any} */ one) => one.label);
    return [
      table(shown, { shown: 40, filter: data.rows.length > 8, link: (column, value, row) => linkOf(shown, column, value, row) }),
      missing.length ? h("p", { class: "note" }, `Without a value in any row: ${missing.join(", ")}.`) : null,
    ];
  }

  return [
    h("h2", {}, found.about[0].toUpperCase() + found.about.slice(1)),
    note ? h("p", { class: "note" }, note) : null,
    found.numbers.length ? h("dl", { class: "numbers" }, ...found.numbers.map((/** @type {any} */ one) => h("div", {}, h("dt", {}, one.label), h("dd", {}, one.shown)))) : null,
    ...found.pictures.map((/** @type {any} */ one) => PICTURES[one.is](one, toEvent)),
    found.nothing ? h("p", {}, found.nothing) : null,
    ...(found.nothing ? [] : found.tables).map((/** @type {any} */ one) => h("section", { "data-table": one.name }, h("h3", {}, one.title), ...(one.rows.length ? known(one) : [h("p", { class: "note" }, "None.")]))),
    h("p", { class: "note" }, found.scope),
    ...found.notes.map((/** @type {string} */ one) => h("p", { class: "note" }, `Note: ${one}`)),
  ];
}
