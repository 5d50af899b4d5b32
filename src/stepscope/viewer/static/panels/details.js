// @ts-check
/** One event in full: what it is, what contains it, what it is linked to, its arguments. */

import { h, replace } from "../dom.js";
import { paint } from "../theme.js";
import { count, duration, plural, shortName, size } from "../units.js";

const FIRST_LINKS = 12;

/**
 * @param {HTMLElement} element
 * @param {any} picked what the server says
 * @param {(event: number) => void} jump goes to another event
 */
export function showDetails(element, picked, jump) {
  if (picked.type === "error") replace(element, h("p", { class: "error" }, picked.message));
  else if (picked.type === "gap") replace(element, ...gap(picked, jump));
  else replace(element, ...event(picked, jump));
}

/** @param {any} picked @param {(event: number) => void} jump */
function gap(picked, jump) {
  return [
    h("h2", {}, "GPU idle"),
    facts([
      ["Cause", picked.cause + (picked.note ? ` (${picked.note})` : "")],
      ["Duration", duration(picked.dur_ns)],
      ["Start", duration(picked.start_ns)],
      ["GPU", String(picked.device)],
    ]),
    picked.event ? h("section", {}, h("h3", {}, "What explains it"), list([picked.event], jump)) : null,
    picked.ended_by ? h("section", {}, h("h3", {}, "What ended it"), list([picked.ended_by], jump),
      picked.launch ? h("p", { class: "note" }, lateness(picked)) : h("p", { class: "note" }, "Its launch was not recorded."),
      picked.launch ? list([picked.launch], jump) : null) : null,
    section("What the launching thread did meanwhile", picked.done.map((/** @type {any} */ one) => [shortName(one.name), duration(one.self_ns)])),
  ];
}

/** When the work after a gap was launched. @param {any} picked */
function lateness({ late_ns: late }) {
  return `Its launch began ${duration(Math.abs(late))} ${late < 0 ? "before" : "after"} this stretch of idle time:`;
}

/** @param {any} picked @param {(event: number) => void} jump */
function event(picked, jump) {
  const category = picked.kind !== "none" ? picked.kind : picked.category.replaceAll("_", " ");
  return [
    h("h2", { class: "event-name" }, dot(picked.colour), picked.name),
    picked.said ? h("p", { class: "said" }, `${picked.said}.`) : null,
    facts([
      ["Duration", duration(picked.dur_ns)],
      ["Self", picked.self_ns !== picked.dur_ns ? duration(picked.self_ns) : null],
      ["Start", `${duration(picked.start_ns)} after the first event`],
      ["Category", category + (picked.group ? `, ${picked.group}` : "")],
      ["Step", picked.step === null ? null : String(picked.step)],
      ["Lane", picked.lane_title ?? null],
      ["Size", picked.bytes === null ? null : size(picked.bytes)],
      ["Bandwidth", picked.bytes !== null && picked.dur_ns > 0 ? `${(picked.bytes / picked.dur_ns).toFixed(1)} GB/s` : null],
    ]),
    ...picked.links.map((/** @type {any} */ link) => links(link, jump)),
    ...stack([...picked.stack].reverse(), jump),
    section("Arguments", Object.entries(picked.arguments).map(([key, value]) => [key, argument(value)])),
  ];
}

/** What contains an event, the innermost first: the user's frames, then those of libraries. @param {any[]} around @param {(event: number) => void} jump */
function stack(around, jump) {
  const [own, library] = [false, true].map((kind) => around.filter((one) => one.is_library === kind));
  if (!own.length) return library.length ? [h("section", {}, h("h3", {}, "Inside"), list(library, jump))] : [];
  return [
    h("section", {}, h("h3", {}, "Inside"), list(own, jump)),
    library.length ? h("details", { class: "folded" }, h("summary", {}, `${plural(library.length, "frame")} of libraries`), list(library, jump)) : null,
  ];
}

/** @param {any} link @param {(event: number) => void} jump */
function links(link, jump) {
  const shown = h("div", {}, list(link.events.slice(0, FIRST_LINKS), jump));
  const rest = link.events.length - FIRST_LINKS;
  const more = rest > 0 ? h("button", { type: "button", class: "quiet", onclick: () => replace(shown, list(link.events, jump)) }, `Show ${rest} more`) : null;
  if (more) shown.append(more);
  const total = link.total > 1 ? ` (${count(link.total)})` : "";
  const cut = link.total > link.events.length ? h("p", { class: "note" }, `the first ${link.events.length} of ${count(link.total)}`) : null;
  return h("section", {}, h("h3", {}, link.title[0].toUpperCase() + link.title.slice(1) + total), shown, cut);
}

/** A list of events to jump to. @param {any[]} events @param {(event: number) => void} jump */
export function list(events, jump) {
  return h("ul", { class: "events" }, ...events.map((one) => h("li", {}, h(
    "button", { type: "button", title: one.name, onclick: () => jump(one.event) },
    dot(one.colour ?? 0), h("span", { class: "name" }, one.name), h("span", { class: "number" }, one.drawn ? duration(one.dur_ns) : ""),
  ))));
}

/** @param {number} number */
export function dot(number) {
  const element = h("span", { class: "dot" });
  element.style.background = paint(number);
  return element;
}

/** @param {[string, string | null][]} rows */
export function facts(rows) {
  return h("dl", { class: "facts" }, ...rows.filter(([, value]) => value !== null).flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
}

/** @param {string} title @param {[string, string][]} rows */
function section(title, rows) {
  return rows.length ? h("section", {}, h("h3", {}, title), facts(/** @type {[string, string | null][]} */ (rows))) : null;
}

/** @param {unknown} value */
function argument(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 4000 ? `${text.slice(0, 4000)}… (${plural(text.length, "character")})` : text;
}
