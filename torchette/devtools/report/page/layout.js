// SPDX-License-Identifier: BSD-3-Clause
// Positions of the boxes in a group: layers from top to bottom, few crossings, straight edges. The content of an open group
// is positioned first; outside, the group is one box.

const GAP_X = 26, GAP_Y = 34, PAD = 18, HEAD = 34, THREAD = 12, FAR = 9;

/** Lifts each edge to the visible boxes that it connects. Sets `level` (edges between kids) and the kids' `entry` and `exit`. */
function liftEdges(program) {
  const shown = new Set();
  const reset = (item) => {
    item.level = []; item.entry = 0; item.exit = 0; item.seen = new Map();
    shown.add(item);
    if (item.open || !item.parent) item.kids.forEach(reset);
  };
  reset(program.root);
  for (const [from, to] of program.edges) {
    const a = program.paths[from], b = program.paths[to];
    let same = 0;
    while (same + 1 < a.length && same + 1 < b.length && a[same + 1] === b[same + 1]) same++;
    const home = a[same], left = a[same + 1], right = b[same + 1];
    if (!left || !right || !shown.has(left)) continue;
    const key = `${left.id}>${right.id}`;
    const known = home.seen.get(key);
    if (known) known.count++;
    else { const edge = { from: left, to: right, count: 1 }; home.seen.set(key, edge); home.level.push(edge); }
    for (let i = same + 2; i < a.length && shown.has(a[i]); i++) a[i].exit++;
    for (let i = same + 2; i < b.length && shown.has(b[i]); i++) b[i].entry++;
  }
}

/** Sets x and y of each kid of an open group (relative to the group), and w, h and `lines` of the group. */
function layoutGroup(group, measure) {
  const kids = group.kids;
  for (const kid of kids) {
    if (kid.open) layoutGroup(kid, measure);
    else [kid.w, kid.h] = measure(kid);
  }
  const at = new Map(kids.map((kid, index) => [kid, index]));
  const ahead = kids.map(() => []), behind = kids.map(() => []);
  const edges = group.level.map(({ from, to, count }) => {
    const back = from.order >= to.order;
    const [a, b] = back ? [at.get(to), at.get(from)] : [at.get(from), at.get(to)];
    if (a !== b) { ahead[a].push(b); behind[b].push(a); }
    return { a, b, back, count };
  }).filter(({ a, b }) => a !== b);

  // Layers: kids are in execution order, and edges point forward.
  const layer = kids.map(() => 0);
  kids.forEach((kid, a) => { kid.fed = behind[a].length > 0; kid.feeds = ahead[a].length > 0; });
  kids.forEach((_, a) => ahead[a].forEach((b) => { layer[b] = Math.max(layer[b], layer[a] + 1); }));
  for (let a = kids.length - 1; a >= 0; a--) {
    if (!behind[a].length && ahead[a].length) layer[a] = Math.min(...ahead[a].map((b) => layer[b])) - 1;
  }
  const alone = kids.map((_, a) => a).filter((a) => !ahead[a].length && !behind[a].length);
  if (alone.length > 1) {  // kids without edges are arranged in rows
    const columns = Math.max(1, Math.ceil(Math.sqrt(alone.length * 1.2)));
    const deepest = alone.length === kids.length ? 0 : Math.max(...layer) + 1;
    alone.forEach((a, i) => { layer[a] = deepest + Math.floor(i / columns); });
  }
  const lowest = Math.min(0, ...layer);
  const rows = [];
  const cell = (w, h, kid) => ({ w, h, kid, x: 0, up: [], down: [], weight: kid ? 40 : 1 });
  const cells = kids.map((kid, a) => {
    const made = cell(kid.w, kid.h, kid);
    (rows[layer[a] - lowest] ||= []).push(made);
    made.row = layer[a] - lowest;
    return made;
  });
  const far = [];
  const chains = [];
  for (const edge of edges) {
    const from = cells[edge.a], to = cells[edge.b];
    if (to.row - from.row > FAR) { far.push(edge); continue; }
    const chain = [from];
    for (let row = from.row + 1; row < to.row; row++) {
      const thread = cell(THREAD, 0, null);
      thread.row = row;
      rows[row].push(thread);
      chain.push(thread);
    }
    chain.push(to);
    for (let i = 1; i < chain.length; i++) { chain[i - 1].down.push(chain[i]); chain[i].up.push(chain[i - 1]); }
    chains.push({ chain, edge });
  }

  // Order within the rows: sort cells by the mean position of their neighbours, alternately down and up.
  const number = (row) => row.forEach((it, i) => { it.i = i; });
  rows.forEach(number);
  const middle = (list, own) => list.length ? list.reduce((sum, it) => sum + it.i, 0) / list.length : own;
  for (let turn = 0; turn < 6; turn++) {
    const down = turn % 2 === 0;
    for (const row of down ? rows : [...rows].reverse()) {
      row.forEach((it) => { it.key = middle(down ? it.up : it.down, it.i); });
      row.sort((a, b) => a.key - b.key || a.i - b.i);
      number(row);
    }
  }

  // Positions in the row: as close to the mean of the neighbours as the order and the gaps permit.
  for (const row of rows) {
    let x = 0;
    for (const it of row) { it.x = x + it.w / 2; x += it.w + gap(it); }
    row.forEach((it) => { it.x -= x / 2; });
  }
  const settle = (row, wanted) => {
    const blocks = [];  // isotonic regression: colliding neighbours are merged into a block
    let offset = 0;
    row.forEach((it, i) => {
      if (i) offset += row[i - 1].w / 2 + gap(row[i - 1]) + it.w / 2;
      it.offset = offset;
      let block = { sum: (wanted[i] - offset) * it.weight, weight: it.weight, first: i };
      while (blocks.length && blocks.at(-1).sum / blocks.at(-1).weight > block.sum / block.weight) {
        const before = blocks.pop();
        block = { sum: before.sum + block.sum, weight: before.weight + block.weight, first: before.first };
      }
      blocks.push(block);
    });
    blocks.forEach((block, b) => {
      const end = b + 1 < blocks.length ? blocks[b + 1].first : row.length;
      for (let i = block.first; i < end; i++) row[i].x = block.sum / block.weight + row[i].offset;
    });
  };
  // Boxes are aligned with boxes; edges that span several layers are routed around them.
  const mean = (list, own) => {
    const boxes = list.filter((it) => it.kid), counted = boxes.length ? boxes : list;
    return counted.length ? counted.reduce((sum, it) => sum + it.x, 0) / counted.length : own;
  };
  for (let turn = 0; turn < 8; turn++) {
    const down = turn % 2 === 0;
    for (const row of down ? rows : [...rows].reverse()) {
      settle(row, row.map((it) => turn < 6 ? mean(down ? it.up : it.down, it.x) : mean([...it.up, ...it.down], it.x)));
    }
  }

  let left = Infinity, right = -Infinity, y = HEAD + PAD / 2 + (group.parent ? 8 : 0);
  for (const row of rows) for (const it of row) { left = Math.min(left, it.x - it.w / 2); right = Math.max(right, it.x + it.w / 2); }
  if (!kids.length) left = right = 0;
  const title = group.parent ? measure(group, true)[0] : 0;
  const width = Math.max(right - left, title);
  const shift = PAD - left + (width - (right - left)) / 2;
  for (const row of rows) {
    const height = Math.max(18, ...row.map((it) => it.h));
    for (const it of row) {
      it.x += shift;
      it.top = y + (height - it.h) / 2;
      it.bottom = it.top + it.h;
      if (it.kid) { it.kid.x = it.x - it.w / 2; it.kid.y = it.top; } else { it.top = y; it.bottom = y + height; }
    }
    y += height + GAP_Y;
  }
  group.w = width + 2 * PAD;
  group.h = y - GAP_Y + PAD + (group.parent ? 6 : 0);
  group.lines = chains.map(({ chain, edge }) => ({ edge, d: curve(chain) }));
  group.far = far.map((edge) => ({ edge, from: kids[edge.a], to: kids[edge.b] }));
}

function gap(it) { return it.kid ? GAP_X : 6; }

/** Returns the curve through the cells of an edge, vertical at each box. */
function curve(chain) {
  const first = chain[0], last = chain.at(-1);
  let x = spread(first, first.down, chain[1]), y = first.bottom, d = `M${x.toFixed(1)} ${y.toFixed(1)}`;
  for (let i = 1; i < chain.length; i++) {
    const it = chain[i];
    const tx = it === last ? spread(it, it.up, chain[i - 1]) : it.x;
    const ty = it === last ? it.top - 5 : it.top;
    const half = (ty - y) / 2;
    d += `C${x.toFixed(1)} ${(y + half).toFixed(1)} ${tx.toFixed(1)} ${(ty - half).toFixed(1)} ${tx.toFixed(1)} ${ty.toFixed(1)}`;
    if (it !== last && it.bottom > ty) d += `V${it.bottom.toFixed(1)}`;
    x = tx; y = it === last ? ty : it.bottom;
  }
  return { d, x, y };
}
/** Returns the x of an edge at a box; the edges of a box are spread in the order of their targets. */
function spread(box, others, other) {
  if (others.length < 2) return box.x;
  const order = [...others].sort((a, b) => a.x - b.x);
  const step = Math.min(14, (box.w - 24) / order.length);
  return box.x + (order.indexOf(other) - (order.length - 1) / 2) * step;
}
