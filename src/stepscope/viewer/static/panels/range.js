// @ts-check
/** What a selected range of time holds: each GPU's parts, idle causes, kernels, operators. */

import { getJson, isAbort } from "../api.js";
import { partitionBar } from "../draw/bar.js";
import { table } from "../draw/table.js";
import { h, replace } from "../dom.js";
import { CAUSES } from "../part-colours.js";
import { paint } from "../theme.js";
import { count, duration, share } from "../units.js";
import { facts } from "./details.js";

/** Parts of a device's time, with their colours. */
const PARTS = /** @type {[string, string, number][]} */ ([
  ["compute_ns", "compute", 1],
  ["exposed_comm_ns", "exposed communication", 2],
  ["exposed_memcpy_ns", "exposed copies", 3],
]);

/** @type {AbortController | null} */
let pending = null;

/**
 * @param {HTMLElement} element
 * @param {string} trace
 * @param {[number, number]} range
 * @param {HTMLElement} noting what notes the range
 * @param {{zoom: () => void, flame: () => void, clear: () => void}} actions
 */
export async function showRange(element, trace, range, noting, actions) {
  pending?.abort();
  pending = new AbortController();
  const head = h(
    "div", { class: "panel-head" },
    h("h2", {}, `${duration(range[1] - range[0])} selected`),
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: actions.zoom }, "Zoom"),
      h("button", { type: "button", onclick: actions.flame }, "Flame graph"),
      h("button", { type: "button", class: "quiet", onclick: actions.clear }, "Clear")),
    noting,
  );
  // The head stays in its place: a field that is moved loses what is being typed.
  const parts = h("div", {}, h("p", { class: "note" }, "Adding up…"));
  replace(element, head, parts);
  try {
    const found = await getJson(`/api/traces/${trace}/range`, { start: range[0], end: range[1] }, pending.signal);
    replace(parts, ...found.devices.map(device), kernels(found), operators(found));
    element.dataset.ready = "1";
  } catch (error) {
    if (!isAbort(error)) replace(parts, h("p", { class: "error" }, String(/** @type {Error} */ (error).message)));
  }
}

/** The parts of one GPU's time. @param {any} found @returns {import("../draw/bar.js").Part[]} */
export function partsOf(found) {
  const parts = PARTS.map(([key, name, number]) => ({ name, amount: found[key], colour: paint(number) }));
  if (found.idle) {
    for (const [cause, [name, number]] of Object.entries(CAUSES)) parts.push({ name, amount: found.idle[cause] ?? 0, colour: paint(number) });
  } else parts.push({ name: "idle", amount: found.idle_ns, colour: paint(16) });
  return parts;
}

/** @param {any} found */
function device(found) {
  const whole = found.total_ns;
  return h(
    "section", { "data-device": found.device },
    h("h3", {}, `GPU ${found.device}`),
    partitionBar(partsOf(found), whole),
    facts([
      ["Busy", `${duration(found.busy_ns)} (${share(whole ? found.busy_ns / whole : 0)})`],
      ["Communication", found.total_comm_ns ? `${duration(found.total_comm_ns)}, ${found.overlap_share ? share(found.overlap_share) : "none of it"} hidden behind compute` : null],
      ["Not recorded", found.outside_ns ? duration(found.outside_ns) : null],
    ]),
  );
}

/** @param {any} found */
function kernels(found) {
  const { rows, names, count: number, total_ns: total } = found.kernels;
  if (!number) return h("p", { class: "note" }, "No GPU work in this range.");
  const columns = [
    { name: "name", label: "kernel", number: false },
    { name: "count", label: "count", number: true },
    { name: "total_ns", label: "time", number: true },
    { name: "share", label: "share", number: true },
  ];
  const cells = rows.map((/** @type {any} */ row) => [row.name, row.count, row.total_ns, total ? row.total_ns / total : 0]);
  return h("section", {}, h("h3", {}, `GPU work: ${count(number)} pieces, ${duration(total)}`), table({ columns, rows: cells, total: names }, { shown: 12 }));
}

/** @param {any} found */
function operators(found) {
  const { rows, names, host_self_ns: host } = found.operators;
  if (!rows.length) return null;
  const columns = [
    { name: "name", label: "operator", number: false },
    { name: "count", label: "calls", number: true },
    { name: "device_ns", label: "GPU time", number: true },
    { name: "host_self_ns", label: "host self", number: true },
  ];
  const cells = rows.map((/** @type {any} */ row) => [row.name, row.count, row.device_ns, row.host_self_ns]);
  return h("section", {}, h("h3", {}, `Operators: ${duration(host)} on the host`), table({ columns, rows: cells, total: names }, { shown: 12 }));
}
