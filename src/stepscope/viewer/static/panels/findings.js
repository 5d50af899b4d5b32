// @ts-check
/** The verdict, where the step goes, and the findings by saving, each with its place in the trace. */

import { getJson } from "../api.js";
import { partitionBar } from "../draw/bar.js";
import { h, replace } from "../dom.js";
import { partPaint } from "../part-colours.js";
import { count, duration } from "../units.js";
import { facts } from "./details.js";

/**
 * @param {HTMLElement} element
 * @param {string} trace
 * @param {(finding: any) => void} goTo goes to the place of a finding
 * @returns {Promise<import("../timeline/flags.js").Flag[]>} the findings that have a place
 */
export async function showFindings(element, trace, goTo) {
  /** @type {import("../timeline/flags.js").Flag[]} */
  let flags = [];
  replace(element, h("h2", {}, "Findings"), h("p", { class: "note" }, "Working out what limits the step…"));
  try {
    const found = await getJson(`/api/traces/${trace}/findings`);
    flags = found.findings.filter((/** @type {any} */ one) => one.place).map((/** @type {any} */ one) => ({ title: one.title, severity: one.severity, ...one.place }));
    replace(
      element,
      h("p", { class: "verdict" }, sentence(found)),
      found.step_ns ? h("p", { class: "note" }, scope(found)) : null,
      found.partition ? partition(found.partition) : null,
      ...found.findings.map((/** @type {any} */ one) => finding(one, goTo)),
      found.findings.length ? null : h("p", { class: "note" }, "No rule found anything worth a change."),
    );
  } catch (error) {
    replace(element, h("h2", {}, "Findings"), h("p", { class: "note" }, `No diagnosis: ${/** @type {Error} */ (error).message}`));
  }
  element.dataset.ready = "1";
  return flags;
}

/** The verdict without the name of the rule that leads it. @param {any} found @returns {string} */
function sentence({ verdict, findings }) {
  const rule = findings.find((/** @type {any} */ one) => verdict.startsWith(`${one.id}: `));
  const text = rule ? verdict.slice(rule.id.length + 2) : verdict;
  return text[0].toUpperCase() + text.slice(1);
}

/** What the verdict is of: with several ranks it is of all of them, whichever is open. @param {any} found @returns {string} */
function scope({ ranks, shown_rank, is_whole_file, step_ns }) {
  const what = is_whole_file ? "whole file" : "step";
  if (ranks === 1) return `The ${what} takes ${duration(step_ns)}.`;
  return `The verdict is for the ${count(ranks)} ranks together. Rank ${shown_rank}'s ${what} takes ${duration(step_ns)}, as shown below.`;
}

/** @param {any} found */
function partition(found) {
  const parts = found.parts.map((/** @type {any} */ part) => ({ name: part.name, amount: part.total_ns / found.steps, colour: partPaint(part.name) }));
  return h("section", {}, h("h3", {}, "Where the step goes"), partitionBar(parts, found.total_ns / found.steps));
}

/** What a finding is about, what it saves, and on which ranks. @param {any} one @param {...(HTMLElement | null)} more */
function summary(one, ...more) {
  return h(
    "summary", {},
    h("span", { class: "severity" }, one.severity),
    " ", // else a screen reader reads both as one word
    h("span", { class: "title" }, one.title),
    " ",
    h("span", { class: "saving" }, one.saving.replace(/(\d) (?=[nµm]?s\b)/g, "$1\u00a0")), // a number and its unit
    " ",
    one.where ? h("span", { class: "where" }, one.where) : null,
    ...more.flatMap((part) => [" ", part]),
  );
}

/**
 * A finding in short, to stand beside its place.
 * @param {any} one
 * @param {() => void} close
 */
export function card(one, close) {
  return h(
    "details", { class: `finding is-${one.severity}`, open: "" },
    summary(one),
    h("p", {}, one.advice),
    h("button", { type: "button", class: "quiet", onclick: close }, "Unpin"),
  );
}

/**
 * @param {any} one
 * @param {(finding: any) => void} goTo
 */
function finding(one, goTo) {
  const { place } = one;
  return h(
    "details", { class: `finding is-${one.severity}` },
    summary(
      one,
      one.placed ? h("span", { class: "where" }, `Stands ${one.placed}.`) : null,
    ),
    h("p", {}, one.advice),
    facts(one.evidence.map((/** @type {any} */ evidence) => [evidence.label, evidence.shown])),
    one.assumption ? h("p", { class: "note" }, `Assumes ${one.assumption}`) : null,
    place ? h("button", { type: "button", onclick: () => goTo(one) }, "Show it in the timeline") : null,
  );
}
