// @ts-check
/** Two flame graphs as one, matched by the path of names: what grew, what shrank. */

/**
 * @param {import("./flame.js").FlameData} before
 * @param {number} beforeSteps what its times are divided by
 * @param {import("./flame.js").FlameData} after
 * @param {number} afterSteps
 * @returns {import("./flame.js").FlameData} as wide as the larger of the two at every node
 */
export function mergeFlames(before, beforeSteps, after, afterSteps) {
  /** @type {{name: string, parent: number, self: number, total: number, count: number, before: number, countBefore: number}[]} */
  const nodes = [];
  /** @type {Map<string, number>} */
  const known = new Map();
  /** @param {import("./flame.js").FlameData} data @param {number} steps @param {boolean} isAfter */
  const put = (data, steps, isAfter) => {
    /** @type {number[]} */
    const place = [];
    data.name.forEach((name, at) => {
      const parent = data.parent[at] < 0 ? -1 : place[data.parent[at]];
      const key = `${parent}/${name}`;
      let number = known.get(key);
      if (number === undefined) {
        number = nodes.length;
        known.set(key, number);
        nodes.push({ name, parent, self: 0, total: 0, count: 0, before: 0, countBefore: 0 });
      }
      place.push(number);
      const node = nodes[number];
      if (isAfter) {
        node.total += data.total_ns[at] / steps;
        node.self += data.self_ns[at] / steps;
        node.count += data.count[at] / steps;
      } else {
        node.before += data.total_ns[at] / steps;
        node.countBefore += data.count[at] / steps;
      }
    });
  };
  put(before, beforeSteps, false);
  put(after, afterSteps, true);
  // Children must fit into their parents: a node is as wide as what it and its children need.
  const width = nodes.map((node) => Math.max(node.total, node.before));
  const inside = nodes.map(() => 0);
  for (let at = nodes.length - 1; at >= 0; at--) {
    width[at] = Math.max(width[at], inside[at]);
    if (nodes[at].parent >= 0) inside[nodes[at].parent] += width[at];
  }
  const whole = nodes.reduce((sum, node, at) => sum + (node.parent < 0 ? width[at] : 0), 0);
  return {
    name: nodes.map((node) => node.name), parent: nodes.map((node) => node.parent), self_ns: nodes.map((node) => node.self),
    total_ns: width, count: nodes.map((node) => node.count), whole_ns: whole,
    delta: nodes.map((node) => node.total - node.before), before: nodes.map((node) => node.before), count_before: nodes.map((node) => node.countBefore),
  };
}
