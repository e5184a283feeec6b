// SPDX-License-Identifier: BSD-3-Clause
// The page: tabs, search, keys, light and dark theme.

const TABS = [["overview", "Overview"], ["graph", "Graph"], ["memory", "Memory"], ["time", "Time"], ["size", "Size"], ["quantization", "Quantization"], ["placement", "Placement"]];
const KEYS = [["/", "Search"], ["1", "to", "7", "Views"], ["↑", "↓", "Next node, node before"], ["→", "←", "Open, close; into and out of a group"], ["Enter", "Open or close the group"], ["f", "The whole graph"], ["+", "−", "Zoom"], ["t", "Light or dark"], ["Esc", "Back"]];

class App {
  constructor() {
    this.contents = JSON.parse($("contents").textContent);
    this.programs = [];
    this.graph = new Graph(this);
    this.redraw = null;
    $("file-name").textContent = this.contents.name;
    const methods = $("method");
    methods.hidden = this.contents.methods.length < 2;
    methods.innerHTML = this.contents.methods.map((it, i) => `<option value="${i}">${escape(it.name)}</option>`).join("");
    methods.addEventListener("change", () => { this.graph.selected = null; this.use(+methods.value); this.show(this.view); });
    const most = this.contents.methods.reduce((best, it, i, all) => it.nodes.length > all[best].nodes.length ? i : best, 0);
    const forward = this.contents.methods.findIndex((it) => it.name === "forward");
    methods.value = forward < 0 ? most : forward;
    this.use(+methods.value);
    $("tabs").innerHTML = TABS.map(([key, label]) => `<button role="tab" data-view="${key}" id="tab-${key}">${label}</button>`).join("");
    $("tabs").addEventListener("click", (event) => { const { view } = event.target.dataset; if (view) location.hash = view; });
    addEventListener("hashchange", () => this.show(location.hash.slice(1)));
    addEventListener("resize", () => this.redraw?.());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw?.());
    $("main").addEventListener("click", (event) => { const go = event.target.closest("[data-go]")?.dataset.go; if (go) this.go(go); });
    addEventListener("keydown", (event) => this.key(event));
    $("theme").addEventListener("click", () => this.theme());
    $("help").addEventListener("click", () => $("keys").showModal());
    $("keys").innerHTML = `<h2>Keys</h2><dl>${KEYS.map((row) => `<dt>${row.slice(0, -1).map((key) => key === "to" ? "to" : `<kbd>${key}</kbd>`).join("")}</dt><dd>${row.at(-1)}</dd>`).join("")}</dl>`;
    for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    this.search = new Search(this);
    let theme = null;
    try { theme = localStorage.getItem("torchette-theme"); } catch { /* the browser has no storage for this file */ }
    if (theme) document.documentElement.dataset.theme = theme;
    this.show(location.hash.slice(1));
  }

  get narrow() { return innerWidth <= 860; }

  use(number) {
    if (!this.programs[number]) { this.programs[number] = new Program(this.contents, number); this.programs[number].openSome(); }
    this.program = this.programs[number];
  }
  show(view) {
    if (!Views[view]) view = "overview";
    this.view = view;
    this.redraw = null;
    this.tip(null);
    const main = $("main");
    main.scrollTop = 0;
    document.querySelectorAll("#tabs button").forEach((it) => it.setAttribute("aria-selected", String(it.dataset.view === view)));
    const tab = $(`tab-${view}`), tabs = $("tabs");
    tabs.scrollLeft = tab.offsetLeft - (tabs.clientWidth - tab.offsetWidth) / 2;
    Views[view](this, main);
    if (view !== "graph") main.focus({ preventScroll: true });
    else this.graph.canvas.focus({ preventScroll: true });
  }
  /** Shows a node in the graph. */
  go(id) {
    const item = this.program.byId.get(id);
    if (!item) return;
    if (this.view !== "graph") {
      history.pushState(null, "", "#graph");
      this.show("graph");
    }
    this.graph.select(item, { show: true, closer: true });
    this.graph.canvas.focus({ preventScroll: true });
  }
  theme() {
    const now = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    const next = now === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("torchette-theme", next); } catch { /* the browser has no storage for this file */ }
    this.redraw?.();
  }
  tip(event, html) {
    const tip = $("tip");
    tip.hidden = !event;
    if (!event) return;
    tip.innerHTML = html;
    const { offsetWidth: w, offsetHeight: h } = tip;
    tip.style.left = `${Math.max(8, Math.min(innerWidth - w - 8, event.clientX + 14))}px`;
    tip.style.top = `${event.clientY + h + 24 > innerHeight ? event.clientY - h - 12 : event.clientY + 16}px`;
  }
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]") || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
      if (event.key === "Escape" && event.target.id === "filter") event.target.blur();
      return;
    }
    const number = +event.key;
    if (event.key === "/") this.search.open();
    else if (event.key === "?") $("keys").showModal();
    else if (event.key === "t") this.theme();
    else if (number >= 1 && number <= TABS.length) location.hash = TABS[number - 1][0];
    else if (event.key === "Enter" && event.target.dataset?.go) this.go(event.target.dataset.go);
    else if (event.target.tagName === "BUTTON" && event.key === "Enter") return;
    else if (!(this.view === "graph" && this.graph.key(event))) return;
    event.preventDefault();
  }
}

class Search {
  constructor(app) {
    this.app = app;
    this.at = 0;
    this.list = [];
    $("search-open").addEventListener("click", () => this.open());
    $("query").addEventListener("input", () => this.find());
    $("query").addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        this.at = Math.max(0, Math.min(this.list.length - 1, this.at + (event.key === "ArrowDown" ? 1 : -1)));
        this.mark();
      } else if (event.key === "Enter") this.take(this.at);
      else return;
      event.preventDefault();
    });
    $("found").addEventListener("click", (event) => { const row = event.target.closest("[data-number]"); if (row) this.take(+row.dataset.number); });
    $("found").addEventListener("pointermove", (event) => {
      const row = event.target.closest("[data-number]");
      if (row && +row.dataset.number !== this.at) { this.at = +row.dataset.number; this.mark(false); }
    });
  }
  open() {
    $("palette").showModal();
    $("query").select();
    this.find();
  }
  /** Search index: operator, module, line, and names and types of tensors of each node. */
  index() {
    const program = this.app.program;
    if (this.of === program) return this.entries;
    this.of = program;
    this.entries = [...program.byId.values()].filter((it) => it.parent).map((item) => {
      const node = item.node;
      const names = node ? [...node.in, ...node.out].map((it) => program.value(it).name).filter(Boolean) : [];
      const about = [node && !isGroup(item) ? node.path : item.path !== item.label ? item.path : "", item.type || "", node && !isGroup(item) ? program.lineText(node) : ""].filter(Boolean);
      const extra = node ? `${node.name} ${node.shape} ${names.join(" ")} #${node.at ?? ""}` : "";
      return { item, label: item.what ? `${item.label} ${item.what}` : item.label, about: about.join(" · "), text: `${item.label} ${about.join(" ")} ${extra}`.toLowerCase() };
    });
    return this.entries;
  }
  find() {
    const words = $("query").value.toLowerCase().split(/\s+/).filter(Boolean);
    const entries = this.index();
    const score = (it) => {
      const label = it.label.toLowerCase();
      let points = isGroup(it.item) ? .5 : 0;
      for (const word of words) points += label === word ? 4 : label.startsWith(word) ? 3 : label.includes(word) ? 2 : it.about.toLowerCase().includes(word) ? 1 : 0;
      return points;
    };
    const all = words.length ? entries.filter((it) => words.every((word) => it.text.includes(word))) : entries.filter((it) => isGroup(it.item));
    const ranked = all.map((it, i) => [score(it), i, it]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    this.list = ranked.slice(0, 60).map(([, , it]) => it);
    this.at = 0;
    const program = this.app.program;
    const marked = (text) => {
      const low = text.toLowerCase();
      const word = words.find((it) => low.includes(it));
      if (!word) return escape(text);
      const i = low.indexOf(word);
      return `${escape(text.slice(0, i))}<mark>${escape(text.slice(i, i + word.length))}</mark>${escape(text.slice(i + word.length))}`;
    };
    $("found").innerHTML = this.list.map((it, i) => `<li role="option" id="found-${i}" data-number="${i}" aria-selected="false"><i class="dot" style="--c:var(--${it.item.family})"></i><span style="min-width:0"><b>${marked(it.label)}</b><small>${marked(it.about) || "&nbsp;"}</small></span><span class="end">${program.profiled && it.item.time ? seconds(it.item.time) : isGroup(it.item) ? plural(it.item.count || it.item.kids.length, "node") : it.item.node?.at !== undefined ? `#${it.item.node.at}` : ""}</span></li>`).join("") || `<li class="none">Nothing is called “${escape($("query").value)}”.</li>`;
    $("found").scrollTop = 0;
    this.mark(false);
  }
  mark(scroll = true) {
    $("found").querySelectorAll("[data-number]").forEach((it, i) => {
      it.setAttribute("aria-selected", String(i === this.at));
      if (i === this.at && scroll) it.scrollIntoView({ block: "nearest" });
    });
    $("query").setAttribute("aria-activedescendant", this.list.length ? `found-${this.at}` : "");
  }
  take(number) {
    const found = this.list[number];
    if (!found) return;
    $("palette").close();
    this.app.go(found.item.id);
  }
}

window.report = new App();
