// @ts-check
/** Which rows and counters the screen needs, and which are worth having with them. */

import { MOST_ROWS } from "./scenes.js";

const AHEAD = 400;
const KINDS = /** @type {const} */ (["events", "extra", "idle"]);

/**
 * Asks for what is missing.
 * @param {import("./layout.js").Layout} layout
 * @param {import("./camera.js").Camera} camera
 * @param {import("./scenes.js").Scenes} scenes
 * @param {import("./counters.js").CounterTiles} counters
 */
export function wantVisible(layout, camera, scenes, counters) {
  /** @type {Record<string, Set<number>>} */
  const rows = { events: new Set(), extra: new Set(), idle: new Set() };
  /** @type {Record<string, Set<number>>} */
  const nearby = { events: new Set(), extra: new Set(), idle: new Set() };
  for (const place of layout.visible(AHEAD)) {
    const top = layout.screenY(place);
    if (place.counter && top < layout.viewHeight) counters.want(place.counter.number, camera);
    const lane = place.lane;
    if (!lane) continue;
    for (let row = 0; row < place.rows; row++) {
      const y = top + row * place.rowHeight;
      if (y < -AHEAD || y > layout.viewHeight + AHEAD || nearby[lane.rows_of].size >= MOST_ROWS) continue;
      nearby[lane.rows_of].add(lane.first_row + row);
      if (y > -place.rowHeight && y < layout.viewHeight) rows[lane.rows_of].add(lane.first_row + row);
    }
  }
  for (const of of KINDS) scenes.want(of, [...rows[of]], [...nearby[of]].sort((a, b) => a - b), camera);
}
