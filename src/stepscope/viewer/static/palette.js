// @ts-check
/** The command palette (Ctrl K): views, questions, steps, findings, traces, search and SQL, by a few letters. */

import { getJson } from "./api.js";
import { h, replace } from "./dom.js";

/** @typedef {{kind: string, title: string, go: () => void}} Command */

const MOST = 12;
/** Of a run of many steps these are offered before anything is typed. */
const FIRST_STEPS = 3;

/**
 * @param {import("./main.js").Context} context
 * @param {[string, string][]} views those that have something to show
 */
export function showPalette({ selection, trace, overview, traces }, views) {
  const of = (/** @type {Record<string, string | number | null>} */ changes) => () => selection.set(changes);
  /** @type {Command[]} */
  const known = [
    ...views.map(([view, title]) => ({ kind: "view", title, go: of({ view }) })),
    ...(overview?.steps ?? []).map((/** @type {any} */ one) => ({ kind: "step", title: `step ${one.step}`, go: of({ step: one.step }) })),
    ...traces.map((one, at) => ({ kind: "trace", title: one.title, go: of({ trace: String(at), step: null, range: null, event: null, from: null, to: null }) })),
  ];
  if (overview) {
    getJson("/api/questions").then(({ questions }) => learn(questions.map((/** @type {any} */ one) => ({ kind: "question", title: `${one.name.replaceAll("-", " ")}: ${one.about}`, go: of({ view: "tables", question: one.name }) }))));
    getJson(`/api/traces/${trace}/findings`).then(({ findings }) => learn(findings.filter((/** @type {any} */ one) => one.place).map((/** @type {any} */ one) => ({
      kind: "finding", title: one.title,
      go: of({ view: "timeline", event: one.place.event, range: `${Math.floor(one.place.start_ns)}-${Math.ceil(one.place.end_ns)}`, from: Math.floor(one.place.start_ns), to: Math.ceil(one.place.end_ns) }),
    })))).catch(() => {}); // a trace without a diagnosis has no findings to go to
  }
  const input = h("input", { type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list", "aria-label": "Go to", placeholder: "Go to a view, question, step or finding; or search", spellcheck: "false" });
  const list = h("ul", { id: "palette-list", role: "listbox", "aria-label": "Commands" });
  const dialog = h("dialog", { class: "help palette" }, input, list);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside it
  });
  /** @type {Command[]} */
  let shown = [];
  let at = 0;

  /** @param {Command[]} more */
  function learn(more) {
    known.push(...more);
    draw();
  }

  function draw() {
    const text = input.value.trim();
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = known.filter((one) => words.every((word) => `${one.kind} ${one.title}`.toLowerCase().includes(word)));
    /** @type {Record<string, number>} */
    const steps = {};
    const few = words.length ? fits : fits.filter((one) => one.kind !== "step" || (steps.step = (steps.step ?? 0) + 1) <= FIRST_STEPS);
    const typed = text && overview
      ? [{ kind: "search", title: `“${text}” in the names of the trace`, go: of({ view: "timeline", search: text }) }, ...(/^(select|with|from|describe)\b/i.test(text) ? [{ kind: "SQL", title: text, go: of({ view: "sql", query: text }) }] : [])]
      : [];
    const isSql = typed.length > 1;
    shown = isSql ? [typed[1], ...few.slice(0, MOST), typed[0]] : [...few.slice(0, MOST), ...typed];
    at = Math.min(at, Math.max(0, shown.length - 1));
    replace(list, ...shown.map((one, place) => h("li", { role: "option", id: `palette-${place}`, "aria-selected": String(place === at), onclick: () => run(place), onpointermove: () => mark(place) }, h("span", { class: "palette-kind" }, one.kind), h("span", { class: "palette-title" }, one.title))));
    if (!shown.length) replace(list, h("li", { class: "note" }, "Nothing fits."));
    input.setAttribute("aria-activedescendant", shown.length ? `palette-${at}` : "");
  }

  /** @param {number} place */
  function mark(place) {
    at = place;
    [...list.children].forEach((one, number) => one.setAttribute("aria-selected", String(number === at)));
    list.children[at]?.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", `palette-${at}`);
  }

  /** @param {number} place */
  function run(place) {
    dialog.close();
    shown[place]?.go();
  }

  input.addEventListener("input", () => {
    at = 0;
    draw();
  });
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && shown.length) mark((at + step + shown.length) % shown.length);
    else if (event.key === "Enter") run(at);
    else return;
    event.preventDefault();
  });
  draw();
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}
