// @ts-check
/** What memory held at a moment, and one allocation in full. */

import { partitionBar } from "../draw/bar.js";
import { table } from "../draw/table.js";
import { h } from "../dom.js";
import { facts } from "../panels/details.js";
import { count, duration, share, size } from "../units.js";
import { memoryPaint, memoryWord } from "../memory-colours.js";
import { segmentMap } from "./segments.js";

/** What the allocator had reserved. @param {{reserved_bytes: number, allocated_bytes: number}} state */
function reserved({ reserved_bytes: bytes, allocated_bytes: allocated }) {
  if (allocated > bytes) return `${size(bytes)}, less than was allocated: the snapshot lacks segments`;
  return bytes ? `${size(bytes)}, ${share(1 - allocated / bytes)} of it unused` : size(bytes);
}

/** @param {any} state @param {(allocation: number) => void} pick @returns {(Node | null)[]} */
export function stateOf(state, pick) {
  const parts = state.categories.map((/** @type {any} */ one) => ({ name: memoryWord(one.category), amount: one.allocated_bytes, colour: memoryPaint(one.category) }));
  const isKnown = state.categories.some((/** @type {any} */ one) => one.category !== "unknown");
  return [
    h("h2", {}, `${size(state.allocated_bytes)} held${state.moment.startsWith("event") ? "" : ` at ${state.moment}`}`),
    facts([
      ["When", state.time_ns === null ? null : `${duration(state.time_ns)} after the start`],
      ["Event", state.event < 0 ? "before the first" : count(state.event)],
      ["Asked for", size(state.requested_bytes)],
      ["Reserved", reserved(state)],
    ]),
    isKnown ? partitionBar(parts, state.allocated_bytes, size) : null,
    ...state.tables.filter((/** @type {any} */ one) => one.total).map((/** @type {any} */ one) => h(
      "section", { "data-table": one.name }, h("h3", {}, one.title),
      table(narrow(one), { shown: 8, link: (column, _, row) => (one.name === "allocations" && column === "allocated_bytes" ? () => pick(/** @type {number} */ (row[0])) : null) }),
    )),
    segmentMap(state.segments, pick),
    ...state.notes.map((/** @type {string} */ note) => h("p", { class: "note" }, `Note: ${note}`)),
  ];
}

/** Columns of each table that a narrow panel has room for; the first stays for links. */
const SHOWN = /** @type {Record<string, string[]>} */ ({
  lines: ["line", "allocated_bytes", "allocated_share"], modules: ["module", "allocated_bytes", "allocated_share"],
  allocations: ["allocation", "allocated_bytes", "category", "line"], sizes: ["size_class", "allocated_bytes", "allocations"],
});

/** @param {any} data */
function narrow(data) {
  const kept = SHOWN[data.name].map((name) => data.columns.findIndex((/** @type {any} */ one) => one.name === name));
  return { ...data, columns: kept.map((at) => data.columns[at]), rows: data.rows.map((/** @type {unknown[]} */ row) => kept.map((at) => row[at])) };
}

/** @param {any} one @param {boolean} hasTimes @returns {(Node | null)[]} */
export function allocationOf(one, hasTimes) {
  const dot = h("span", { class: "dot" });
  dot.style.background = memoryPaint(one.category);
  return [
    h("h2", { class: "event-name" }, dot, one.name ?? one.line),
    facts([
      ["Size", size(one.size_bytes)],
      ["Asked for", one.requested_bytes === one.size_bytes ? null : size(one.requested_bytes)],
      ["Category", `${memoryWord(one.category)}${sure(one)}`],
      ["Step", one.step === null ? null : String(one.step)],
      ["Phase", one.phase],
      ["Line", one.name === null ? null : one.line],
      ["Made", moment(one.start_event, one.start_ns, "before the recording")],
      ["Freed", moment(one.free_event, one.free_ns, "not in the recording")],
      ["Lived for", one.lasted_ns !== null ? duration(one.lasted_ns) : !hasTimes ? null : one.free_event !== null ? `to ${duration(one.free_ns)} after the start` : "to the end of the recording, at least"],
      ["Stream", one.stream ? `0x${one.stream.toString(16)}` : "default"],
      ["Address", one.address],
    ]),
    stack(one.is_stack_of_free ? "Freed at (the request was not recorded)" : "Requested at", one.stack),
    stack("Freed at", one.free_stack),
    one.stack.length ? null : h("p", { class: "note" }, "No stack was recorded for it."),
  ];
}

const HOW = /** @type {Record<string, string>} */ ({ census: "the training noted it", annotation: "the program said so", recorder: "torch's recorder said so", stack: "by its stack", lifetime: "guessed by when it was made and freed" });

/** @param {any} one */
function sure(one) {
  return HOW[one.source] ? ` (${one.confidence === "certain" || one.confidence === "guessed" ? "" : `${one.confidence}, `}${HOW[one.source]})` : "";
}

/** @param {number | null} event @param {number | null} ns @param {string} missing */
function moment(event, ns, missing) {
  if (event === null) return missing;
  return ns === null ? `event ${count(event)}` : `${duration(ns)} after the start, event ${count(event)}`;
}

/** @param {string} title @param {any[]} frames */
function stack(title, frames) {
  if (!frames.length) return null;
  const python = frames.filter((frame) => frame.is_python);
  const shown = python.length ? python : frames;
  const list = (/** @type {any[]} */ some) => h("ol", { class: "stack" }, ...some.map((frame) => h("li", { class: frame.is_python ? null : "is-native", title: frame.filename }, frame.text)));
  const rest = frames.length - shown.length;
  return h(
    "section", {}, h("h3", {}, title), list(shown),
    rest ? h("details", {}, h("summary", { class: "note" }, `all ${count(frames.length)} frames, C++ included`), list(frames)) : null,
  );
}
