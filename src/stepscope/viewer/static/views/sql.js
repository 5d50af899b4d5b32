// @ts-check
/** A console for SQL, reading only. Saved queries stay in this browser. */

import { getJson, postJson } from "../api.js";
import { bars } from "../draw/bars.js";
import { table } from "../draw/table.js";
import { h, replace } from "../dom.js";
import { cell, count, isAmount, plural, shortName } from "../units.js";

const STORED = "stepscope.queries";
const FIRST = `SELECT name, count(*) AS calls, sum(dur_ns) AS total_ns
FROM kernels
GROUP BY name
ORDER BY total_ns DESC
LIMIT 20`;
const EXAMPLES = /** @type {[string, string][]} */ ([
  ["Kernels by time", FIRST],
  ["Time per step and kind", `SELECT step, kind, sum(dur_ns) AS total_ns
FROM events
WHERE kind <> 'none'
GROUP BY ALL
ORDER BY ALL`],
  ["Launches by operator", `SELECT k.op_name, median(l.delay_ns) AS delay_ns, count(*) AS launches
FROM launches l JOIN kernels k ON k.event = l.work
GROUP BY ALL
ORDER BY launches DESC
LIMIT 50`],
  ["Longest events", `SELECT event, name, category, start_ns, dur_ns
FROM events
ORDER BY dur_ns DESC
LIMIT 50`],
]);

const MOST_BARS = 30;

/** @typedef {{columns: import("../draw/table.js").Column[], rows: unknown[][]}} Result */

/** The result as bars: its first amount, else its first number, by its first text; null where it has none. @param {Result} found */
function asBars({ columns, rows }) {
  const name = columns.findIndex((one) => !one.number);
  const amounts = columns.map((one, at) => at).filter((at) => columns[at].number && columns[at].name !== "event");
  const amount = amounts.find((at) => isAmount(columns[at].name)) ?? amounts[0];
  if (name < 0 || amount === undefined || !rows.length || rows.some((row) => Number(row[amount] ?? 0) < 0)) return null;
  const of = columns[amount].name;
  const shown = rows.slice(0, MOST_BARS).map((row) => ({ name: shortName(String(row[name] ?? "–")), to: Number(row[amount] ?? 0), text: cell(of, row[amount]) }));
  return bars({ rows: shown, title: `${of} by ${columns[name].name}${rows.length > MOST_BARS ? `, the first ${MOST_BARS}` : ""}` });
}

/** The result as marks over the timeline: rows with a start, and an end or a duration; null where it has none. @param {Result} found */
function asMarks({ columns, rows }) {
  const at = (/** @type {string} */ wanted) => columns.findIndex((one) => one.name === wanted);
  const [start, end, length, name] = [at("start_ns"), at("end_ns"), at("dur_ns"), columns.findIndex((one) => !one.number)];
  if (start < 0 || (end < 0 && length < 0)) return null;
  return rows.filter((row) => typeof row[start] === "number").map((row) => {
    const from = Number(row[start]);
    return { title: name < 0 ? "a row of the query" : String(row[name]), start_ns: from, end_ns: end < 0 ? from + Number(row[length] ?? 0) : Number(row[end] ?? from) };
  });
}

/** @returns {[string, string][]} */
function saved() {
  try {
    const value = JSON.parse(localStorage.getItem(STORED) ?? "[]");
    return Array.isArray(value) ? /** @type {[string, string][]} */ (value).filter((one) => Array.isArray(one) && one.every((part) => typeof part === "string")) : [];
  } catch {
    return [];
  }
}

/** @param {import("../main.js").Context} context */
export function sqlView(context) {
  const { selection, trace } = context;
  const text = h("textarea", { class: "query", spellcheck: "false", rows: "9", "aria-label": "SQL" });
  text.value = saved()[0]?.[1] ?? FIRST;
  const answer = h("div", { class: "view-body" });
  const side = h("aside", { class: "questions" });
  const run = h("button", { type: "button", class: "primary", onclick: () => ask() }, "Run");
  const save = h("button", { type: "button", onclick: () => keep() }, "Save");
  const element = h("div", { class: "view has-side" }, side, h("div", { class: "view-main" }, text, h("div", { class: "view-head" }, run, save, h("span", { class: "note" }, "Ctrl+Enter runs it. One SELECT in DuckDB's dialect. Columns that end in _ns or _bytes are shown in handy units.")), answer));
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
  });

  async function ask() {
    replace(answer, h("p", { class: "note" }, "Running…"));
    run.setAttribute("disabled", "");
    try {
      const found = await postJson(`/api/traces/${trace}/sql`, { query: text.value });
      const link = (/** @type {string} */ column, /** @type {unknown} */ value) => (column === "event" && typeof value === "number" ? () => selection.set({ view: "timeline", event: value }) : null);
      const picture = h("div");
      const [chart, marks] = [asBars(found), asMarks(found)];
      const draw = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
        const isOn = picture.childElementCount === 0;
        draw.setAttribute("aria-pressed", String(isOn));
        replace(picture, isOn ? chart : null);
      } }, "Chart");
      const mark = () => {
        context.marks = marks ?? [];
        selection.set({ view: "timeline", from: null, to: null, range: null, event: null });
      };
      replace(
        answer,
        h("div", { class: "view-head" }, chart ? draw : null, marks?.length ? h("button", { type: "button", onclick: mark }, "Mark in the timeline") : null),
        picture,
        h("p", { class: "note" }, found.is_cut ? `The first ${count(found.most_rows)} rows.` : plural(found.rows.length, "row")),
        table({ columns: found.columns, rows: found.rows, total: found.rows.length }, { shown: 200, filter: found.rows.length > 8, link }),
      );
      element.dataset.ready = String(found.rows.length);
    } catch (error) {
      replace(answer, h("p", { class: "error" }, String(/** @type {Error} */ (error).message)));
    } finally {
      run.removeAttribute("disabled");
    }
  }

  function keep() {
    const name = text.value.replace(/\s+/g, " ").trim().slice(0, 48);
    if (!name) return;
    localStorage.setItem(STORED, JSON.stringify([[name, text.value], ...saved().filter(([, query]) => query !== text.value)].slice(0, 50)));
    showSide();
  }

  /** @param {string} query */
  function forget(query) {
    localStorage.setItem(STORED, JSON.stringify(saved().filter(([, one]) => one !== query)));
    showSide();
  }

  /** @type {any[]} */
  let columns = [];
  function showSide() {
    const views = [...new Set(columns.map((one) => one.view))];
    replace(
      side,
      h("h3", {}, "Saved"),
      ...(saved().length ? saved().map(([name, query]) => h("div", { class: "saved" }, h("button", { type: "button", title: query, onclick: () => (text.value = query) }, name), h("button", { type: "button", class: "quiet", "aria-label": `Forget ${name}`, onclick: () => forget(query) }, "×"))) : [h("p", { class: "note" }, "none yet")]),
      h("h3", {}, "Examples"),
      ...EXAMPLES.map(([name, query]) => h("button", { type: "button", onclick: () => (text.value = query) }, name)),
      h("h3", {}, "Views"),
      ...views.map((view) => h("details", {}, h("summary", {}, view), h("ul", { class: "columns" }, ...columns.filter((one) => one.view === view).map((one) => h("li", {}, h("code", {}, one.column), " ", h("span", { class: "note" }, one.type)))))),
    );
  }
  getJson("/api/views").then((found) => {
    columns = found.columns;
    showSide();
  });
  showSide();
  const taken = () => {
    if (!selection.get("query")) return;
    text.value = selection.get("query");
    setTimeout(() => run.focus()); // Enter runs it
  };
  taken();
  const end = selection.onChange((changed) => {
    if (changed.has("query")) taken();
  });
  return { element, close: end };
}
