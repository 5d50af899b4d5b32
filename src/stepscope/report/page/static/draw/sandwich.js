// @ts-check
/** All calls of one name in a flame graph put together: who called it, and what it called. */

/** @typedef {import("./flame.js").FlameData} FlameData */

/**
 * The two halves, each a flame graph with the name as its root. Calls within a call of the same name are part of that.
 * @param {FlameData} data
 * @param {string} name
 * @returns {{callers: FlameData, callees: FlameData}}
 */
export function sandwich(data, name) {
  const outermost = data.name.map((one, node) => (one === name && !isWithin(data, node, name) ? node : -1)).filter((node) => node >= 0);
  /** @type {number[][]} */
  const children = data.name.map(() => []);
  data.parent.forEach((above, node) => {
    if (above >= 0) children[above].push(node);
  });
  const parts = outermost.map((node) => ({ node, weight: data.total_ns[node], of: node }));
  return {
    callees: grown(data, name, parts, ({ node }) => children[node].map((below) => ({ node: below, weight: data.total_ns[below], of: below }))),
    callers: { ...grown(data, name, parts, ({ node, weight, of }) => (data.parent[node] >= 0 ? [{ node: data.parent[node], weight, of }] : [])), is_upward: true },
  };
}

/** @param {FlameData} data @param {number} node @param {string} name */
function isWithin(data, node, name) {
  for (let at = data.parent[node]; at >= 0; at = data.parent[at]) if (data.name[at] === name) return true;
  return false;
}

/** @typedef {{node: number, weight: number, of: number}} Part a node, the time that counts of it, and the node whose calls count */

/**
 * A tree whose nodes are all parts of one name below one parent.
 * @param {FlameData} data
 * @param {string} root
 * @param {Part[]} parts
 * @param {(part: Part) => Part[]} next the parts below a part
 * @returns {FlameData}
 */
function grown(data, root, parts, next) {
  /** @type {Required<Pick<FlameData, "name" | "parent" | "self_ns" | "total_ns" | "count" | "colour">>} */
  const tree = { name: [], parent: [], self_ns: [], total_ns: [], count: [], colour: [] };
  /** @type {[string, number, Part[]][]} */
  const waiting = [[root, -1, parts]];
  for (let turn = 0; turn < waiting.length; turn++) {
    const [name, above, members] = waiting[turn];
    const number = tree.name.length;
    const total = weight(members);
    /** @type {Map<string, Part[]>} */
    const groups = new Map();
    for (const part of members.flatMap(next)) groups.set(data.name[part.node], [...(groups.get(data.name[part.node]) ?? []), part]);
    const below = weight([...groups.values()].flat());
    tree.name.push(name);
    tree.parent.push(above);
    tree.total_ns.push(total);
    tree.self_ns.push(Math.max(0, total - below));
    tree.count.push(members.reduce((all, part) => all + data.count[part.of], 0));
    tree.colour.push(data.colour?.[members[0].node] ?? 0);
    for (const [one, group] of [...groups].sort((a, b) => weight(b[1]) - weight(a[1]))) waiting.push([one, number, group]);
  }
  return { ...tree, whole_ns: weight(parts) };
}

/** @param {Part[]} parts */
function weight(parts) {
  return parts.reduce((all, part) => all + part.weight, 0);
}
