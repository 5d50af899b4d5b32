// @ts-check
/** Where each lane is drawn: groups, folding, pinning, filtering, scrolling. */

/**
 * @typedef {{key: string, group: string, title: string, kind: string, rows_of: string,
 *   first_row: number, rows: number, slices: number, device: number | null,
 *   lane_id: number | null, is_main: boolean, outer_rows: number}} Lane
 * @typedef {{number: number, name: string, group: string, unit: string, samples: number,
 *   highest: number}} Counter
 * @typedef {{type: "group" | "lane" | "counter", key: string, title: string, y: number,
 *   height: number, rowHeight: number, rows: number, folded: boolean, pinned: boolean,
 *   lane: Lane | null, counter: Counter | null, children: number}} Place
 */

const ROW = 18;
const THIN_ROW = 14;
const GROUP = 24;
const LANE_GAP = 6;
const COUNTER = 40;
const BUSY = 30;
/** How much higher than usual rows become on a screen that has room for more. */
const MOST_STRETCH = 2;
const COUNTER_GROUPS = { memory: "Memory", queue: "Queue", metrics: "Metrics", counters: "Counters", busy: "Share of time busy", bandwidth: "Bandwidth of copies" };
/** Groups below the threads: other lanes show much of the same. */
const LAST_GROUPS = new Set([COUNTER_GROUPS.busy, COUNTER_GROUPS.bandwidth]);

/** Whether a lane is folded by default because it shows little. @param {Lane} lane */
function isMinor(lane) {
  return lane.kind === "thread" && (lane.key.startsWith("Spans") || lane.group.startsWith("Process Spans"));
}

export class Layout {
  /** @param {Lane[]} lanes */
  constructor(lanes) {
    this.lanes = lanes;
    /** @type {Lane[]} */
    this.extraLanes = [];
    /** @type {Counter[]} */
    this.counters = [];
    this.folded = new Set();
    this.opened = new Set();
    this.pinned = new Set();
    this.filter = "";
    this.scroll = 0;
    this.viewHeight = 1;
    this.stretch = 1;
    /** @type {Place[]} */
    this.places = [];
    this.height = 0;
    this.pinnedHeight = 0;
    this.arrange();
  }

  /** @param {Lane[]} lanes @param {Counter[]} counters */
  addExtras(lanes, counters) {
    this.extraLanes = lanes;
    this.counters = counters;
    this.arrange();
  }

  /** Lanes in order, each idle lane below the work of its device. */
  _all() {
    const found = [];
    for (const lane of this.lanes) {
      found.push(lane);
      if (lane.kind === "busy") found.push(...this.extraLanes.filter((extra) => extra.device === lane.device));
    }
    return found;
  }

  /** @param {string} key @param {boolean} isMinorLane */
  _isFolded(key, isMinorLane) {
    return isMinorLane ? !this.opened.has(key) : this.folded.has(key);
  }

  /** Computes all places again: rows as high as usual, or higher where the screen has room for that. */
  arrange() {
    this.stretch = 1;
    this._arrange();
    const rows = this.places.reduce((sum, place) => sum + (place.type === "group" || place.folded ? 0 : place.height), 0);
    if (rows && this.height < this.viewHeight) {
      this.stretch = Math.min(MOST_STRETCH, 1 + (this.viewHeight - this.height) / rows);
      this._arrange();
    }
    this.scrollTo(this.scroll);
  }

  _arrange() {
    const wanted = this.filter.toLowerCase();
    /** @param {string} text */
    const fits = (text) => !wanted || text.toLowerCase().includes(wanted);
    /** @type {Map<string, Place[]>} */
    const groups = new Map();
    /** @type {Place[]} */
    const pinned = [];
    /** @param {string} group @param {Place} place */
    const put = (group, place) => {
      if (place.pinned) pinned.push(place);
      else groups.set(group, [...(groups.get(group) ?? []), place]);
    };
    for (const lane of this._all()) {
      if (fits(`${lane.group} ${lane.title}`)) put(lane.group, this._lanePlace(lane));
    }
    for (const counter of this.counters) {
      const group = COUNTER_GROUPS[/** @type {keyof typeof COUNTER_GROUPS} */ (counter.group)] ?? counter.group;
      if (fits(`${group} ${counter.name}`)) put(group, this._counterPlace(counter));
    }
    this.places = [];
    let y = 0;
    for (const place of pinned) {
      place.y = y;
      y += place.height + LANE_GAP;
      this.places.push(place);
    }
    this.pinnedHeight = y;
    for (const [group, members] of this._groupOrder(groups)) {
      const isFolded = this.folded.has(`group:${group}`);
      this.places.push({
        type: "group", key: `group:${group}`, title: group, y, height: GROUP, rowHeight: 0, rows: 0,
        folded: isFolded, pinned: false, lane: null, counter: null, children: members.length,
      });
      y += GROUP;
      if (isFolded) continue;
      for (const place of members) {
        place.y = y;
        y += place.height + LANE_GAP;
        this.places.push(place);
      }
    }
    this.height = y;
  }

  /** Steps and GPUs first, then counters, the processes, and what is looked at least. @param {Map<string, Place[]>} groups */
  _groupOrder(groups) {
    const names = new Set(Object.values(COUNTER_GROUPS));
    const rank = (/** @type {string} */ group) => (group === "Steps" ? 0 : group.startsWith("GPU ") ? 1 : LAST_GROUPS.has(group) ? 4 : names.has(group) ? 2 : 3);
    return [...groups].sort((a, b) => rank(a[0]) - rank(b[0]));
  }

  /** A lane without its outer frames, unless they are opened. @param {Lane} whole @returns {Place} */
  _lanePlace(whole) {
    const hidden = this.opened.has(`outer:${whole.key}`) ? 0 : whole.outer_rows ?? 0;
    const lane = { ...whole, first_row: whole.first_row + hidden, rows: whole.rows - hidden };
    const isFolded = this._isFolded(lane.key, isMinor(lane));
    const isDeep = lane.rows > 12;
    const rowHeight = Math.floor(this.stretch * (lane.kind === "busy" ? BUSY : isDeep ? THIN_ROW + 2 : ROW));
    const rows = isFolded ? Math.min(1, lane.rows) : lane.rows;
    return {
      type: "lane", key: lane.key, title: lane.title, y: 0, height: isFolded ? THIN_ROW : rows * rowHeight,
      rowHeight: isFolded ? THIN_ROW : rowHeight, rows, folded: isFolded, pinned: this.pinned.has(lane.key),
      lane, counter: null, children: lane.rows,
    };
  }

  /** @param {Counter} counter @returns {Place} */
  _counterPlace(counter) {
    const key = `counter:${counter.name}`;
    const height = Math.floor(this.stretch * COUNTER);
    return {
      type: "counter", key, title: counter.name, y: 0, height, rowHeight: height, rows: 1,
      folded: false, pinned: this.pinned.has(key), lane: null, counter, children: 0,
    };
  }

  /** Folds or unfolds a lane or a group. @param {string} key */
  toggleFold(key) {
    const lane = this._all().find((one) => one.key === key);
    const set = lane && isMinor(lane) ? this.opened : this.folded;
    if (set.has(key)) set.delete(key);
    else set.add(key);
    this.arrange();
  }

  /** Shows the frames around everything in a lane, or hides them. @param {string} key */
  toggleOuter(key) {
    const name = `outer:${key}`;
    if (!this.opened.delete(name)) this.opened.add(name);
    this.arrange();
  }

  /** The title of a group that stays on the screen while its lanes scroll below it: the group and its place; null for none. @returns {{place: Place, y: number} | null} */
  sticky() {
    const groups = this.places.filter((one) => one.type === "group");
    const at = groups.filter((one) => this.screenY(one) < this.pinnedHeight).length - 1;
    if (at < 0) return null;
    const next = groups[at + 1];
    const most = next ? this.screenY(next) - GROUP : Infinity;
    return { place: groups[at], y: Math.min(this.pinnedHeight, most) };
  }

  /** Pins a lane above the others, or unpins it. @param {string} key */
  togglePin(key) {
    if (this.pinned.has(key)) this.pinned.delete(key);
    else this.pinned.add(key);
    this.arrange();
  }

  /** @param {number} y */
  scrollTo(y) {
    this.scroll = Math.max(0, Math.min(y, this.height - this.viewHeight));
  }

  /** Where a place is on the screen: pinned ones stay. @param {Place} place */
  screenY(place) {
    return place.pinned ? place.y : place.y - this.scroll;
  }

  /** Places that are on the screen, or nearly. @param {number} [margin] */
  visible(margin = 0) {
    return this.places.filter((place) => {
      const y = this.screenY(place);
      return y + place.height > -margin && y < this.viewHeight + margin;
    });
  }

  /** What is at a height of the screen. @param {number} y @returns {Place | null} */
  at(y) {
    const inside = this.places.filter((one) => {
      const top = this.screenY(one);
      return y >= top && y < top + one.height;
    });
    return inside.find((one) => one.pinned) ?? inside[0] ?? null;
  }

  /** The place that holds a row. @param {string} of @param {number} row @returns {Place | null} */
  placeOfRow(of, row) {
    return this.places.find(
      (one) => one.lane && one.lane.rows_of === of && row >= one.lane.first_row && row < one.lane.first_row + one.lane.rows,
    ) ?? null;
  }

  /** Top of a row on the screen; null where it is folded away. @param {string} of @param {number} row */
  rowY(of, row) {
    const place = this.placeOfRow(of, row);
    if (!place || !place.lane) return null;
    const within = Math.min(row - place.lane.first_row, place.rows - 1);
    return this.screenY(place) + within * place.rowHeight;
  }

  /** Scrolls so that a row can be seen, unfolding what hides it. @param {string} of @param {number} row */
  reveal(of, row) {
    const lane = this._all().find((one) => one.rows_of === of && row >= one.first_row && row < one.first_row + one.rows);
    if (!lane) return;
    this.folded.delete(`group:${lane.group}`);
    this.folded.delete(lane.key);
    if (isMinor(lane)) this.opened.add(lane.key);
    if (row < lane.first_row + (lane.outer_rows ?? 0)) this.opened.add(`outer:${lane.key}`);
    this.filter = "";
    this.arrange();
    const y = this.rowY(of, row);
    if (y === null) return;
    if (y < this.pinnedHeight + 8 || y > this.viewHeight - 40) this.scrollTo(this.scroll + y - this.viewHeight * 0.4);
  }
}
