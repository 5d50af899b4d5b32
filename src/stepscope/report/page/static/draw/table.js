// @ts-check
/** A table that sorts by a click on a heading and filters as one types. Works from plain values. */

import { h, replace } from "../dom.js";
import { cell, count, isAmount, shortName, shortPath } from "../units.js";

/**
 * @typedef {{name: string, label: string, number: boolean}} Column
 * @typedef {{columns: Column[], rows: unknown[][], total: number}} Data
 * @typedef {{shown?: number, filter?: boolean, link?: (column: string, value: unknown, row: unknown[]) => (() => void) | null}} Options
 */

const STEP = 500;
/** Columns whose text is wrapped, never cut. */
const SENTENCES = new Set(["fixed", "basis", "remedy", "what", "why", "note", "about"]);
/** What a row is of whose name is missing. */
const MISSING = /** @type {Record<string, string>} */ ({ operator: "no operator", module: "no module" });
/** Letters at the end of a long name that stay in sight. */
const END = 14;

/** A name that is cut in its middle where it does not fit. @param {string} name */
function inTwo(name) {
  if (name.length <= 2 * END) return name;
  return h("span", { class: "in-two" }, h("span", {}, name.slice(0, -END)), h("span", {}, name.slice(-END)));
}

/** @param {Data} data @param {Options} [options] */
export function table(data, options = {}) {
  const first = options.shown ?? 100;
  let shown = first;
  let by = -1;
  let isDown = true;
  let text = "";
  const body = h("tbody");
  const foot = h("div", { class: "table-foot" });
  // Zeros say nothing, unless a dash already stands for what is not known.
  const hasDashes = data.columns.map((column, at) => isAmount(column.name) && (data.rows.every((row) => !row[at]) || data.rows.every((row) => row[at] !== null && row[at] !== undefined)));
  const heads = data.columns.map((column, at) => h(
    "th", { class: column.number ? "number" : null, scope: "col", "aria-sort": "none" },
    h("button", { type: "button", onclick: () => sort(at) }, column.label.replace(/ %$/, "\u00a0%")),
  ));

  /** @param {number} at */
  function sort(at) {
    isDown = by === at ? !isDown : data.columns[at].number;
    by = at;
    heads.forEach((head, number) => head.setAttribute("aria-sort", number !== at ? "none" : isDown ? "descending" : "ascending"));
    draw();
  }

  function chosen() {
    const wanted = text.toLowerCase();
    const rows = wanted
      ? data.rows.filter((row) => row.some((value, at) => cell(data.columns[at].name, value).toLowerCase().includes(wanted) || String(value).toLowerCase().includes(wanted)))
      : [...data.rows];
    if (by >= 0) {
      rows.sort((a, b) => compare(a[by], b[by]) * (isDown ? -1 : 1));
      rows.sort((a, b) => Number(a[by] === null) - Number(b[by] === null)); // what is missing comes last
    }
    return rows;
  }

  function draw() {
    const rows = chosen();
    replace(body, ...rows.slice(0, shown).map((row) => h("tr", {}, ...row.map((value, at) => item(data.columns[at], hasDashes[at] && !value ? null : value, row)))));
    const rest = rows.length - shown;
    const beyond = data.total - data.rows.length;
    replace(
      foot,
      rest > 0 ? h("button", { type: "button", class: "quiet", onclick: () => more() }, rest > STEP ? `Show ${count(STEP)} more of ${count(rest)}` : `Show ${count(rest)} more`) : null,
      rest > 0 ? h("span", { class: "note on-paper" }, `and ${count(rest)} more rows`) : null,
      beyond > 0 && rest <= 0 ? h("span", { class: "note" }, `and ${count(beyond)} more that were not sent`) : null,
      !rows.length ? h("span", { class: "note" }, text ? "No row fits the filter." : "none") : null,
    );
  }

  function more() {
    shown += STEP;
    draw();
  }

  /** @param {Column} column @param {unknown} value @param {unknown[]} row */
  function item(column, value, row) {
    const whole = value === null && column === data.columns[0] ? MISSING[column.name] ?? cell(column.name, value) : cell(column.name, value);
    const written = column.number ? whole : column.name === "path" ? shortPath(whole) : shortName(whole);
    const go = options.link?.(column.name, value, row) ?? null;
    const text = column.number || SENTENCES.has(column.name) ? written : inTwo(written);
    const content = go ? h("button", { type: "button", class: "link", onclick: go }, text) : text;
    const found = h("td", { class: column.number ? "number" : SENTENCES.has(column.name) ? "sentence" : null, title: written.length > 30 || written !== whole ? whole : null }, content);
    if (/(^|_)share$/.test(column.name) && typeof value === "number") {
      found.classList.add("share");
      found.style.setProperty("--part", `${100 * Math.min(1, Math.max(0, value))}%`);
    }
    return found;
  }

  const filter = options.filter
    ? h("input", { type: "search", class: "table-filter", placeholder: "Filter rows", "aria-label": "Filter rows", oninput: (/** @type {any} */ event) => {
      text = event.target.value;
      shown = first;
      draw();
    } })
    : null;
  draw();
  return h("div", { class: "table" }, filter, h("div", { class: "table-scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ...heads)), body)), foot);
}

/** @param {unknown} a @param {unknown} b */
function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true });
}
