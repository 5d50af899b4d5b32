// @ts-check
/** What the mouse is over, in a few words. */

import { h, replace } from "../dom.js";
import { dot } from "../panels/details.js";
import { count, duration, inUnit, share, shortName } from "../units.js";

/**
 * @param {HTMLElement} tip
 * @param {{x: number, y: number, found: {scene: import("./scenes.js").Scene, at: number, lane: import("./layout.js").Lane} | null,
 *   place: import("./layout.js").Place | null, camera: import("./camera.js").Camera, names: import("../names.js").Names,
 *   counters: import("./counters.js").CounterTiles, surface: HTMLElement}} what
 */
export function showTip(tip, what) {
  const lines = what.found ? ofSlice(what.found, what.names) : what.place?.counter ? ofCounter(what) : [];
  tip.classList.toggle("is-shown", lines.length > 0);
  if (!lines.length) return;
  replace(tip, ...lines);
  const left = what.surface.offsetLeft + what.x + 14;
  const top = what.surface.offsetTop + what.y + 16;
  const room = /** @type {HTMLElement} */ (tip.offsetParent ?? document.body);
  tip.style.left = `${Math.max(4, Math.min(left, room.clientWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${top + tip.offsetHeight > room.clientHeight - 4 ? top - tip.offsetHeight - 30 : top}px`;
}

/**
 * @param {{scene: import("./scenes.js").Scene, at: number, lane: import("./layout.js").Lane}} found
 * @param {import("../names.js").Names} names
 */
function ofSlice({ scene, at, lane }, names) {
  const name = names.get(scene.name[at]) ?? "…";
  names.fetch();
  if (lane.kind === "busy") {
    return [h("div", {}, scene.wide[at] ? "busy throughout" : `busy for ${share(scene.share[at])} of ${duration(scene.width[at])}`)];
  }
  if (scene.wide[at]) {
    return [h("div", { class: "tip-name" }, dot(scene.colour[at]), shortName(name)), h("div", { class: "tip-more" }, duration(scene.width[at]))];
  }
  const number = scene.count[at];
  const many = number > 1 ? `the longest of ${count(number)} slices in ${duration(scene.width[at])}` : `within ${duration(scene.width[at])}`;
  return [
    h("div", { class: "tip-name" }, dot(scene.colour[at]), shortName(name)),
    h("div", { class: "tip-more" }, `${many}, ${share(scene.share[at])} covered`),
  ];
}

/** @param {Parameters<typeof showTip>[1]} what */
function ofCounter({ x, place, camera, counters }) {
  const counter = place?.counter;
  if (!counter) return [];
  const value = counters.valueAt(counter.number, camera.ns(x));
  if (value === null) return [];
  return [
    h("div", { class: "tip-name" }, counter.name),
    h("div", { class: "tip-more" }, `${inUnit(value, counter.unit)} (at most ${inUnit(counter.highest, counter.unit)})`),
  ];
}
