// @ts-check
/** A report in one file: draws the sections that the page's data describes. `blocks.py` makes them. */

import { partitionBar } from "./draw/bar.js";
import { PICTURES } from "./draw/pictures.js";
import { table } from "./draw/table.js";
import { h, prose, replace } from "./dom.js";
import { partPaint } from "./part-colours.js";
import { preparePrinting, setTheme, startTheme, toggleTheme } from "./theme.js";
import { share } from "./units.js";

/** @typedef {{is: string, [key: string]: any}} Block */
/** @typedef {{id: string, title: string, blocks: Block[]}} Section */

const FILTER_FROM = 8;

/** @type {Record<string, (block: any) => Node>} */
const DRAW = {
  ...PICTURES,
  text: ({ text, kind }) => h("p", { class: kind || null }, ...prose(text)),
  items: ({ items }) => h("ul", { class: "items" }, ...items.map((/** @type {string} */ one) => h("li", {}, ...prose(one)))),
  facts: (block) => facts(block.facts),
  numbers: ({ numbers }) => h("dl", { class: "large-numbers" }, ...numbers.map((/** @type {[string, string]} */ [label, text]) => h("div", {}, h("dt", {}, label), h("dd", {}, text)))),
  bar: ({ parts, total_ns: total, steps }) => partitionBar(parts.map((/** @type {any} */ part) => ({ name: part.name, amount: part.total_ns / steps, colour: partPaint(part.name) })), total / steps),
  findings: ({ findings }) => h("div", {}, ...findings.map(finding)),
  table: (block) => h("div", { class: "table-block" }, block.title ? h("h3", {}, block.title) : null, block.note ? h("p", { class: "note" }, ...prose(block.note)) : null, table(block, { shown: block.shown, filter: block.rows.length > FILTER_FROM })),
};

/** @param {[string, string][]} pairs */
function facts(pairs) {
  return h("dl", { class: "facts" }, ...pairs.flatMap(([label, text]) => [h("dt", {}, label), h("dd", {}, text)]));
}

/** @param {any} one */
function finding(one) {
  const saves = one.saving_share ? h("span", { class: "saves" }, `saves ${one.up_to}${share(one.saving_share)}${one.whose}`) : null;
  const more = /** @type {[string, string][]} */ ([
    ["saving", one.saving], ["if", one.assumption], ["found on", one.where], ["steps", one.steps],
  ]).filter(([, text]) => text);
  return h(
    "details", { class: `finding is-${one.severity}` },
    h("summary", {}, h("span", { class: "finding-head" }, h("span", { class: "severity" }, one.severity), h("span", { class: "title" }, one.title), saves), h("span", { class: "advice" }, ...prose(one.advice)), one.placed ? h("span", { class: "note" }, `Stands ${one.placed}.`) : null),
    h("div", { class: "finding-body" }, facts(more), h("h3", {}, "Evidence"), facts(one.facts), h("p", { class: "note" }, "Explained in ", h("code", {}, one.page))),
  );
}

/** @param {Section} section */
function draw(section) {
  return h("section", { id: section.id, "aria-labelledby": `title-${section.id}` }, h("h2", { id: `title-${section.id}` }, section.title), ...section.blocks.map((block) => DRAW[block.is](block)));
}

/** Marks the section that is being read. @param {HTMLElement} links @param {HTMLElement[]} sections */
function follow(links, sections) {
  const seen = new Set();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target.id);
    const current = sections.find((one) => seen.has(one.id))?.id;
    for (const link of links.querySelectorAll("a")) {
      if (link.hash === `#${current}`) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-60px 0px -45% 0px" });
  for (const one of sections) observer.observe(one);
}

/** In the frame of a notebook, its theme is the page's, and the page says how tall it is. */
function fitNotebook() {
  if (parent === window) return;
  window.addEventListener("message", ({ source, data }) => {
    if (source !== parent || !["light", "dark"].includes(data?.stepscope_theme)) return;
    setTheme(data.stepscope_theme);
    parent.postMessage({ stepscope_height: document.documentElement.scrollHeight }, "*");
  });
}

function start() {
  startTheme();
  fitNotebook();
  const data = JSON.parse(document.getElementById("data")?.textContent ?? "{}");
  const sections = data.sections.map(draw);
  const links = h("nav", { class: "contents", "aria-label": "Sections" }, ...data.sections.map((/** @type {Section} */ one) => h("a", { href: `#${one.id}` }, one.title)));
  const theme = h("button", { type: "button", class: "theme", title: "Dark or light", "aria-label": "Dark or light", onclick: toggleTheme }, "◐");
  const head = h("header", { class: "head" }, h("div", {}, h("h1", {}, ...data.title.split(/(?<=[._/-])/).flatMap((/** @type {string} */ part) => [part, h("wbr")])), h("p", { class: "subtitle" }, data.subtitle), data.path ? h("p", { class: "path" }, data.path) : null), theme);
  const foot = h("footer", { class: "note" }, `${data.kind} by Stepscope ${data.version}.`);
  replace(/** @type {HTMLElement} */ (document.getElementById("app")), data.sections.length > 1 ? links : h("div", { class: "contents" }), h("main", {}, head, ...sections, foot));
  follow(links, sections);
  preparePrinting();
  document.documentElement.dataset.ready = "1";
}

start();
