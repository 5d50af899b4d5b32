// @ts-check
/** A flame graph made shorter: equal layers of a model as one, and the outer frames that hold everything as one. */

/** The number that tells the instances of a module apart, as in "Qwen2DecoderLayer_13". */
const INSTANCE = /^((?:nn\.Module: )?[A-Z][A-Za-z0-9]*)_\d+$/;
/** A frame is an outer one if the next within it has so much of its time. */
const ALMOST_ALL = 0.98;
const FEWEST = 3;

/**
 * The same graph with equal layers merged and outer frames folded.
 * @param {import("./flame.js").FlameData} data parents come before their children
 * @returns {import("./flame.js").FlameData}
 */
export function fold(data) {
  return foldOuter(mergeLayers(data));
}

/** Siblings that are instances of one module become one, and so does what is below them. @param {import("./flame.js").FlameData} data */
function mergeLayers(data) {
  /** @type {Map<string, number>} */
  const known = new Map();
  /** @type {number[]} */
  const place = [];
  /** @type {{name: string, parent: number, self: number, total: number, count: number, colour: number, layers: number}[]} */
  const nodes = [];
  data.name.forEach((name, at) => {
    const parent = data.parent[at] < 0 ? -1 : place[data.parent[at]];
    const kind = INSTANCE.exec(name)?.[1] ?? name;
    const key = `${parent}/${kind}`;
    let number = known.get(key);
    if (number === undefined) {
      number = nodes.length;
      known.set(key, number);
      nodes.push({ name, parent, self: 0, total: 0, count: 0, colour: data.colour?.[at] ?? 0, layers: 0 });
    }
    place.push(number);
    const node = nodes[number];
    if (node.layers && node.name !== name) node.name = kind;
    node.layers++;
    node.self += data.self_ns[at];
    node.total += data.total_ns[at];
    node.count += data.count[at];
  });
  for (const node of nodes) if (node.layers > 1 && INSTANCE.test(`${node.name}_0`)) node.name = `${node.name} (${node.layers} merged)`;
  return graph(data.whole_ns, nodes);
}

/** Frames from a root on that hold but one other become one. @param {import("./flame.js").FlameData} data @returns {import("./flame.js").FlameData} */
function foldOuter(data) {
  const number = data.name.length;
  /** @type {number[][]} */
  const below = Array.from({ length: number }, () => []);
  data.parent.forEach((parent, at) => { if (parent >= 0) below[parent].push(at); });
  /** The frame that stands for each that is folded. @type {Map<number, number>} */
  const folded = new Map();
  const names = data.name.slice();
  data.parent.forEach((parent, root) => {
    if (parent >= 0) return;
    const outer = [root];
    for (;;) {
      const last = outer[outer.length - 1];
      const [only, ...others] = below[last];
      if (only === undefined || others.length || data.total_ns[only] < ALMOST_ALL * data.total_ns[last]) break;
      outer.push(only);
    }
    outer.pop(); // the innermost of them says what runs
    if (outer.length < FEWEST) return;
    names[root] = `${outer.length} outer frames, from ${data.name[root]} to ${data.name[outer[outer.length - 1]]}`;
    for (const one of outer.slice(1)) folded.set(one, root);
  });
  /** @type {number[]} */
  const place = [];
  const nodes = [];
  for (let at = 0; at < number; at++) {
    const into = folded.get(at);
    if (into !== undefined) {
      place.push(place[into]);
      nodes[place[into]].self += data.self_ns[at];
      continue;
    }
    place.push(nodes.length);
    nodes.push({ name: names[at], parent: data.parent[at] < 0 ? -1 : place[data.parent[at]], self: data.self_ns[at], total: data.total_ns[at], count: data.count[at], colour: data.colour?.[at] ?? 0 });
  }
  return graph(data.whole_ns, nodes);
}

/** @param {number} whole @param {{name: string, parent: number, self: number, total: number, count: number, colour: number}[]} nodes @returns {import("./flame.js").FlameData} */
function graph(whole, nodes) {
  return {
    name: nodes.map((one) => one.name), parent: nodes.map((one) => one.parent), self_ns: nodes.map((one) => one.self),
    total_ns: nodes.map((one) => one.total), count: nodes.map((one) => one.count), colour: nodes.map((one) => one.colour), whole_ns: whole,
  };
}
