// @ts-check
/** Bars below each other on one scale: the step after each fix, from one total to another, who came when. */

import { h } from "../dom.js";
import { limitPaint, partPaint } from "../part-colours.js";

/**
 * @typedef {{name: string, from?: number, to: number, gone?: number, text: string, words?: string, limit?: string,
 *   part?: string, pieces?: [number, string][], is?: string, event?: number | null, rank?: number}} Bar
 */

/**
 * Rows as wide as what holds them: bars shrink on a narrow page, names and numbers do not.
 * @param {{rows: Bar[], title?: string}} block
 * @param {((bar: Bar) => (() => void) | null) | undefined} [link] where a bar leads
 */
export function bars({ rows, title }, link) {
  const highest = Math.max(1, ...rows.map((one) => Math.max(one.from ?? 0, one.to, one.gone ?? 0)));
  const words = rows.map((one) => `${one.name}: ${one.text}`).join(", ");
  const picture = h("div", { class: "bars", role: "img", "aria-label": `${title ? `${title}. ` : ""}${words}` }, ...rows.map((one) => row(one, highest, link?.(one) ?? null)));
  return h("figure", { class: "picture" }, title ? h("h3", {}, title) : null, picture);
}

/**
 * @param {Bar} one
 * @param {number} highest what the width of the bars stands for
 * @param {(() => void) | null} go
 */
function row(one, highest, go) {
  const from = one.from ?? 0;
  const bar = span("bars-bar", Math.min(from, one.to), Math.max(from, one.to), highest);
  if (one.limit) bar.style.background = limitPaint(one.limit);
  else if (one.part) bar.style.background = partPaint(one.part);
  let at = from;
  for (const [amount, part] of one.pieces ?? []) {
    const piece = span("bars-piece", at - from, at - from + amount, one.to - from);
    piece.style.background = partPaint(part);
    bar.append(piece);
    at += amount;
  }
  const isWait = one.gone !== undefined && one.gone <= one.to;
  const gone = one.gone === undefined ? null : isWait ? span("bars-gone is-wait", from, one.gone, highest) : span("bars-gone", one.to, one.gone, highest);
  const name = go ? h("button", { type: "button", class: "link", onclick: go }, one.name) : one.name;
  return h(
    "div", { class: `bars-row is-${one.is ?? "plain"}` },
    h("span", { class: "bars-name", title: one.name }, name),
    h("span", { class: "bars-room" }, isWait ? null : gone, bar, isWait ? gone : null),
    h("span", { class: "bars-number number" }, one.text),
    h("span", { class: "bars-words" }, one.words ?? ""),
  );
}

/** @param {string} kind @param {number} from @param {number} to @param {number} highest */
function span(kind, from, to, highest) {
  const found = h("span", { class: kind });
  found.style.left = `${(100 * from) / highest}%`;
  found.style.width = `${(100 * (to - from)) / highest}%`;
  return found;
}
