// SPDX-License-Identifier: BSD-3-Clause
// The graph view: the outline on the left, the drawing, and the details of the selected node on the right.

const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();
function textWidth(text, font) {
  const key = font + text;
  let width = widths.get(key);
  if (width === undefined) { pen.font = font; widths.set(key, width = pen.measureText(text).width); }
  return width;
}
const LABEL = "500 12px Inter, ui-sans-serif, -apple-system, Segoe UI, Roboto, Helvetica Neue, DejaVu Sans, sans-serif";
const SMALL = "400 10.5px ui-monospace, SF Mono, JetBrains Mono, Menlo, Consolas, DejaVu Sans Mono, monospace";
const CLIP = 30;
const clip = (text, most = CLIP) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

class Graph {
  constructor(app) {
    this.app = app;
    this.scale = 1; this.x = 0; this.y = 0;
    this.colour = "kind";
    this.selected = null;
    this.outlined = new Set();
  }

  get program() { return this.app.program; }

  /** Draws the view into the page. */
  show(main) {
    main.innerHTML = `<section class="graph" id="graph">
      <div class="outline" id="outline" role="tree" aria-label="Modules"></div>
      <div class="graph-canvas" id="canvas" tabindex="0" aria-label="Graph: arrows move, Enter opens and closes, Esc clears">
        <svg id="picture" aria-hidden="true"><g id="world"></g></svg>
        <div class="floating colour"><button class="icon outline-open" id="outline-open" aria-label="Modules"><svg viewBox="0 0 16 16" width="16" height="16"><path d="M2 4h12M4.5 8H14M7 12h7" stroke="currentColor" stroke-width="1.5" stroke-linecap="round"/></svg></button><span class="segmented" id="colours" role="group" aria-label="Colour by"></span></div>
        <div class="corner"><div class="crumbs" id="crumbs" hidden></div><div id="colour-legend"></div></div>
        <div class="floating zoom">
          <button class="icon" data-do="fold" aria-label="Close all groups" title="Close all groups"><svg viewBox="0 0 16 16" width="14" height="14"><path d="M4 2l4 4 4-4M4 14l4-4 4 4" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round"/></svg></button>
          <button class="icon" data-do="unfold" aria-label="Open all groups" title="Open all groups"><svg viewBox="0 0 16 16" width="14" height="14"><path d="M4 6l4-4 4 4M4 10l4 4 4-4" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round"/></svg></button>
          <button class="icon" data-do="out" aria-label="Zoom out" title="Zoom out (-)">−</button>
          <button class="icon" data-do="in" aria-label="Zoom in" title="Zoom in (+)">+</button>
          <button class="icon" data-do="fit" aria-label="Fit" title="Fit (f)"><svg viewBox="0 0 16 16" width="14" height="14"><path d="M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round"/></svg></button>
        </div>
      </div>
      <aside class="details" id="details" aria-label="Details"></aside>
    </section>`;
    this.canvas = $("canvas");
    this._listen();
    this._colours();
    this.relayout();
    this._outline();
    this.fit(!this.fitted || this.fitted !== this.program);
    this.fitted = this.program;
    this._details();
  }

  // ---- drawing ----

  measure(item, title = false) {
    if (title) return [textWidth(clip(item.label, 44), LABEL) + textWidth(clip(this._what(item), 30), LABEL) * .88 + 78 + 12, HEAD];
    const label = textWidth(clip(item.label), LABEL) + (item.what ? 8 + textWidth(clip(item.what, 24), LABEL) : 0);
    if (item.kind === "input" || item.kind === "output") return [Math.max(64, Math.max(label, textWidth(clip(item.node.shape, 34), SMALL)) + 28), 40];
    const sub = textWidth(clip(this._sub(item), 34), SMALL);
    return [Math.max(84, Math.max(label, sub) + (isGroup(item) ? 46 : 30)), 42];
  }
  _what(item) {
    if (item.kind === "delegate") return `${plural(item.count, "node")}`;
    return item.type || "";
  }
  _sub(item) {
    if (!isGroup(item)) return item.node.shape;
    const count = plural(item.count || item.kids.length, item.kind === "ports" ? item.label.slice(0, -1) : "node");
    return item.type ? `${item.type} · ${count}` : count;
  }

  relayout() {
    liftEdges(this.program);
    layoutGroup(this.program.root, (item, title) => this.measure(item, title));
    this._absolute(this.program.root, 0, 0);
    this.draw(true);
  }
  _absolute(item, x, y) {
    item.ax = x; item.ay = y;
    if (item.open) for (const kid of item.kids) this._absolute(kid, x + kid.x, y + kid.y);
  }

  /** Draws only the boxes near the visible area. */
  draw(anew = false) {
    const world = $("world");
    if (!world) return;
    world.setAttribute("transform", `translate(${this.x} ${this.y}) scale(${this.scale})`);
    const { clientWidth: w, clientHeight: h } = this.canvas;
    const view = [-this.x / this.scale, -this.y / this.scale, (w - this.x) / this.scale, (h - this.y) / this.scale];
    const drawn = this.drawn;
    if (!anew && drawn && drawn.scale / this.scale < 2 && this.scale / drawn.scale < 2 && view[0] >= drawn.view[0] && view[1] >= drawn.view[1] && view[2] <= drawn.view[2] && view[3] <= drawn.view[3]) return;
    const mx = (view[2] - view[0]) * .7, my = (view[3] - view[1]) * .7;
    const wide = [view[0] - mx, view[1] - my, view[2] + mx, view[3] + my];
    this.drawn = { view: wide, scale: this.scale };
    const parts = [];
    this.boxes = 0;
    this._drawGroup(this.program.root, wide, parts);
    parts.push(this._lights());
    world.innerHTML = parts.join("");
    $("picture").classList.toggle("far", this.scale < .42);
  }

  _drawGroup(group, view, parts) {
    const { ax, ay } = group;
    if (ax > view[2] || ay > view[3] || ax + group.w < view[0] || ay + group.h < view[1]) return;
    if (group.parent) {
      const on = group === this.selected ? " on" : "";
      parts.push(`<g class="group hit${on}${group.kind === "delegate" ? " delegate" : ""}" data-id="${group.id}" transform="translate(${ax} ${ay})"><rect width="${group.w.toFixed(1)}" height="${group.h.toFixed(1)}" rx="12"/><g data-twist="1"><rect x="8" y="8" width="22" height="22" rx="6" style="fill:transparent;stroke:none"/><path d="M14 17l5 5 5-5" transform="translate(0 -1)" fill="none" stroke="var(--soft)" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round"/></g><text x="34" y="23">${escape(clip(group.label, 44))}<tspan dx="8" fill="var(--faint)" font-size="11" font-weight="400">${escape(clip(this._what(group), 30))}</tspan></text>${this._heat(group, group.w - 14, 23)}</g>`);
    }
    const lines = [], marks = [];
    for (const { edge, d } of group.lines) {
      lines.push(`<path class="edge${edge.back ? " back" : ""}" d="${d.d}"/><path class="tip" d="M${d.x.toFixed(1)} ${(d.y + 5).toFixed(1)}l-3.5-6h7Z"/>`);
    }
    for (const { from, to } of group.far) {
      marks.push(`<circle class="stub" cx="${(from.x + from.w / 2 + 14).toFixed(1)}" cy="${(from.y + from.h + 7).toFixed(1)}" r="3"/><circle class="stub" cx="${(to.x + to.w / 2 - 14).toFixed(1)}" cy="${(to.y - 7).toFixed(1)}" r="3"/>`);
    }
    for (const kid of group.kids) {
      const above = kid.x + (kid.fed ? 14 : kid.w / 2), below = kid.x + (kid.feeds ? 14 : kid.w / 2);
      if (kid.entry) marks.push(`<path class="edge" d="M${above.toFixed(1)} ${(kid.y - 9).toFixed(1)}v9"/><circle class="stub" cx="${above.toFixed(1)}" cy="${(kid.y - 11).toFixed(1)}" r="2.8"/>`);
      if (kid.exit) marks.push(`<path class="edge" d="M${below.toFixed(1)} ${(kid.y + kid.h).toFixed(1)}v7"/><circle class="stub" cx="${below.toFixed(1)}" cy="${(kid.y + kid.h + 9).toFixed(1)}" r="2.8"/>`);
    }
    parts.push(`<g transform="translate(${ax} ${ay})">${lines.join("")}${marks.join("")}</g>`);
    for (const kid of group.kids) {
      if (kid.open) this._drawGroup(kid, view, parts);
      else if (kid.ax <= view[2] && kid.ay <= view[3] && kid.ax + kid.w >= view[0] && kid.ay + kid.h >= view[1]) parts.push(this._drawBox(kid));
    }
  }

  _drawBox(item) {
    this.boxes++;
    const { w, h } = item;
    const group = isGroup(item), port = item.kind === "input" || item.kind === "output";
    const on = item === this.selected ? " on" : "";
    const open = `<g class="box hit${on}${group ? " closed" : ""}${port ? " port" : ""}" data-id="${item.id}" transform="translate(${item.ax.toFixed(1)} ${item.ay.toFixed(1)})">`;
    if (port) {
      return `${open}<rect width="${w.toFixed(1)}" height="${h}" rx="${h / 2}"/><text x="${w / 2}" y="17" text-anchor="middle">${escape(clip(item.label))}</text><text class="sub" x="${w / 2}" y="31" text-anchor="middle">${escape(clip(item.node.shape, 34))}</text></g>`;
    }
    const fill = this._fill(item);
    const under = group ? `<rect class="under" x="4" y="4" width="${w.toFixed(1)}" height="${h}" rx="9"/>` : "";
    const face = `<rect width="${w.toFixed(1)}" height="${h}" rx="8"${this.colour === "kind" ? "" : ` style="fill:${this._wash(item)}"`}/>`;
    const side = this.colour === "kind" ? `<path d="M8 .5H5A4.5 4.5 0 0 0 .5 5v${h - 10}a4.5 4.5 0 0 0 4.5 4.5h0V.5Z" fill="${fill}"/>` : "";
    const twist = group ? `<path data-twist="1" d="M${w - 21} ${h / 2 - 5}l5 5-5 5" fill="none" stroke="var(--faint)" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round"/><rect data-twist="1" x="${w - 32}" y="0" width="32" height="${h}" style="fill:transparent;stroke:none"/>` : "";
    return `${open}${group ? `${under}` : ""}${face}${side}<text x="15" y="18">${escape(clip(item.label))}${item.what ? `<tspan dx="7" fill="var(--faint)" font-weight="400">${escape(clip(item.what, 24))}</tspan>` : ""}</text><text class="sub" x="15" y="32">${escape(clip(this._sub(item), 34))}</text>${twist}</g>`;
  }
  _heat(item, x, y) {
    const value = this._value(item);
    return value && this.colour !== "kind" ? `<text class="count" x="${x}" y="${y}" text-anchor="end">${value}</text>` : "";
  }
  _value(item) {
    return this.colour === "time" ? (item.time ? percent(item.time / this.program.total) : "")
      : this.colour === "bytes" ? (item.weights ? bytes(item.weights) : "") : "";
  }
  _fill(item) { return `var(--${item.family})`; }
  _share(item) {
    const most = this.colour === "time" ? this.program.root.time : this.program.root.weights;
    return most ? (this.colour === "time" ? item.time : item.weights) / most : 0;
  }
  _wash(item) {
    const share = this._share(item);
    return share ? `color-mix(in srgb, var(--accent) ${Math.round(8 + 74 * Math.pow(share, .45))}%, var(--raised))` : "var(--raised)";
  }

  /** Draws curves from the selected node to its producers and consumers in all groups. */
  _lights() {
    const item = this.selected;
    if (!item) return "";
    const parts = [];
    const shown = (node) => this.program.paths[node].find((it, i, path) => !it.open || i === path.length - 1);
    const done = new Set();
    const members = item.node && !isGroup(item) ? [item.node.index] : [];
    const join = (a, b, kind) => {
      if (a === b || done.has(a.id + b.id)) return;
      done.add(a.id + b.id);
      const x1 = a.ax + a.w / 2, y1 = a.ay + a.h, x2 = b.ax + b.w / 2, y2 = b.ay;
      const bend = Math.max(24, Math.abs(y2 - y1) / 2);
      parts.push(`<path class="light ${kind}" d="M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}"/>`);
    };
    for (const node of members) {
      for (const [from] of this.program.writers[node]) join(shown(from), item, "in");
      for (const [to] of this.program.readers[node]) join(item, shown(to), "out");
    }
    return parts.join("");
  }

  // ---- visible area ----

  fit(really = true) {
    if (!really) { this.draw(true); return; }
    const { clientWidth: w, clientHeight: h } = this.canvas;
    const root = this.program.root;
    const scale = Math.min(w / (root.w + 40), h / (root.h + 40), 1);
    this.scale = Math.max(scale, Math.min(.8, Math.max(.3, w / (root.w + 40))));
    const first = root.kids.find((it) => it.kind !== "input" && it.kind !== "ports") || root;
    this.x = root.w * this.scale < w ? (w - root.w * this.scale) / 2 : w / 2 - (first.ax + first.w / 2) * this.scale;
    this.y = root.h * this.scale < h ? (h - root.h * this.scale) / 2 : 56 - HEAD * this.scale;
    this.draw(true);
  }
  whole() {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    const root = this.program.root;
    this.scale = Math.min(w / (root.w + 40), h / (root.h + 40), 1.2);
    this.x = (w - root.w * this.scale) / 2;
    this.y = (h - root.h * this.scale) / 2;
    this.draw(true);
  }
  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const scale = Math.min(2.5, Math.max(.03, this.scale * factor));
    this.x = x - (x - this.x) * scale / this.scale;
    this.y = y - (y - this.y) * scale / this.scale;
    this.scale = scale;
    this.draw();
  }
  centre(item, closer = false) {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    if (closer && this.scale < .6) this.scale = .9;
    const low = this.app.narrow && this.selected ? h * .22 : h / 2;
    this.x = w / 2 - (item.ax + item.w / 2) * this.scale;
    this.y = low - (item.ay + Math.min(item.h, h / this.scale - 80) / 2) * this.scale;
    this.draw();
  }
  /** Scrolls by the minimum that makes the box visible. */
  reveal(item) {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    const left = item.ax * this.scale + this.x, top = item.ay * this.scale + this.y;
    if (left < 20 || top < 20 || left + Math.min(item.w, 200) * this.scale > w - 20 || top + Math.min(item.h, 60) * this.scale > h - 50) this.centre(item);
  }

  // ---- opening and selecting ----

  toggle(item, open = !item.open) {
    if (!isGroup(item) || !item.parent || item.open === open) return;
    const before = [item.ax, item.ay];
    item.open = open;
    const path = [];
    if (!open && this.selected) for (let at = this.selected; at; at = at.parent) path.push(at);
    this.relayoutAround(item, before);
    if (path.includes(item) && this.selected !== item) this.select(item);
    this._outlineOpen(item, open);
  }
  /** Scrolls so that the clicked box stays under the pointer. */
  relayoutAround(item, [ax, ay]) {
    liftEdges(this.program);
    layoutGroup(this.program.root, (it, title) => this.measure(it, title));
    this._absolute(this.program.root, 0, 0);
    this.x -= (item.ax - ax) * this.scale;
    this.y -= (item.ay - ay) * this.scale;
    this.draw(true);
  }
  foldAll(open) {
    const items = [...this.program.byId.values()].filter((it) => isGroup(it) && it.parent);
    if (open) {
      let shown = this.program.root.kids.length;
      for (const item of items.sort((a, b) => a.depth - b.depth)) {
        if (shown + item.kids.length > 6000) break;
        item.open = true;
        shown += item.kids.length;
      }
    } else {
      items.forEach((it) => { it.open = false; });
      if (this.selected) while (this.selected.parent && this.selected.parent !== this.program.root) this.selected = this.selected.parent;
    }
    this.relayout();
    this.fit();
    this._outline();
    this._details();
  }
  select(item, { show = false, closer = false } = {}) {
    this.selected = item;
    if (item && show) {
      let changed = false;
      for (let at = item.parent; at; at = at.parent) if (!at.open) { at.open = changed = true; }
      if (changed) this.relayout();
    }
    this._details();
    this._outlineSelect();
    if (item && show) this.centre(item, closer);
    this.draw(true);
  }

  // ---- the outline ----

  _outline() {
    const rows = [];
    const visit = (item, depth) => {
      rows.push(this._row(item, depth));
      if (this.outlined.has(item.id)) item.kids.forEach((kid) => visit(kid, depth + 1));
    };
    for (const item of this.program.byId.values()) if (item.open && item.parent) this.outlined.add(item.id); else this.outlined.delete(item.id);
    this.program.root.kids.forEach((kid) => visit(kid, 0));
    $("outline").innerHTML = rows.join("");
    this._outlineSelect();
  }
  _row(item, depth) {
    const group = isGroup(item);
    const value = this.program.profiled ? (item.time ? percent(item.time / this.program.total) : "") : group ? whole(item.count || item.kids.length) : "";
    return `<button class="row" role="treeitem" tabindex="-1" data-id="${item.id}" data-depth="${depth}" style="--depth:${depth}" aria-selected="false" aria-level="${depth + 1}"${group ? ` aria-expanded="${this.outlined.has(item.id)}"` : ""}><span class="twist">${group ? '<svg viewBox="0 0 10 10" width="9" height="9"><path d="M3 1.5 6.5 5 3 8.5" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round"/></svg>' : `<i class="dot" style="--c:var(--${item.family})"></i>`}</span><span class="label">${escape(item.label)}</span><span class="what">${escape(item.what || item.type || (item.kind === "delegate" ? "delegate" : ""))}</span><span class="value">${value}</span></button>`;
  }
  _outlineOpen(item, open) {
    if (open === this.outlined.has(item.id)) return;
    this._outline();
  }
  _outlineSelect() {
    const outline = $("outline");
    outline.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
    const row = this.selected && outline.querySelector(`[data-id="${this.selected.id}"]`);
    if (row) { row.setAttribute("aria-selected", "true"); row.scrollIntoView({ block: "nearest" }); }
  }

  // ---- the details ----

  _details() {
    const item = this.selected;
    $("graph").classList.toggle("detailed", !!item);
    $("details").innerHTML = item ? `<div class="details-in">${details(this.program, item)}</div>` : "";
    $("details").scrollTop = 0;
    const crumbs = $("crumbs");
    crumbs.hidden = !item || item.parent === this.program.root;
    if (item) {
      const path = ancestors(item).slice(1);
      crumbs.innerHTML = path.map((it) => it === item ? `<b>${escape(clip(it.label))}</b>` : `<button data-id="${it.id}">${escape(clip(it.label, 24))}</button><span class="faint">/</span>`).join("");
    }
  }

  _colours() {
    const choices = [["kind", "Kind"], ...(this.program.profiled ? [["time", "Time"]] : []), ...(this.program.root.weights ? [["bytes", "Weights"]] : [])];
    if (!choices.some(([key]) => key === this.colour)) this.colour = "kind";
    const most = this.colour === "time" ? percent(this.program.root.time / this.program.total) : bytes(this.program.root.weights);
    $("colour-legend").innerHTML = this.colour === "kind" ? kindLegend(this.program.nodes.map((it) => it.family)) : `<ul class="kinds" aria-label="Colours"><li>0<i class="ramp"></i>${most}</li></ul>`;
    $("colours").innerHTML = choices.map(([key, label]) => `<button data-colour="${key}" aria-pressed="${key === this.colour}">${label}</button>`).join("");
  }

  // ---- user input ----

  _listen() {
    const canvas = this.canvas;
    const find = (event) => this.program.byId.get(event.target.closest?.("[data-id]")?.dataset.id);
    const fingers = new Map();
    let start = null, spread = 0, moved = false;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.target.closest(".floating, .corner") || event.button) return;
      fingers.set(event.pointerId, [event.clientX, event.clientY]);
      canvas.focus({ preventScroll: true });
      if (fingers.size === 1) { start = { x: event.clientX, y: event.clientY, target: event.target }; moved = false; }
    });
    canvas.addEventListener("pointermove", (event) => {
      const last = fingers.get(event.pointerId);
      if (!last) return;
      const now = [event.clientX, event.clientY];
      if (!moved && Math.hypot(now[0] - start.x, now[1] - start.y) > 4) {
        moved = true;
        canvas.setPointerCapture(event.pointerId);
        canvas.classList.add("dragging");
      }
      fingers.set(event.pointerId, now);
      if (fingers.size === 2) {
        const [a, b] = [...fingers.values()], box = canvas.getBoundingClientRect();
        const distance = Math.hypot(a[0] - b[0], a[1] - b[1]);
        if (spread) this.zoom(distance / spread, (a[0] + b[0]) / 2 - box.left, (a[1] + b[1]) / 2 - box.top);
        spread = distance;
        moved = true;
      } else if (moved) {
        this.x += now[0] - last[0];
        this.y += now[1] - last[1];
        this.draw();
      }
    });
    const end = (event) => {
      if (!fingers.delete(event.pointerId)) return;
      spread = 0;
      canvas.classList.remove("dragging");
      if (moved || event.type === "pointercancel") return;
      const item = this.program.byId.get(start.target.closest("[data-id]")?.dataset.id);
      if (!item) { this.select(null); return; }
      if (start.target.closest("[data-twist]")) { this.toggle(item); return; }
      this.select(item);
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("dblclick", (event) => { const item = find(event); if (item) this.toggle(item); });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey || event.deltaMode === 1 || (Number.isInteger(event.deltaY) && Math.abs(event.deltaY) >= 60 && !event.deltaX)) {
        this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? .01 : .0018)), event.clientX - box.left, event.clientY - box.top);
      } else {
        this.x -= event.deltaX;
        this.y -= event.deltaY;
        this.draw();
      }
    }, { passive: false });
    canvas.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      const { do: what, colour, id } = button.dataset;
      if (what === "fit") this.whole();
      if (what === "in") this.zoom(1.3);
      if (what === "out") this.zoom(1 / 1.3);
      if (what === "fold") this.foldAll(false);
      if (what === "unfold") this.foldAll(true);
      if (colour) { this.colour = colour; this._colours(); this.draw(true); }
      if (id) this.select(this.program.byId.get(id), { show: true });
      if (button.id === "outline-open") $("graph").classList.toggle("outlined");
    });
    $("outline").addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (!row) return;
      const item = this.program.byId.get(row.dataset.id);
      if (event.target.closest(".twist") && isGroup(item)) { this.select(item, { show: true }); this.toggle(item); return; }
      if (isGroup(item) && this.selected === item) this.toggle(item);
      else this.select(item, { show: true, closer: true });
      if (!isGroup(item)) $("graph").classList.remove("outlined");
    });
    $("details").addEventListener("click", (event) => {
      const target = event.target.closest("[data-id], [data-do]");
      if (!target) return;
      if (target.dataset.do === "close") { this.select(null); this.canvas.focus(); }
      if (target.dataset.do === "toggle") this.toggle(this.selected);
      if (target.dataset.id) this.select(this.program.byId.get(target.dataset.id), { show: true });
    });
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  key(event) {
    const item = this.selected;
    const list = this._visible();
    const step = (by) => {
      const at = item ? list.indexOf(item) : -1;
      const next = list[Math.min(list.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
      if (next) { this.select(next); this.reveal(next); }
    };
    switch (event.key) {
      case "ArrowDown": step(1); break;
      case "ArrowUp": step(-1); break;
      case "ArrowRight":
        if (item && isGroup(item) && !item.open) this.toggle(item, true);
        else if (item && item.open) { this.select(item.kids[0]); this.reveal(item.kids[0]); }
        else step(1);
        break;
      case "ArrowLeft":
        if (item && item.open) this.toggle(item, false);
        else if (item?.parent && item.parent !== this.program.root) { this.select(item.parent); this.reveal(item.parent); }
        else step(-1);
        break;
      case "Enter": if (item && isGroup(item)) this.toggle(item); else if (item) this.centre(item, true); break;
      case "Escape": if ($("graph").classList.contains("outlined")) $("graph").classList.remove("outlined"); else this.select(null); break;
      case "f": this.whole(); break;
      case "+": case "=": this.zoom(1.3); break;
      case "-": this.zoom(1 / 1.3); break;
      default: return false;
    }
    return true;
  }
  _visible() {
    const list = [];
    const visit = (item) => item.kids.forEach((kid) => { list.push(kid); if (kid.open) visit(kid); });
    visit(this.program.root);
    return list;
  }
}

// ---- the details of a node or group ----

function details(program, item) {
  const node = item.node;
  const close = '<button class="icon" data-do="close" aria-label="Close">✕</button>';
  const title = node && !isGroup(item) ? node.name : item.label;
  const path = isGroup(item) ? item.path : node.path;
  const what = isGroup(item) ? (item.kind === "delegate" ? node.name : item.type) : node.type !== undefined ? program.text(node.type) : "";
  const head = `<div><div class="top"><h2>${escape(title)}</h2>${close}</div>${path ? `<p class="path"><code>${escape(path)}</code>${what ? ` ${escape(what)}` : ""}</p>` : what && isGroup(item) ? `<p class="path">${escape(what)}</p>` : ""}</div>`;
  const facts = [];
  const fact = (name, value) => { if (value !== "" && value !== undefined && value !== null) facts.push(`<div><dt>${name}</dt><dd>${value}</dd></div>`); };
  if (program.profiled && item.time) fact("Time", `${seconds(item.time)} <span class="faint">${percent(item.time / program.total)}</span>`);
  if (isGroup(item)) {
    fact("Nodes", whole(item.count || item.kids.length));
    fact("Weights", item.weights ? bytes(item.weights) : "");
    if (node && node.delegate !== undefined) {
      fact("Instruction", node.at);
      fact("Its bytes", bytes(program.record.delegates[node.delegate][1]));
    }
  } else {
    fact("Instruction", node.at !== undefined ? node.at : node.parent !== undefined ? `${program.nodes[node.parent].at}, node ${node.handle}` : "");
    fact("Runs on", node.kind === "part" ? escape(backendName(program.nodes[node.parent].name)) : node.kind === "delegate" ? escape(node.label) : node.kind === "kernel" ? kernelsOf(node) : "");
    fact("Weights", item.weights ? bytes(item.weights) : "");
    fact("Kind", `<i class="dot" style="--c:var(--${node.family});display:inline-block;margin-right:6px"></i>${kindName(node.family)}`);
    const speed = (rate, unit, share, of) => rate ? `${billions(rate)} ${unit}${share ? ` <span class="faint">${percent(share)} of ${escape(of)}</span>` : ""}` : "";
    fact("Arithmetic", speed(node.flops, "GFLOP/s", node.ofPeak, "the peak"));
    fact("Memory", speed(node.rate, "GB/s", node.ofBandwidth, program.record.store));
    fact("Bound by", escape(node.bound || ""));
  }
  const parts = [head, facts.length ? `<dl class="facts">${facts.join("")}</dl>` : ""];
  if (isGroup(item)) {
    parts.push(`<div><button class="action" data-do="toggle">${item.open ? "Close" : "Open"} this group</button></div>`);
    if (node && node.source !== undefined) parts.push(source(program, node));
    const most = [...item.families].sort((a, b) => b[1] - a[1]);
    const sum = most.reduce((total, [, count]) => total + count, 0);
    if (most.length) parts.push(`<div><h3>What is in it</h3><div class="stack">${most.map(([family, count]) => `<i style="--c:var(--${family});flex:${count}"></i>`).join("")}</div><ul class="legend">${most.map(([family, count]) => `<li><i class="dot" style="--c:var(--${family})"></i>${kindName(family)}<span class="value">${whole(count)}</span><span class="share">${percent(count / sum)}</span></li>`).join("")}</ul></div>`);
    const hot = leaves(item).filter((it) => it.time).sort((a, b) => b.time - a.time).slice(0, 6);
    if (hot.length) parts.push(`<div><h3>Slowest in it</h3>${hot.map((it) => `<button class="tensor" data-id="${it.id}"><code>${escape(it.label)}</code><small>${seconds(it.time)} <b>${percent(it.time / program.total)}</b></small></button>`).join("")}</div>`);
    return parts.join("");
  }
  parts.push(source(program, node));
  const row = program.reasonOf.get(node.index);
  if (row !== undefined) {
    const [, , , backend, reasons] = program.record.placements[row];
    if (reasons.length || backend) parts.push(`<div><h3>Why it is there</h3>${backend ? `<p class="reason">${escape(backendName(backend))} took it.</p>` : reasons.map(([name, texts]) => `<p class="reason">${escape(name)}: ${prose(texts.join(", "))}</p>`).join("")}</div>`);
  }
  if (node.settings !== undefined) parts.push(`<div><h3>Settings</h3><code>${escape(program.text(node.settings))}</code></div>`);
  const plain = (node.args || []).map((it) => it < 0 ? "None" : program.value(it)).filter((it) => typeof it === "string" || !it.tensor);
  if (plain.length) parts.push(`<div><h3>Other arguments</h3><code>${plain.map((it) => escape(typeof it === "string" ? it : it.text)).join(", ")}</code></div>`);
  const inputs = node.in.map((it) => tensor(program, it, program.writers[node.index].filter(([, value]) => value === it).map(([from]) => from), "from"));
  const outputs = node.out.map((it) => tensor(program, it, program.readers[node.index].map(([to]) => to), "to"));
  if (inputs.length) parts.push(`<div><h3><i class="dot" style="--c:var(--in)"></i>${plural(inputs.length, "input")}</h3>${inputs.join("")}</div>`);
  if (outputs.length) parts.push(`<div><h3><i class="dot" style="--c:var(--out)"></i>${plural(outputs.length, "output")}</h3>${outputs.join("")}</div>`);
  return parts.join("");
}

function tensor(program, index, nodes, word) {
  const value = program.value(index);
  const quantized = program.record.quantized.find((it) => it.value === index);
  const others = [...new Set(nodes)];
  const links = others.length ? `${word} <b>${others.slice(0, 3).map((it) => escape(program.nodes[it].label)).join(", ")}${others.length > 3 ? ` and ${others.length - 3} more` : ""}</b>` : "";
  const scale = quantized ? `scale <b>${quantized.count > 1 ? quantized.range.join(" to ") : quantized.scales[0] ?? "when it runs"}</b>${quantized.zero_points.length ? ` zero point <b>${quantized.zero_points.join(", ")}</b>` : ""}` : "";
  const tag = others.length ? "button" : "div";
  return `<${tag} class="tensor"${others.length ? ` data-id="n${others[0]}"` : ""}><code>${escape(value.text)}</code><small><span>%${index}</span><span>${bytes(value.nbytes)}</span><span>${escape(value.place)}</span>${value.name ? `<b>${escape(value.name)}</b>` : ""}${scale ? `<span>${scale}</span>` : ""}${links ? `<span>${links}</span>` : ""}</small></${tag}>`;
}

function source(program, node) {
  const line = program.line(node.source);
  if (!line) return "";
  const known = program.contents.files[line.file];
  let text = "";
  if (known && known[line.line] !== undefined) {
    const rows = [];
    let least = Infinity;
    for (let n = line.line - 3; n <= line.line + 3; n++) if (known[n] !== undefined) { rows.push([n, known[n]]); if (known[n].trim()) least = Math.min(least, known[n].search(/\S/)); }
    text = `<pre>${rows.map(([n, code]) => `<span data-n="${n}"${n === line.line ? ' class="here"' : ""}>${escape(code.slice(least === Infinity ? 0 : least)) || " "}</span>`).join("")}</pre>`;
  } else if (line.code) {
    text = `<pre><span data-n="${line.line}" class="here">${escape(line.code)}</span></pre>`;
  }
  return `<div><h3>Source</h3><div class="source"><div${text ? "" : ' style="border:0"'}><code>${escape(line.file)}:${line.line}</code> in ${escape(line.name)}</div>${text}</div></div>`;
}

function leaves(item) {
  return item.kids.length ? item.kids.flatMap(leaves) : [item];
}
