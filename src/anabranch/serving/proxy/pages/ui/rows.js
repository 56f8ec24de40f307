// The branches of a run as a tree to read from top to bottom: each below the generation that it stands on, a join
// below the last fork that its parents have in common.

/** All branches, siblings in the order in which they were asked for. */
export function rows(branches) {
  const parents = new Map();
  const children = new Map([[null, []]]);
  for (const id of [...branches.keys()].sort((a, b) => a - b)) {
    const parent = treeParent(branches.get(id), parents);
    parents.set(id, parent);
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(id);
  }
  // a stack, because a chain of a thousand steps is deeper than recursion goes
  const ordered = [];
  const stack = children.get(null).toReversed();
  while (stack.length) {
    const id = stack.pop();
    ordered.push(branches.get(id));
    stack.push(...(children.get(id) ?? []).toReversed());
  }
  return ordered;
}

/** Its parent, or the nearest ancestor that all of its parents share. */
function treeParent(branch, parents) {
  const known = branch.parents.filter((parent) => parents.has(parent));
  if (!known.length) return null;
  const [first, ...others] = known.map((parent) => path(parent, parents));
  const sets = others.map((each) => new Set(each));
  return first.find((id) => sets.every((set) => set.has(id))) ?? null;
}

function path(id, parents) {
  const found = [];
  for (let at = id; at !== null && at !== undefined; at = parents.get(at)) found.push(at);
  return found;
}
