// SPDX-License-Identifier: BSD-3-Clause
// The other views: overview, memory, time, size, quantization, placement. Each is a function that draws to `main`.

const COLOURS = { weights: "matrix", delegates: "delegate", instructions: "arithmetic", methods: "activation", values: "reduce", "source lines": "quantize", receipt: "attention", "initial values": "norm", "named data": "lookup", padding: "shape", "unused segments": "shape" };
const useColour = (use) => `var(--${COLOURS[use] || "control"})`;
const command = (app, options) => `<code>torchette report ${escape(app.contents.name)} -o report.html ${options}</code>`;

function sum(list, of) { return list.reduce((total, it) => total + of(it), 0); }

/** Bytes of the file by use, largest first. */
function usesOf(contents) {
  const found = new Map();
  for (const [use, , , size] of contents.sizes) found.set(use, (found.get(use) || 0) + size);
  return [...found].filter(([, size]) => size).map(([use, size]) => [use, size, useColour(use)]).sort((a, b) => b[1] - a[1]);
}
function stackAndLegend(parts, total) {
  return `<div class="stack">${parts.map(([, size, colour]) => `<i style="--c:${colour};flex:${size}"></i>`).join("")}</div><ul class="legend">${parts.map(([name, size, colour]) => `<li><i class="dot" style="--c:${colour}"></i>${escape(name)}<span class="value">${bytes(size)}</span><span class="share">${percent(size / total)}</span></li>`).join("")}</ul>`;
}
function bars(rows) {
  const most = Math.max(...rows.map((row) => row.value), 1e-30);
  return `<div class="bars">${rows.map((row) => `<${row.go ? `button data-go="${row.go}"` : 'div class="row"'}><span class="name"><i class="dot" style="--c:var(--${row.family || "control"})"></i><span>${escape(row.name)}</span></span><span class="meter"><i style="width:${(100 * row.value / most).toFixed(1)}%;--c:var(--${row.family || "accent"})"></i></span><span class="value">${row.text}</span></${row.go ? "button" : "div"}>`).join("")}</div>`;
}

/** A sortable table. Columns: [title, number?, cell(row), key(row)]. */
class Rows {
  constructor(host, columns, rows, { go = null, sort = null, most = 100 } = {}) {
    Object.assign(this, { host, columns, rows, go, most });
    this.sort = sort;
    this.filter = "";
    host.addEventListener("click", (event) => {
      const head = event.target.closest("th button");
      if (head) {
        const column = +head.dataset.column;
        this.sort = this.sort?.[0] === column ? [column, -this.sort[1]] : [column, this.columns[column][1] ? -1 : 1];
        this.draw();
      }
      if (event.target.closest(".more")) { this.most *= 5; this.draw(); }
    });
    this.draw();
  }
  draw() {
    let rows = this.filter ? this.rows.filter((row) => this.columns.some(([, , , key]) => String(key(row)).toLowerCase().includes(this.filter))) : [...this.rows];
    if (this.sort) {
      const [column, way] = this.sort, key = this.columns[column][3];
      rows.sort((a, b) => { const x = key(a), y = key(b); return way * (x < y ? -1 : x > y ? 1 : 0); });
    }
    const shown = rows.slice(0, this.most);
    const head = this.columns.map(([title, number], i) => `<th${number ? ' class="n"' : ""}${this.sort?.[0] === i ? ` aria-sort="${this.sort[1] > 0 ? "ascending" : "descending"}"` : ""}><button data-column="${i}">${title}</button></th>`).join("");
    const body = shown.map((row) => {
      const go = this.go?.(row);
      return `<tr${go ? ` data-go="${go}" tabindex="0"` : ""}>${this.columns.map(([, number, cell]) => `<td${number ? ' class="n"' : ""}>${cell(row)}</td>`).join("")}</tr>`;
    }).join("");
    this.host.innerHTML = `<table><thead><tr>${head}</tr></thead><tbody>${body}</tbody></table>${rows.length ? "" : '<p class="empty">No row matches.</p>'}${rows.length > shown.length ? `<button class="more">Show more of ${whole(rows.length)} rows</button>` : ""}`;
  }
}

const Views = {
  overview(app, main) {
    const { contents, program } = app, record = program.record;
    const planned = sum(record.buffers, (it) => it[1]);
    const instructions = program.nodes.filter((it) => it.kind === "kernel").length;
    const inside = program.nodes.filter((it) => it.kind === "part").length;
    const weights = sum(contents.sizes.filter((it) => it[0] === "weights"), (it) => it[3]);
    const figures = [
      ["File", ...bytes(contents.nbytes).split(" "), `${bytes(weights)} of weights`],
      ["Planned memory", ...bytes(planned).split(" "), record.buffers.length > 1 ? plural(record.buffers.length, "buffer") : "for activations"],
      ["Instructions", whole(record.instructions), "", instructions ? plural(new Set(program.nodes.filter((it) => it.kind === "kernel").map((it) => it.name)).size, "kernel operator") : record.delegates.length ? "all call delegates" : ""],
    ];
    if (record.delegates.length) figures.push(["Delegates", whole(record.delegates.length), "", inside ? `${plural(inside, "node")} inside` : [...new Set(record.delegates.map((it) => backendName(it[0])))].join(", ")]);
    if (program.profiled) figures.push(["Median time", ...seconds(program.total).split(" "), `${plural(record.runs, "run")}`]);
    const ports = (list) => list.map(([name, text]) => `<div class="port"><code>${escape(name)}</code><code>${escape(text)}</code></div>`).join("") || '<p class="faint">none</p>';
    const byOperator = operatorRows(program);
    const top = (program.profiled ? byOperator.filter((it) => it.time) : byOperator).slice(0, 9);
    main.innerHTML = `<div class="page">
      <div><h1>${escape(contents.name)}</h1><p class="lead">${contents.methods.length > 1 ? `Method <b>${escape(record.name)}</b> of ${contents.methods.length}. ` : ""}Its inputs and outputs, bytes, memory and ${program.profiled ? "slowest " : ""}operators.</p>${record.notes.map((it) => `<p class="lead">${prose(it)}</p>`).join("")}</div>
      <dl class="figures">${figures.map(([name, value, unit, about]) => `<div class="figure"><dt>${name}</dt><dd class="num">${value}${unit ? `<small>${unit}</small>` : ""}</dd><p>${about}</p></div>`).join("")}</dl>
      <div class="grid">
        <div class="column"><section class="card"><header><h2>Signature</h2><code class="faint">${escape(record.name)}</code></header><div class="signature"><div><h3>${plural(record.inputs.length, "input")}</h3>${ports(record.inputs)}</div><div><h3>${plural(record.outputs.length, "output")}</h3>${ports(record.outputs)}</div></div></section>
        <section class="card"><header><h2>Bytes of the file</h2><a class="link" href="#size">By module</a></header>${stackAndLegend(usesOf(contents), contents.nbytes)}</section></div>
        <div class="column"><section class="card"><header><h2>${program.profiled ? "Slowest operators" : "Operators"}</h2><a class="link" href="#time">${program.profiled ? "All" : ""}</a></header>${bars(top.map((it) => ({ name: it.name, family: it.family, value: program.profiled ? it.time : it.count, text: program.profiled ? seconds(it.time) : whole(it.count) })))}${kindLegend(top.map((it) => it.family))}</section>
        <section class="card"><header><h2>Planned memory over time</h2><a class="link" href="#memory">Map</a></header>${record.tenants.length ? '<div class="picture"><canvas id="spark" height="150" style="height:150px"></canvas></div><div class="axis"><span>first instruction</span><span id="spark-peak"></span><span>last</span></div>' : '<p class="faint">No tensor of this method is in planned memory.</p>'}</section></div>
      </div></div>`;
    if (record.tenants.length) {
      const live = liveBytes(program, 0);
      const draw = () => drawCurve($("spark"), live, Math.max(...live));
      draw();
      app.redraw = draw;
      $("spark-peak").textContent = `peak ${bytes(Math.max(...live))}`;
    }
  },

  graph(app, main) { app.graph.show(main); },

  memory(app, main) {
    const { program } = app, record = program.record;
    const bill = record.bill || [];
    const largest = [...record.tenants].sort((a, b) => b[3] - a[3]);
    main.innerHTML = `<div class="page">
      <div><h1>Memory</h1><p class="lead">${record.tenants.length ? "Each block is a tensor: from left to right the instructions from its first to its last use, from bottom to top its bytes in the planned buffer. The colour is the kind of the operator that writes it. A darker area is shared by two tensors, such as the input and the result of an in-place operator." : "Planned memory holds the tensors between the instructions of a method, at offsets that the compiler has chosen."}</p></div>
      ${record.tenants.length ? record.buffers.filter((it) => record.tenants.some((t) => t[1] === it[0])).map(([id, size, device]) => `<section class="card wide"><header><h2>Buffer ${id}${device === "cpu" ? "" : ` on ${escape(device)}`}</h2><span class="faint num">${whole(size)} bytes</span></header><div class="map-label"><span>Bytes in use</span><span id="now-${id}" class="num"></span></div><div class="picture"><canvas data-curve="${id}" height="70" style="height:70px"></canvas></div><div class="map-label" style="margin-top:14px"><span>Tensors</span><span class="faint">click a block to see its operator</span></div><div class="picture"><canvas data-map="${id}" height="340" style="height:340px"></canvas></div><div class="axis"><span>instruction 0</span><span>${Math.max(0, record.instructions - 1)}</span></div>${kindLegend(record.tenants.filter((it) => it[1] === id).map((it) => familyOf(program, it)))}</section>`).join("") : '<section class="card"><p class="empty">No tensor of this method is in planned memory: inputs and outputs are in memory of the caller, weights in the file, and tensors inside a delegate in memory of its backend.</p></section>'}
      ${bill.length ? `<section class="card"><header><h2>Memory of the method on this machine, in bytes</h2></header><div class="scroll"><table><tbody>${bill.map(([what, size, about]) => `<tr><td class="tight">${escape(what)}</td><td class="n">${typeof size === "number" ? whole(size) : escape(size)}</td><td class="soft">${prose(about)}</td></tr>`).join("")}</tbody></table></div></section>` : ""}
      ${largest.length ? '<section class="card"><header><h2>Tensors</h2></header><div class="scroll" id="tenants"></div></section>' : ""}</div>`;
    if (largest.length) {
      new Rows($("tenants"), [
        ["Tensor", 0, (it) => `<code>${escape(program.value(it[0]).text)}</code> ${program.value(it[0]).name ? `<span class="faint">${escape(program.value(it[0]).name)}</span>` : ""}`, (it) => program.value(it[0]).text],
        ["Written by", 0, (it) => escape(shortName(program.text(it[6]))), (it) => program.text(it[6])],
        ["Bytes", 1, (it) => whole(it[3]), (it) => it[3]],
        ["Offset", 1, (it) => whole(it[2]), (it) => it[2]],
        ["Instructions", 1, (it) => `${it[4]} to ${it[5]}`, (it) => it[4]],
      ], largest, { go: (it) => nodeOfValue(program, it[0]), most: 40 });
    }
    const pictures = [...main.querySelectorAll("[data-map]")].map((canvas) => new MemoryMap(app, canvas, main.querySelector(`[data-curve="${canvas.dataset.map}"]`), +canvas.dataset.map));
    app.redraw = () => pictures.forEach((it) => it.draw());
  },

  time(app, main) {
    const { program } = app, record = program.record;
    if (!program.profiled) {
      const rows = operatorRows(program);
      main.innerHTML = `<div class="page"><div><h1>Time</h1><p class="lead">This report contains no times, only call counts. ${command(app, "--profile 50")} runs the program and adds the time of each node and the fraction of the processor’s limits that it reaches. ${command(app, "--etdump device.etdp")} adds times from another machine.</p></div><section class="card"><header><h2>Calls of each operator</h2></header>${kindLegend(rows.map((it) => it.family))}<div class="scroll" id="rows"></div></section></div>`;
      new Rows($("rows"), [
        ["Operator", 0, (it) => `<span class="dot" style="--c:var(--${it.family});display:inline-block;margin-right:8px"></span>${escape(it.full)}`, (it) => it.full],
        ["Runs on", 0, (it) => escape(it.on), (it) => it.on],
        ["Calls", 1, (it) => whole(it.count), (it) => it.count],
      ], rows, { sort: [2, -1] });
      return;
    }
    // The columns of `torchette profile` that are not empty.
    const limited = [
      ["GFLOP/s", 1, (it) => billions(it.flops), (it) => it.flops || 0],
      ["Peak", 1, (it) => it.ofPeak ? percent(it.ofPeak) : "", (it) => it.ofPeak || 0],
      ["GB/s", 1, (it) => billions(it.rate), (it) => it.rate || 0],
      [escape(record.store || ""), 1, (it) => it.ofBandwidth ? percent(it.ofBandwidth) : "", (it) => it.ofBandwidth || 0],
      ["Bound", 0, (it) => it.bound ? `<span class="badge">${escape(it.bound)}</span>` : "", (it) => it.bound || ""],
    ].filter(([, , , key]) => program.nodes.some(key));
    const rest = sum(record.rest, ([, time]) => time);
    main.innerHTML = `<div class="page"><div><h1>Time</h1><p class="lead">${seconds(program.total)} an execution: the median of ${plural(record.runs, "run")}, ${record.limits ? `on ${escape(record.processor)}` : "from the dump of a device"}.${rest ? ` ${seconds(rest)} are outside operators.` : ""}</p>${limited.length ? `<p class="lead">${record.limits ? `${escape(record.limits)}. <b>Peak</b> and <b>${escape(record.store)}</b> are the shares of the processor’s arithmetic and of the bandwidth of ${record.store === "memory" ? "the main memory" : `the ${escape(record.store)} cache`}, which holds the tensors of this method; <b>Bound</b> is the nearer limit. ` : ""}These values are empty for operators without a cost formula.</p>` : `<p class="lead">The fractions of the processor’s limits are missing, because the cost of nodes inside a delegate is not known.</p>`}</div>
      <section class="card"><header style="flex-wrap:wrap"><div class="segmented" role="group" id="by"><button data-by="nodes">Nodes</button><button data-by="operators">Operators</button><button data-by="modules">Modules</button></div><div class="tools"><input id="filter" type="search" placeholder="Filter" aria-label="Filter"></div></header>${kindLegend(program.nodes.filter((it) => it.time).map((it) => it.family))}<div class="scroll" id="rows"></div></section></div>`;
    const share = (it) => `<div class="share"><div class="meter"><i style="width:${(100 * it.time / program.total).toFixed(1)}%"></i></div><span>${percent(it.time / program.total)}</span></div>`;
    const name = (it) => `<span style="display:flex;gap:8px;align-items:baseline"><i class="dot" style="--c:var(--${it.family})"></i>${escape(it.name)}</span>`;
    const ways = {
      nodes: () => [[
        ["Operator", 0, (it) => name({ family: it.family, name: it.label }), (it) => it.name],
        ["Time", 1, (it) => seconds(it.time), (it) => it.time],
        ["Share", 1, share, (it) => it.time],
        ...limited,
        ["Module", 0, (it) => `<span class="soft">${breakable(it.path)}</span>`, (it) => it.path],
        ["Source", 0, (it) => program.lineCell(it), (it) => program.lineText(it)],
      ], program.nodes.filter((it) => it.time), (it) => `n${it.index}`, 1],
      operators: () => [[
        ["Operator", 0, name, (it) => it.full],
        ["Time", 1, (it) => seconds(it.time), (it) => it.time],
        ["Share", 1, share, (it) => it.time],
        ["Calls", 1, (it) => whole(it.count), (it) => it.count],
        ["Runs on", 0, (it) => escape(it.on), (it) => it.on],
      ], operatorRows(program).filter((it) => it.time), null, 1],
      modules: () => [[
        ["Module", 0, (it) => breakable(it.path || it.label), (it) => it.path],
        ["Time", 1, (it) => seconds(it.time), (it) => it.time],
        ["Share", 1, share, (it) => it.time],
        ["Nodes", 1, (it) => whole(it.count), (it) => it.count],
        ["Class", 0, (it) => `<span class="soft">${escape(it.type || it.kind)}</span>`, (it) => it.type],
      ], [...program.byId.values()].filter((it) => isGroup(it) && it.parent && it.time), (it) => it.id, 1],
    };
    let rows;
    const choose = (by) => {
      const [columns, list, go, sorted] = ways[by]();
      main.querySelectorAll("[data-by]").forEach((it) => it.setAttribute("aria-pressed", String(it.dataset.by === by)));
      const host = $("rows").cloneNode(false);
      $("rows").replaceWith(host);
      rows = new Rows(host, columns, list, { go, sort: [sorted, -1] });
      rows.filter = $("filter").value.toLowerCase();
      rows.draw();
    };
    main.querySelector("#by").addEventListener("click", (event) => { const by = event.target.dataset.by; if (by) choose(by); });
    $("filter").addEventListener("input", (event) => { rows.filter = event.target.value.toLowerCase(); rows.draw(); });
    choose("nodes");
  },

  size(app, main) {
    const { contents } = app;
    const rows = contents.sizes.map(([kind, name, module, size, dtype]) => ({ kind, name: contents.texts[name], module: contents.texts[module], size, dtype: contents.texts[dtype] }));
    main.innerHTML = `<div class="page"><div><h1>Size</h1><p class="lead">${whole(contents.nbytes)} bytes. The rows sum to the size of the file.</p></div>
      <section class="card"><header><h2>By module</h2><span class="faint" id="where"></span></header><div class="treemap" id="treemap"></div></section>
      <section class="card"><header><h2>By use</h2><span class="faint">the colours of the map above</span></header>${stackAndLegend(usesOf(contents), contents.nbytes)}</section>
      <section class="card"><header><h2>Parts</h2><div class="tools"><input id="filter" type="search" placeholder="Filter" aria-label="Filter"></div></header><div class="scroll" id="rows"></div></section></div>`;
    const table = new Rows($("rows"), [
      ["Part", 0, (it) => `<code>${escape(it.name)}</code>`, (it) => it.name],
      ["Use", 0, (it) => `<span style="display:flex;gap:8px;align-items:baseline;white-space:nowrap"><i class="dot" style="--c:${useColour(it.kind)}"></i>${escape(it.kind)}</span>`, (it) => it.kind],
      ["Module", 0, (it) => `<span class="soft">${breakable(it.module)}</span>`, (it) => it.module],
      ["Bytes", 1, (it) => whole(it.size), (it) => it.size],
      ["Share", 1, (it) => percent(it.size / contents.nbytes), (it) => it.size],
    ], rows, { sort: [3, -1], most: 50 });
    $("filter").addEventListener("input", (event) => { table.filter = event.target.value.toLowerCase(); table.draw(); });
    const tree = sizeTree(rows);
    let at = tree;
    const draw = () => {
      $("where").innerHTML = at === tree ? bytes(contents.nbytes) : `<button class="link" id="up">← ${escape(at.path || at.label)}</button> ${bytes(at.size)}`;
      drawTreemap($("treemap"), at, contents.nbytes);
      $("up")?.addEventListener("click", () => { at = at.parent; draw(); });
    };
    $("treemap").addEventListener("click", (event) => {
      const kid = at.list[event.target.closest("button")?.dataset.kid];
      if (kid?.kids.size) { at = kid; draw(); }
    });
    app.redraw = draw;
    draw();
  },

  quantization(app, main) {
    const { program } = app, rows = program.record.quantized;
    main.innerHTML = `<div class="page"><div><h1>Quantization</h1><p class="lead">${rows.length ? `${plural(rows.length, "tensor")} contain integers. The value of an integer q is (q − zero point) × scale.` : "Scales and zero points of tensors that contain integers. The value of an integer q is (q − zero point) × scale."}</p></div><section class="card">${rows.length ? '<div class="scroll" id="rows"></div>' : '<p class="empty">No tensor of this method is quantized. <code>torchette compile model.py:Net --quantize int8 -o net.pte</code> compiles a program with integer arithmetic.</p>'}</section></div>`;
    if (!rows.length) return;
    const short = (scale) => scale && scale < 1e-3 ? scale.toExponential(3) : String(+scale.toPrecision(4));
    const scales = (it) => it.count > 1 ? `${short(it.range[0])} to ${short(it.range[1])} <span class="faint">${whole(it.count)} scales</span>` : it.scales.length ? short(it.scales[0]) : '<span class="faint">when it runs</span>';
    const user = (it) => program.nodes.findIndex((node) => node.kind !== "delegate" && (node.in.includes(it.value) || node.out.includes(it.value)));
    const users = new Map(rows.map((it) => { const found = user(it); return [it, found < 0 ? it.node : found]; }));
    new Rows($("rows"), [
      ["Tensor", 0, (it) => `<code>${escape(program.text(it.text))}</code>`, (it) => program.text(it.text)],
      ["Used by", 0, (it) => escape(program.nodes[users.get(it)].label), (it) => program.nodes[users.get(it)].label],
      ["Scheme", 0, (it) => `<span class="badge">${escape(it.scheme)}</span>${it.axis === null ? "" : ` <span class="faint">axis ${it.axis}</span>`}`, (it) => it.scheme],
      ["Scale", 1, scales, (it) => it.range[1] ?? it.scales[0] ?? 0],
      ["Zero point", 1, (it) => it.zero_points.join(", ") || (it.count ? "0" : ""), (it) => it.zero_points[0] ?? 0],
    ], rows, { go: (it) => `n${users.get(it)}` });
  },

  placement(app, main) {
    const { program } = app, record = program.record;
    const kernels = program.nodes.filter((it) => it.kind === "kernel"), parts = program.nodes.filter((it) => it.kind === "part");
    const groups = new Map();
    for (const node of kernels) groups.set(kernelsOf(node), (groups.get(kernelsOf(node)) || 0) + 1);
    for (const node of parts) { const name = backendName(program.nodes[node.parent].name); groups.set(name, (groups.get(name) || 0) + 1); }
    for (const node of program.nodes) if (node.kind === "delegate" && !isGroup(program.byNode[node.index])) groups.set(node.label, (groups.get(node.label) || 0) + 1);
    const list = [...groups].filter(([, count]) => count);
    const total = sum(list, ([, count]) => count) || 1;
    const colour = (name) => name === "CPU engine" ? "var(--matrix)" : name === "portable kernels" ? "var(--arithmetic)" : "var(--delegate)";
    const explained = record.placements;
    main.innerHTML = `<div class="page"><div><h1>Placement</h1><p class="lead">${explained ? "The backend or the kernels that run each call of the model, and the reasons of the compiler." : "The backend or the kernels that run each node."}</p></div>
      <section class="card"><div class="stack">${list.map(([name, count]) => `<i style="--c:${colour(name)};flex:${count}"></i>`).join("")}</div><ul class="legend">${list.map(([name, count]) => `<li><i class="dot" style="--c:${colour(name)}"></i>${escape(name)}<span class="value">${plural(count, "node")}</span><span class="share">${percent(count / total)}</span></li>`).join("")}</ul></section>
      ${explained ? "" : '<section class="card"><p class="soft">The compiler records the reasons: <code>torchette compile model.py:Net --report-page report.html</code>, or <code>write_report(..., placements={"forward": edge.delegation()})</code>.</p></section>'}
      <section class="card"><header style="flex-wrap:wrap"><h2>${explained ? "Calls" : "Nodes"}</h2><div class="tools"><input id="filter" type="search" placeholder="Filter" aria-label="Filter"></div></header><div class="scroll" id="rows"></div></section></div>`;
    const badge = (name, own = "kernels") => name ? `<span class="badge hot">${escape(backendName(name))}</span>` : `<span class="badge">${own}</span>`;
    const table = explained ? new Rows($("rows"), [
      ["Node", 0, (it) => `<code>${escape(it[0])}</code>`, (it) => it[0]],
      ["Operator", 0, (it) => escape(program.text(it[1])), (it) => program.text(it[1])],
      ["Runs on", 0, (it) => badge(it[3]), (it) => it[3] || ""],
      ["Cost", 1, (it) => percent(it[6]), (it) => it[6]],
      ["Why not on a backend", 0, (it) => it[4].map(([name, texts]) => `<span class="soft">${escape(name)}: ${prose(texts.join(", "))}</span>`).join("<br>"), (it) => JSON.stringify(it[4])],
      ["Line", 0, (it) => `<span class="faint">${escape(program.text(it[2]))}</span>`, (it) => program.text(it[2])],
    ], explained, { go: (it) => { const node = program.nodeOf.get(explained.indexOf(it)); return node === undefined ? null : `n${node}`; }, sort: [3, -1] })
      : new Rows($("rows"), [
        ["Operator", 0, (it) => escape(it.name), (it) => it.name],
        ["Runs on", 0, (it) => badge(it.kind === "part" ? program.nodes[it.parent].name : it.kind === "delegate" ? it.name : "", it.kind === "kernel" ? kernelsOf(it) : "runtime"), (it) => it.kind],
        ["Module", 0, (it) => `<span class="soft">${breakable(it.path)}</span>`, (it) => it.path],
        ["Line", 0, (it) => program.lineCell(it), (it) => program.lineText(it)],
      ], program.nodes.filter((it) => !["input", "output"].includes(it.kind)), { go: (it) => `n${it.index}` });
    $("filter").addEventListener("input", (event) => { table.filter = event.target.value.toLowerCase(); table.draw(); });
  },
};

function operatorRows(program) {
  const found = new Map();
  for (const node of program.nodes) {
    if (node.kind === "input" || node.kind === "output") continue;
    if (node.kind === "delegate" && isGroup(program.byNode[node.index]) && !node.time) continue;
    const on = node.kind === "part" ? backendName(program.nodes[node.parent].name) : node.kind === "delegate" ? node.label : node.kind === "kernel" ? kernelsOf(node) : "runtime";
    const key = `${node.name}|${on}`;
    const row = found.get(key);
    if (row) { row.count++; row.time += node.time; }
    else found.set(key, { name: node.label, full: node.name, on, family: node.family, count: 1, time: node.time });
  }
  return [...found.values()].sort((a, b) => b.time - a.time || b.count - a.count);
}
function nodeOfValue(program, value) {
  if (!program.ownerOf) {
    const owners = program.ownerOf = new Map();
    for (const node of program.nodes) if (node.kind !== "delegate") for (const it of node.out) if (!owners.has(it)) owners.set(it, node.index);
    for (const node of program.nodes) for (const it of node.in) if (!owners.has(it)) owners.set(it, node.index);
  }
  const found = program.ownerOf.get(value);
  return found === undefined ? null : `n${found}`;
}

/** The kind of the operator that writes a planned tensor. */
function familyOf(program, tenant) {
  const owner = nodeOfValue(program, tenant[0]);
  return owner ? program.byId.get(owner).node.family : "control";
}

// ---- diagrams of memory ----

function paint(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pencil = canvas.getContext("2d");
  pencil.scale(ratio, ratio);
  return [pencil, width];
}
/** Returns the value of a style sheet variable as a canvas colour. */
function colour(name) {
  const probe = colour.probe ||= document.body.appendChild(Object.assign(document.createElement("i"), { hidden: true }));
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
/** Bytes in use at each instruction, in one buffer or, for 0, in all. */
function liveBytes(program, id) {
  const count = Math.max(1, program.record.instructions);
  const marks = [];
  for (let i = 0; i < count; i++) marks.push([]);
  const change = new Float64Array(count + 1);
  const places = program.record.tenants.filter((it) => !id || it[1] === id);
  // Tensors that share bytes count once: the union of their ranges, which changes only at the start or end of a lifetime.
  const begins = Array.from({ length: count + 1 }, () => []), ends = Array.from({ length: count + 1 }, () => []);
  places.forEach((it, i) => { begins[it[4]].push(i); ends[Math.min(count, it[5] + 1)].push(i); });
  const alive = new Set(), live = [];
  for (let time = 0; time < count; time++) {
    if (time === 0 || begins[time].length || ends[time].length) {
      ends[time].forEach((i) => alive.delete(i));
      begins[time].forEach((i) => alive.add(i));
      const ranges = [...alive].map((i) => [places[i][1], places[i][2], places[i][2] + places[i][3]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      let total = 0, memory = -1, end = 0;
      for (const [id_, low, high] of ranges) {
        if (id_ !== memory) { memory = id_; end = 0; }
        total += Math.max(0, high - Math.max(low, end));
        end = Math.max(end, high);
      }
      live.push(total);
    } else live.push(live[time - 1]);
  }
  return live;
}
function drawCurve(canvas, live, most, at = -1) {
  const height = canvas.clientHeight, [pencil, width] = paint(canvas, height);
  const x = (i) => i * width / live.length, y = (value) => height - 1 - (height - 6) * value / Math.max(1, most);
  pencil.beginPath();
  pencil.moveTo(0, height);
  live.forEach((value, i) => { pencil.lineTo(x(i), y(value)); pencil.lineTo(x(i + 1), y(value)); });
  pencil.lineTo(width, height);
  pencil.globalAlpha = .16;
  pencil.fillStyle = colour("accent");
  pencil.fill();
  pencil.globalAlpha = 1;
  pencil.beginPath();
  live.forEach((value, i) => { pencil.lineTo(x(i), y(value)); pencil.lineTo(x(i + 1), y(value)); });
  pencil.strokeStyle = colour("accent");
  pencil.lineWidth = 1.5;
  pencil.stroke();
  if (at >= 0) { pencil.fillStyle = colour("faint"); pencil.fillRect(x(at + .5), 0, 1, height); }
}

class MemoryMap {
  constructor(app, canvas, curve, id) {
    Object.assign(this, { app, canvas, curve, id });
    this.program = app.program;
    this.tenants = this.program.record.tenants.filter((it) => it[1] === id);
    this.size = this.program.record.buffers.find((it) => it[0] === id)[1];
    this.live = liveBytes(this.program, id);
    this.most = Math.max(...this.live);
    this.over = null;
    this.at = -1;
    this.owner = new Map(this.tenants.map((it) => [it, +(nodeOfValue(this.program, it[0]) || "n-1").slice(1)]));
    for (const it of [canvas, curve]) {
      it.addEventListener("pointermove", (event) => this.move(event, it));
      it.addEventListener("pointerleave", () => { this.over = null; this.at = -1; this.app.tip(null); this.draw(); });
    }
    canvas.addEventListener("click", (event) => {
      this.move(event, canvas);
      if (this.over && this.owner.get(this.over) >= 0) this.app.go(`n${this.owner.get(this.over)}`);
    });
    this.draw();
  }
  move(event, canvas) {
    const box = canvas.getBoundingClientRect(), steps = this.live.length;
    this.at = Math.min(steps - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * steps)));
    this.over = null;
    if (canvas === this.canvas) {
      const offset = (1 - (event.clientY - box.top) / box.height) * this.size;
      this.over = this.tenants.findLast((it) => it[4] <= this.at && it[5] >= this.at && it[2] <= offset && it[2] + it[3] > offset) || null;
    }
    this.canvas.style.cursor = this.over ? "pointer" : "crosshair";
    if (this.over) {
      const value = this.program.value(this.over[0]);
      this.app.tip(event, `<code>${escape(value.text)}</code><small>${value.name ? `${escape(value.name)} · ` : ""}%${value.index}, written by ${escape(shortName(this.program.text(this.over[6])))}</small><small>${whole(this.over[3])} bytes at ${whole(this.over[2])}, instructions ${this.over[4]} to ${this.over[5]}</small>`);
    } else this.app.tip(null);
    this.draw();
  }
  draw() {
    const { canvas, size } = this, height = canvas.clientHeight, [pencil, width] = paint(canvas, height), steps = this.live.length;
    pencil.fillStyle = colour("sunken");
    pencil.fillRect(0, 0, width, height);
    const colours = {};
    const ground = colour("surface");
    for (const it of this.tenants) {
      const x = it[4] * width / steps, w = Math.max(1, (it[5] + 1 - it[4]) * width / steps);
      const h = Math.max(1, it[3] * height / size), y = height - (it[2] + it[3]) * height / size;
      const family = familyOf(this.program, it);
      pencil.globalAlpha = it === this.over ? 1 : .72;
      pencil.fillStyle = colours[family] ||= colour(family);
      const inset = w > 3 && h > 3 ? .5 : 0;
      pencil.fillRect(x + inset, y + inset, w - 2 * inset, h - 2 * inset);
      if (w > 70 && h > 15) {
        pencil.globalAlpha = 1;
        pencil.fillStyle = ground;
        pencil.font = "500 11px Inter, system-ui, sans-serif";
        pencil.save();
        pencil.beginPath();
        pencil.rect(x, y, w - 4, h);
        pencil.clip();
        pencil.fillText(shortName(this.program.text(it[6])), x + 6, y + Math.min(h / 2 + 4, 15));
        pencil.restore();
      }
    }
    pencil.globalAlpha = 1;
    if (this.at >= 0) { pencil.fillStyle = colour("text"); pencil.globalAlpha = .5; pencil.fillRect((this.at + .5) * width / steps, 0, 1, height); pencil.globalAlpha = 1; }
    drawCurve(this.curve, this.live, this.most, this.at);
    const label = $(`now-${this.id}`);
    const peak = this.live.indexOf(this.most);
    label.textContent = this.at >= 0 ? `${whole(this.live[this.at])} at instruction ${this.at}` : `peak ${whole(this.most)} at instruction ${peak}`;
  }
}

// ---- treemap of sizes ----

function sizeTree(rows) {
  const make = (label, path, parent) => ({ label, path, parent, size: 0, kids: new Map(), colour: "" });
  const root = make("", "", null);
  const compress = (item) => {
    for (const kid of item.kids.values()) compress(kid);
    for (const [key, kid] of [...item.kids]) {
      if (kid.kids.size === 1) {
        const only = [...kid.kids.values()][0];
        if (only.kids.size) { only.label = `${kid.label}.${only.label}`; only.parent = item; item.kids.set(key, only); }
      }
    }
  };
  for (const row of rows) {
    let at = root;
    root.size += row.size;
    for (const name of row.module ? row.module.split(".") : []) {
      if (!at.kids.has(name)) at.kids.set(name, make(/^\d/.test(name) && at.path ? `${at.path.split(".").pop()}.${name}` : name, at.path ? `${at.path}.${name}` : name, at));
      at = at.kids.get(name);
      at.size += row.size;
    }
    const leaf = make(row.name, at.path, at);
    leaf.size = row.size;
    leaf.colour = useColour(row.kind);
    at.kids.set(`\0${at.kids.size}`, leaf);
    for (let up = at; up; up = up.parent) {
      up.by ||= new Map();
      up.by.set(row.kind, (up.by.get(row.kind) || 0) + row.size);
    }
  }
  compress(root);
  for (const kid of root.kids.values()) kid.parent = root;
  return root;
}
/** Squarified treemap, largest first; the rectangles of a module are inside its rectangle. */
function drawTreemap(host, item, total) {
  const shown = [], parts = [];
  fill(item, 0, 0, host.clientWidth, host.clientHeight);
  item.list = shown;
  host.innerHTML = parts.join("");

  function fill(item, x, y, w, h) {
    const kids = [...item.kids.values()].sort((a, b) => b.size - a.size);
    const scale = w * h / Math.max(1, sum(kids, (it) => it.size));
    const worst = (row, side) => {
      const area = sum(row, (it) => it.size * scale);
      return Math.max(...row.map((it) => Math.max(side * side * it.size * scale / (area * area), area * area / (side * side * it.size * scale))));
    };
    for (let i = 0; i < kids.length && w > 1 && h > 1;) {
      const side = Math.min(w, h), row = [kids[i++]];
      while (i < kids.length && worst([...row, kids[i]], side) <= worst(row, side)) row.push(kids[i++]);
      const thick = sum(row, (it) => it.size * scale) / side;
      let along = 0;
      for (const kid of row) {
        const length = kid.size * scale / thick;
        draw(kid, ...(w >= h ? [x, y + along, thick, length] : [x + along, y, length, thick]));
        along += length;
      }
      if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
    }
  }
  function draw(kid, x, y, w, h) {
    if (w < 3 || h < 3) return;
    const most = kid.by ? [...kid.by].sort((a, b) => b[1] - a[1])[0][0] : "";
    const roomy = w > 44 && h > 20, split = kid.kids.size > 0 && w > 70 && h > 56;
    parts.push(`<button${kid.kids.size ? "" : ' class="leaf"'} data-kid="${shown.length}" style="left:${x.toFixed(1)}px;top:${y.toFixed(1)}px;width:${w.toFixed(1)}px;height:${h.toFixed(1)}px;--c:${kid.colour || useColour(most)}${roomy ? "" : ";padding:0"}" title="${escape(kid.label)}: ${whole(kid.size)} bytes, ${percent(kid.size / total)}">${roomy ? `<b>${escape(kid.label)}${split ? ` <span>${bytes(kid.size)}</span>` : ""}</b>${h > 36 && !split ? `<span>${bytes(kid.size)}</span>` : ""}` : ""}</button>`);
    shown.push(kid);
    if (split) fill(kid, x + 5, y + 23, w - 10, h - 28);
  }
}
