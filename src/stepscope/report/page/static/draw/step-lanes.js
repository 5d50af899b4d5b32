// @ts-check
/** One step as lanes of slices, as a static picture with titles. Works from plain values. */

import { h, svg } from "../dom.js";
import { CAUSES, partFill, partPaint } from "../part-colours.js";
import { count, duration, share } from "../units.js";
import { definitions } from "./patterns.js";
import { momentText, roundNumbers, sideOf } from "./ticks.js";

/**
 * @typedef {{title: string, slices: [number, number, string, string][], rest?: number[], rest_what?: string, others?: number, rank?: number}} Lane
 *   slices: start, duration, name, what; `rest`: the share of each equal part of the time that other slices cover
 */

const WIDTH = 960;
const TITLE = 178;
const ROW = 18;
const AXIS = 20;
/** About so many moments are marked. */
const MOMENTS = 6;
/** What a slice is to its colour. */
const COLOUR_OF = /** @type {Record<string, string>} */ ({
  compute: "compute", communication: "communication", memcpy: "copy", memset: "fill", cpu_op: "operator", user_annotation: "annotation",
});
const LABELLED = 46;
const LETTER = 6.2;
/** Narrower slices have no edge, which would hide them. */
const LEAST_EDGED = 3;

/** Colour and pattern of a category, of a cause of idle time, or of a part of a step. @param {string} what @returns {[string, string | undefined]} */
function paint(what) {
  if (COLOUR_OF[what]) return [`var(--colour-${COLOUR_OF[what]})`, undefined];
  return partFill(what.startsWith("idle_") ? CAUSES[what.slice(5)]?.[0] ?? "" : what);
}

/** What the colours of lanes stand for. @param {Lane[]} lanes */
export function laneKeys(lanes) {
  const words = [...new Set(lanes.flatMap((lane) => lane.slices.map(([, , , what]) => what)))];
  return h("ul", { class: "strip-keys", "aria-label": "Colours" }, ...words.map((word) => {
    const dot = h("span", { class: "dot" });
    dot.style.background = partPaint(word);
    return h("li", {}, dot, word);
  }));
}

/** @param {Lane[]} lanes @param {number} lastingNs @param {(lane: Lane) => (() => void) | null} [link] where a lane leads */
export function stepLanes(lanes, lastingNs, link) {
  const height = lanes.length * ROW + AXIS;
  const scale = (WIDTH - TITLE) / lastingNs;
  const parts = lanes.flatMap((lane, at) => drawLane(lane, at * ROW, scale, lastingNs, link?.(lane) ?? null));
  const picture = svg("svg", { class: "step-lanes", viewBox: `0 0 ${WIDTH} ${height}`, width: WIDTH, height, role: "img", "aria-label": `A step of ${duration(lastingNs)} in ${lanes.length} lanes` }, definitions(), ...parts);
  for (const at of roundNumbers(0, lastingNs, lastingNs / MOMENTS)) {
    const x = TITLE + at * scale;
    const words = momentText(at, lastingNs);
    const side = sideOf(x, words.length * LETTER, TITLE, WIDTH);
    picture.append(
      svg("line", { class: "step-lanes-mark", x1: x, x2: x, y1: height - AXIS, y2: height - AXIS + 4 }),
      svg("text", { class: `step-lanes-axis${side}`, x, y: height - 6 }, words),
    );
  }
  return picture;
}

/** @param {Lane} lane @param {number} y @param {number} scale @param {number} lastingNs @param {(() => void) | null} go */
function drawLane(lane, y, scale, lastingNs, go) {
  const tall = ROW - 3;
  const found = [
    svg("text", { class: "step-lanes-title", x: 0, y: y + ROW / 2 }, lane.title.length > 30 ? `${lane.title.slice(0, 29)}…` : lane.title),
    svg("rect", { class: "step-lanes-ground", x: TITLE, y, width: WIDTH - TITLE, height: tall }),
  ];
  if (go) {
    const title = found[0];
    for (const [name, value] of Object.entries({ role: "link", tabindex: "0", class: "step-lanes-title is-link" })) title.setAttribute(name, value);
    title.addEventListener("click", go);
    title.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); });
  }
  const rest = lane.rest ?? [];
  const bucket = (WIDTH - TITLE) / Math.max(rest.length, 1);
  rest.forEach((part, at) => {
    if (part <= 0) return;
    const bar = svg("rect", { x: TITLE + at * bucket, y: y + tall * (1 - part), width: bucket, height: tall * part, opacity: 0.6 });
    bar.style.fill = paint(lane.rest_what ?? "")[0];
    bar.append(svg("title", {}, `${count(lane.others ?? 0)} short slices in all: ${share(part)} of ${duration(lastingNs / rest.length)} here`));
    found.push(bar);
  });
  for (const [start, lasting, name, what] of lane.slices) {
    const [x, width] = [TITLE + start * scale, Math.max(lasting * scale, 0.6)];
    const bar = svg("rect", { class: `step-lanes-slice${width > LEAST_EDGED ? " is-edged" : ""}`, x, y, width, height: tall });
    const [fill, over] = paint(what);
    bar.style.fill = fill;
    bar.append(svg("title", {}, `${name}: ${duration(lasting)}`));
    found.push(bar);
    if (over && width > 3) found.push(svg("rect", { class: `pattern-${over}`, x, y, width, height: tall }));
    const letters = Math.floor((width - 6) / LETTER);
    if (width >= LABELLED) found.push(svg("text", { class: "step-lanes-name", x: x + 3, y: y + tall / 2 + 0.5 }, name.length > letters ? `${name.slice(0, letters - 1)}…` : name));
  }
  return found;
}
