// @ts-check
/** Search over the whole trace: how often each name occurs, and the hits in order of time. */

import { getJson } from "../api.js";
import { h, replace } from "../dom.js";
import { count, duration, plural } from "../units.js";
import { list } from "./details.js";

/**
 * @param {HTMLElement} element
 * @param {string} trace
 * @param {string} text
 * @param {number} after hits are listed from this moment on
 * @param {(event: number) => void} jump
 * @returns {Promise<any>} what was found
 */
export async function showSearch(element, trace, text, after, jump) {
  const found = await getJson(`/api/traces/${trace}/search`, { text, after: Math.max(0, Math.floor(after)) });
  if (!found.total) {
    replace(element, h("h2", {}, `Nothing is called “${text}”`), h("p", { class: "note" }, "Names of kernels, operators, functions, calls and annotations are searched, whatever their case."));
    return found;
  }
  const again = (/** @type {number} */ moment) => showSearch(element, trace, text, moment, jump);
  const rest = found.total - found.before - found.hits.length;
  const last = found.hits.at(-1);
  replace(
    element,
    h("h2", {}, `${plural(found.total, "hit")} for “${text}”`),
    h("section", {}, h("h3", {}, plural(found.names, "name")), h("ul", { class: "events" }, ...found.by_name.slice(0, 12).map((/** @type {any} */ one) => h(
      "li", { class: "plain" }, h("span", { class: "name", title: one.name }, one.name), h("span", { class: "number" }, `${count(one.count)}×`), h("span", { class: "number" }, duration(one.total_ns)),
    )))),
    h("section", {}, h("h3", {}, "In order of time"),
      found.before ? h("button", { type: "button", class: "quiet", onclick: () => again(0) }, `${count(found.before)} earlier: from the start`) : null,
      list(found.hits, jump),
      rest > 0 && last ? h("button", { type: "button", class: "quiet", onclick: () => again(last.start_ns + 1) }, `${count(rest)} later`) : null),
  );
  return found;
}
