// SPDX-License-Identifier: BSD-3-Clause
// The data of the page: nodes with their module tree, edges, times and sizes.
"use strict";

const KINDS = [
  ["port", "Input or output"], ["matrix", "Matrix, convolution"], ["attention", "Attention"], ["norm", "Normalization"],
  ["activation", "Activation, softmax"], ["arithmetic", "Arithmetic"], ["reduce", "Reduction, pooling"], ["shape", "Shape, copy"],
  ["lookup", "Lookup"], ["quantize", "Quantization"], ["control", "Control"], ["delegate", "Delegate"],
];
// The first matching pattern determines the kind of an operator.
const PATTERNS = [
  ["quantize", /quant|^convert$/i],
  ["attention", /attention|sdpa/i],
  ["norm", /norm/i],
  ["matrix", /conv|linear|fullyconnected|(^|_)(add)?(b?mm|baddbmm)|matmul|matrixmultiply|einsum|lstm|gru/i],
  ["reduce", /pool|^(mean|sum|amax|amin|max|min|argmax|argmin|var|prod|any|all|topk|cumsum|sort)(_|$|\b)|reduce/i],
  ["activation", /relu|gelu|silu|sigmoid|tanh|hardswish|hardsigmoid|hardtanh|elu|clamp|mish|swish|softplus|softmax/i],
  ["lookup", /embedding|index|gather|scatter/i],
  ["shape", /view|reshape|permute|transpose|copy|clone|cat|stack|slice|select|expand|squeeze|pad|split|repeat|flip|unfold|arange|full|zeros|ones|resize|empty|^to$/i],
  ["control", /^(move|jump_false|free)$|executorch_prim|sym_size|item/i],
];
const CHUNK = 90;  // more nodes than this in one group are split into groups of steps

const $ = (id) => document.getElementById(id);
const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
/** Converts a message to HTML; text in backticks becomes code. */
const prose = (text) => escape(text).replace(/`+([^`]+)`+/g, "<code>$1</code>");
/** Converts a module path to HTML that can wrap after a dot. */
const breakable = (path) => escape(path).replace(/[.]/g, "$&<wbr>");

function bytes(count) {
  if (count < 1000) return `${count} B`;
  let value = count, unit = 0;
  do { value /= 1000; unit++; } while (value >= 999.5 && unit < 4);
  return `${value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : Math.round(value)} ${["", "kB", "MB", "GB", "TB"][unit]}`;
}
function seconds(time) {
  if (!time) return "0";
  const [value, unit] = time < 1e-3 ? [time * 1e6, "µs"] : time < 1 ? [time * 1e3, "ms"] : [time, "s"];
  return `${value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}
const whole = (count) => count.toLocaleString("en-US");
const percent = (share) => share && share < 0.0005 ? "<0.1%" : `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)}%`;
const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

const billions = (number) => number ? String(+(number / 1e9).toPrecision(3)) : "";
const kindName = (family) => KINDS.find(([key]) => key === family)?.[1] || family;
/** Legend of the colours that appear. */
function kindLegend(families) {
  const shown = new Set(families);
  return `<ul class="kinds" aria-label="Colours">${KINDS.filter(([key]) => shown.has(key)).map(([key, name]) => `<li><i class="dot" style="--c:var(--${key})"></i>${name}</li>`).join("")}</ul>`;
}

/** `aten::convolution.out` -> `convolution`: the short name. */
function shortName(op) {
  return op.replace(/^.*::/, "").replace(/\.[\w.]*$/, "").replace(/^_+|_+$/g, "") || op;
}
function kindOf(node, op) {
  if (node.kind === "input" || node.kind === "output") return "port";
  if (node.kind === "delegate") return "delegate";
  if (/executorch_prim/.test(op) && !/view/.test(op)) return "control";
  const name = shortName(op);
  for (const [kind, pattern] of PATTERNS) if (pattern.test(name)) return kind;
  return "arithmetic";
}
/** The implementation of a kernel; names of the CPU engine begin with `cpu::`. */
const kernelsOf = (node) => node.name.startsWith("cpu::") ? "CPU engine" : "portable kernels";
function backendName(name) { return name.replace(/Backend$/, "").replace(/^Xnnpack$/, "XNNPACK"); }

/** One method of the program. */
class Program {
  constructor(contents, number) {
    const record = contents.methods[number];
    this.contents = contents;
    this.record = record;
    this.texts = contents.texts;
    this.values = record.values;
    this.nodes = record.nodes;
    this.profiled = !!record.times;
    this.times = record.times || {};
    this.readers = record.nodes.map(() => []);  // by node: [edge, node]
    this.writers = record.nodes.map(() => []);
    this.edges = [];
    for (let i = 0; i < record.edges.length; i += 3) {
      const [from, to, value] = record.edges.slice(i, i + 3);
      this.edges.push([from, to, value]);
      this.readers[from].push([to, value]);
      this.writers[to].push([from, value]);
    }
    this._describe();
    this._tree();
    this._place();
    this.total = this.root.time + (record.rest || []).reduce((sum, [, time]) => sum + time, 0);
  }

  text(number) { return this.texts[number]; }
  value(index) {
    const row = this.values[index];
    return { index, text: this.texts[row[0]], nbytes: row[1] || 0, place: row.length > 2 ? this.texts[row[2]] : "",
      name: row.length > 3 ? this.texts[row[3]] : "", constant: row.length > 4, tensor: row.length > 1 };
  }
  line(number) {
    if (number === undefined || number < 0) return null;
    const [file, line, name, code] = this.record.sources[number];
    return { file: this.texts[file], line, name: this.texts[name], code };
  }
  lineText(node) {
    const line = this.line(node.source);
    return line ? `${line.file.split("/").slice(-2).join("/")}:${line.line}` : "";
  }

  /** The source line as a table cell: file name and line, with the path as tooltip. */
  lineCell(node) {
    const line = this.line(node.source);
    return line ? `<span class="soft" style="white-space:nowrap" title="${escape(line.file)}:${line.line}">${escape(line.file.split("/").pop())}:${line.line}</span>` : "";
  }

  _describe() {
    const seen = new Set();
    this.nodes.forEach((node, index) => {
      node.index = index;
      node.name = this.texts[node.op];
      node.path = node.module === undefined ? "" : this.texts[node.module];
      node.label = node.kind === "input" || node.kind === "output" ? node.name
        : node.kind === "delegate" ? backendName(node.name) : shortName(node.name);
      node.family = kindOf(node, node.name);
      node.time = +this.times[index] || 0;
      [node.flops, node.rate, node.ofPeak, node.ofBandwidth, node.bound] = this.record.rates?.[index] || [];
      node.weights = 0;
      for (const it of node.in) {
        if (this.values[it].length > 4 && !seen.has(it)) { seen.add(it); node.weights += this.values[it][1]; }
      }
      const shown = (node.kind === "output" ? node.in : node.out).map((it) => this.values[it]).find((row) => row.length > 1);
      node.shape = shown ? this.texts[shown[0]] : "";
    });
  }

  /** Builds groups for modules and for the delegates in them. */
  _tree() {
    const types = new Map();
    for (const node of this.nodes) if (node.path && node.type !== undefined) types.set(node.path, this.texts[node.type]);
    const group = (label, path, parent, kind = "module") => {
      const made = { id: "", label, path, parent, kind, kids: [], open: false, type: types.get(path) || "" };
      if (parent) parent.kids.push(made);
      return made;
    };
    this.root = group(this.record.name, "", null);
    this.root.open = true;
    this.byNode = [];
    const inside = new Map();  // "base|path" -> group
    const below = (base, basePath, path) => {
      let at = base, so_far = basePath;
      const within = basePath && (path === basePath || path.startsWith(`${basePath}.`));
      if (!within) so_far = "";
      const rest = within ? path.slice(basePath.length + 1) : path;
      for (const name of rest ? rest.split(".") : []) {
        so_far = so_far ? `${so_far}.${name}` : name;
        const key = `${base.key || ""}|${so_far}`;
        let next = inside.get(key);
        if (!next) inside.set(key, next = group(name, so_far, at));
        at = next;
      }
      return at;
    };
    const parents = new Set(this.nodes.filter((it) => it.parent !== undefined).map((it) => it.parent));
    const ports = { input: [], output: [] };
    for (const node of this.nodes) if (ports[node.kind]) ports[node.kind].push(node);
    const portGroup = {};
    for (const node of this.nodes) {
      let home;
      if (ports[node.kind]) {
        home = this.root;
        if (ports[node.kind].length > 6) {
          home = portGroup[node.kind] ||= group(`${node.kind}s`, "", this.root, "ports");
        }
      } else if (node.parent !== undefined) {
        const delegate = this.byNode[node.parent];
        home = below(delegate, this.nodes[node.parent].path, node.path);
      } else {
        home = below(this.root, "", node.path);
      }
      const leaf = { id: `n${node.index}`, label: node.label, node, parent: home, kind: node.kind, kids: [], open: false };
      if (parents.has(node.index)) { leaf.kind = "delegate"; leaf.key = leaf.id; leaf.path = node.path; leaf.type = ""; leaf.group = true; }
      home.kids.push(leaf);
      this.byNode[node.index] = leaf;
    }
    this._squeeze(this.root);
    let number = 0;
    this.byId = new Map();
    const finish = (item, depth) => {
      if (!item.id) item.id = `g${number++}`;
      this.byId.set(item.id, item);
      item.depth = depth;
      const own = item.node;
      // prefix a module such as "3" with the name of its list
      if ((item.kind === "module" || item.what) && /^\d/.test(item.label) && item.parent?.path) item.label = `${item.parent.path.split(".").pop()}.${item.label}`;
      item.order = own ? own.index : Infinity;
      item.time = own ? own.time : 0;
      item.weights = own ? own.weights : 0;
      item.count = own && !item.kids.length && !["input", "output"].includes(own.kind) ? 1 : 0;
      item.families = new Map();
      if (own && !item.kids.length) item.families.set(own.family, 1);
      for (const kid of item.kids) {
        kid.parent = item;
        finish(kid, depth + 1);
        item.order = Math.min(item.order, kid.order);
        item.time += kid.time; item.weights += kid.weights; item.count += kid.count;
        for (const [family, count] of kid.families) item.families.set(family, (item.families.get(family) || 0) + count);
      }
      item.family = own ? own.family : [...item.families].sort((a, b) => b[1] - a[1])[0]?.[0] || "control";
      item.kids.sort((a, b) => a.order - b.order);
    };
    finish(this.root, 0);
    this.paths = this.byNode.map((leaf) => ancestors(leaf));
  }

  /** Merges a module with its only child, and splits large groups into groups of steps. */
  _squeeze(item) {
    item.kids.forEach((kid) => this._squeeze(kid));
    item.kids = item.kids.map((kid) => {
      while (!kid.node && kid.kind === "module" && kid.kids.length === 1 && kid.kids[0].kind === "module" && !kid.kids[0].node) {
        const only = kid.kids[0];
        only.label = `${kid.label}.${only.label}`;
        kid = only;
      }
      const [only, ...others] = kid.kids;
      if (kid.kind === "module" && !kid.node && ["kernel", "part"].includes(only?.kind) && !others.length && !only.kids.length) {
        only.what ||= only.label;
        only.label = kid.label;
        only.type = kid.type;
        kid = only;
      }
      return kid;
    });
    if (item.kids.length > CHUNK) {
      const size = Math.max(24, Math.ceil(Math.sqrt(item.kids.length) * 1.6));
      const rest = item.kids.filter((kid) => kid.kind === "input" || kid.kind === "output" || kid.kind === "ports");
      const listed = item.kids.filter((kid) => !rest.includes(kid));
      const chunks = [];
      for (let i = 0; i < listed.length; i += size) {
        const kids = listed.slice(i, i + size);
        const numbers = [kids[0], kids.at(-1)].map((kid) => kid.kind === "module" && kid.label.match(/^\d+/)?.[0]);
        const label = numbers.every(Boolean) ? `${item.path.split(".").pop()} ${numbers[0]} to ${numbers[1]}` : `steps ${i + 1} to ${i + kids.length}`;
        chunks.push({ id: "", label, path: item.path, parent: item, kind: "steps", kids, open: false, type: "" });
      }
      item.kids = [...rest, ...chunks];
    }
  }

  /** Assigns the compiler's reasons to nodes with the same operator and source line, in order. */
  _place() {
    this.reasonOf = new Map();
    const waiting = new Map();
    (this.record.placements || []).forEach((row, index) => {
      const line = this.texts[row[2]].match(/([^/]+\.py:\d+)/)?.[1] || "";
      const key = `${this.texts[row[1]].replace(/^\w+[.:]+/, "").replace(/\..*$/, "")}|${line}`;
      if (!waiting.has(key)) waiting.set(key, []);
      waiting.get(key).push(index);
    });
    for (const node of this.nodes) {
      const line = this.line(node.source);
      const key = `${node.name.replace(/^.*::/, "").replace(/\..*$/, "")}|${line ? `${line.file.split("/").pop()}:${line.line}` : ""}`;
      const found = waiting.get(key);
      if (found && found.length) this.reasonOf.set(node.index, found.length > 1 ? found.shift() : found[0]);
    }
    this.nodeOf = new Map([...this.reasonOf].map(([node, row]) => [row, node]));
  }

  /** Opens groups that are small enough to be readable. */
  openSome() {
    let shown = this.root.kids.length;
    const queue = this.root.kids.filter(isGroup);
    while (queue.length) {
      const item = queue.shift();
      if (item.kind === "ports" || shown + item.kids.length > 36) continue;
      item.open = true;
      shown += item.kids.length;
      queue.push(...item.kids.filter(isGroup));
    }
  }
}

function isGroup(item) { return item.kids.length > 0; }
function ancestors(item) {
  const path = [];
  for (let at = item; at; at = at.parent) path.unshift(at);
  return path;
}
