// The page: one state, panels that are functions of it.

import { AttentionPanel } from "./attention.js";
import { CausesPanel } from "./causes.js";
import { Palette } from "./colour.js";
import { CurvePanel } from "./curves.js";
import { unpack } from "./data.js";
import { el } from "./dom.js";
import { MemoryPanel } from "./memories.js";
import { printed } from "./print.js";
import { nearest, Run } from "./run.js";
import { SequencePanel } from "./sequence.js";
import { fromHash, Store } from "./state.js";
import { Transport } from "./transport.js";
import { WhyPanel } from "./why.js";

const KEYS = [
  ["← →", "one checkpoint back or on"],
  ["Shift + ← →", "five checkpoints"],
  ["Home, End", "first, last"],
  ["Space", "play or pause"],
  ["Esc", "unpin the query"],
  ["?", "this help"],
];
const WORDS = [
  ["born", "the step at which the recall of a memory crosses the middle between its early and its late level"],
  ["share", "Shapley value: what a head adds to the effect of all heads, averaged over the orders of switching them on"],
  ["elsewhere", "positions outside the main group; for sequences with triggers, tokens that are no triggers"],
  ["role", "what a head does by the votes of weights, attention and ablations; in brackets, how far they agree"],
];

class Page {
  constructor(meta, arrays) {
    this.runs = meta.runs.map((run, i) => new Run(run, arrays, i));
    this.hovered = null;
    this.chosen = null;
    this.palette = new Palette();
    const last = Math.max(...this.runs.flatMap((run) => run.meta.steps));
    const head = this.runs[0].meta.heads.at(-1);
    const defaults = { at: last, align: "step", seq: 0, query: null, head, sort: "token", measure: "loss", scale: "linear", text: "", off: [], erased: [], theme: "auto" };
    this.store = new Store(defaults, location.hash);
    this.applyTheme();
    this.transport = new Transport(this);
    this.articles = this.runs.map((run) => this.article(run));
    document.querySelector("#transport").append(this.transport.node);
    document.querySelector("#runs").append(...this.articles.map((article) => article.node));
    document.body.classList.toggle("several", this.runs.length > 1);
    this.store.listen((state, changed) => this.update(changed));
    this.listen();
    this.update(new Set(Object.keys(defaults)));
  }

  get state() {
    return this.store.state;
  }

  article(run) {
    const names = [...new Set(run.meta.memories.map((memory) => memory.memory))];
    const groups = [...new Set(run.meta.curves.map((curve) => curve.group))];
    const panels = {
      sequence: new SequencePanel(this, run),
      attention: new AttentionPanel(this, run),
      memories: names.map((name) => new MemoryPanel(this, run, name)),
      curves: groups.map((group) => new CurvePanel(this, run, group)),
      causes: new CausesPanel(this, run),
      why: run.model ? [new WhyPanel(this, run)] : [],
    };
    const choice = (key, label, options) => {
      const node = el("select", { "aria-label": label, onchange: () => this.store.set({ [key]: node.value }) }, ...Object.entries(options).map(([value, text]) => el("option", { value }, text)));
      return { node, update: (state) => (node.value = state[key]) };
    };
    const scale = choice("scale", "Scale of the steps", { linear: "linear steps", log: "logarithmic steps" });
    const sort = choice("sort", "Order of the rows and columns", { token: "in the order of tokens", ...(run.meta.frequency ? { frequency: "most frequent first" } : {}), birth: "first born first" });
    const heading = el("h2", { id: `run-${run.number}` }, run.meta.name);
    const block = (name, ...nodes) => el("div", { class: `block ${name}` }, ...nodes);
    const skipped = Object.entries(run.meta.skipped).map(([name, reason]) => `${name}: ${reason}`);
    const left = [...run.meta.notes.map((note) => `To keep the file small: ${note}.`), ...skipped.map((text) => `Not shown: ${text}.`)];
    const node = el(
      "article",
      { class: "run", "aria-labelledby": `run-${run.number}` },
      el("div", { class: "block about" }, heading, el("p", {}, run.meta.about), ...run.meta.files.map((text) => el("p", { class: "note" }, text))),
      block("first", el("div", { class: "stack" }, panels.sequence.node, panels.causes.shares.node), panels.attention.node),
      block("why", ...panels.why.map((panel) => panel.node)),
      this.heading("Over training", scale),
      block("curves", ...panels.curves.map((panel) => panel.node)),
      ...(names.length ? [this.heading("Memories", sort), block("memories", ...panels.memories.map((panel) => panel.node))] : []),
      block("causes", panels.causes.node),
      block("notes", ...left.map((text) => el("p", { class: "note" }, text))),
    );
    const all = [scale, sort, panels.sequence, panels.attention, ...panels.why, ...panels.curves, ...panels.memories, panels.causes];
    return { run, node, all, pointers: [panels.sequence, panels.attention, ...panels.why, ...panels.memories] };
  }

  /** The run's name where there are several, so that no two parts of the page have the same name. */
  nameOf(run) {
    return this.runs.length > 1 ? `${run.meta.name} (${run.number + 1})` : "";
  }

  /** A line between blocks: what comes, and how it is shown. */
  heading(text, choice) {
    return el("div", { class: `between ${text.toLowerCase().replaceAll(" ", "-")}-heading` }, el("h2", {}, text), choice.node);
  }

  update(changed) {
    if (changed.has("theme")) this.applyTheme();
    if (changed.has("align")) this.transport.renew();
    for (const { run, all } of this.articles) {
      const view = run.view(this.state);
      for (const panel of all) panel.update(this.state, view, changed);
    }
    this.transport.update(this.state);
    if (changed.has("at")) this.tell?.(this.runs[0].view(this.state).step);
  }

  redraw() {
    this.update(new Set());
  }

  /** What the pointer is over: {run, query, key, token, memory, position}; marked in every panel. */
  hover(target) {
    if (target === null && this.hovered === null) return;
    this.hovered = target;
    for (const { run, pointers } of this.articles) {
      const view = run.view(this.state);
      for (const panel of pointers) panel.point(this.state, view);
    }
  }

  /** Query, key and token that are pointed at: hovered, else pinned, else the usual one. */
  pointed(run, view) {
    const { tokens } = view.sequence;
    const pinned = this.state.query !== null && this.state.query < tokens.length ? this.state.query : null;
    const usual = pinned ?? run.usualQuery(view);
    const hover = this.hovered;
    const place = hover?.query ?? (hover?.position ?? (hover?.token === undefined ? undefined : lastIndex(tokens, hover.token)));
    const query = place !== undefined && place < tokens.length ? place : usual;
    return { query, key: hover?.key ?? null, token: hover?.token ?? tokens[query] };
  }

  pin(query) {
    this.store.set({ query: this.state.query === query ? null : query });
  }

  focusOf(run) {
    const wanted = run.meta.heads.indexOf(this.state.head);
    return wanted < 0 ? run.meta.heads.length - 1 : wanted;
  }

  rolesAt(run, step) {
    const { steps, heads, roles } = run.meta.causes;
    const at = nearest(steps, step);
    return Object.fromEntries(heads.map((head, i) => [head, roles[at][i] === "none" ? "" : roles[at][i]]));
  }

  /** Choose a cell of a memory, to read it or to erase it. */
  choose(run, table, cell) {
    const same = this.chosen && this.chosen.run === run && this.chosen.row === cell.row && this.chosen.column === cell.column && this.chosen.table === table;
    this.chosen = same ? null : { run, table, ...cell };
    this.hovered = null;
    this.redraw();
  }

  chosenIn(run, table) {
    return this.chosen?.run === run && this.chosen.table === table ? this.chosen : null;
  }

  erase(run, table, cell) {
    this.chosen = null;
    const key = `${table.memory}|${table.index}|${cell.row + (table.positions ? table.first : 0)}|${cell.column}`;
    this.store.set({ erased: [...this.state.erased.filter((text) => text !== key), key] });
  }

  pairName(run, memory, { row, column }) {
    const name = (i) => (memory.positions ? String(i + 1) : run.name(i));
    const keys = memory.memory.startsWith("W_K");
    return keys ? `${name(column)}→${name(row)}` : `${name(row)}→${name(column)}`;
  }

  toggle(part) {
    const { off } = this.state;
    this.store.set({ off: off.includes(part) ? off.filter((name) => name !== part) : [...off, part] });
  }

  /** Show the stored step of a run that is next to a step. */
  goto(run, step) {
    const positions = run.positions(this.state.align);
    this.store.set({ at: positions[nearest(run.meta.steps, step)] });
  }

  realign(align) {
    const run = this.runs[0];
    const index = run.indexAt(this.state.at, this.state.align);
    this.store.set({ align, at: run.positions(align)[index] });
  }

  snippet(run, name, view, more = {}) {
    const { query } = this.pointed(run, view);
    const values = { step: view.step, row: run.meta.sequences[view.row ?? 0].row, text: JSON.stringify(this.state.text), query, ...more };
    return run.meta.snippets[name].replace(/\{(\w+)\}/g, (all, key) => values[key] ?? all);
  }

  help() {
    const dialog = document.querySelector("#help");
    if (dialog.open) dialog.close();
    else dialog.showModal();
  }

  applyTheme() {
    document.documentElement.dataset.theme = this.state.theme;
    this.palette.refresh();
  }

  cycleTheme() {
    const order = ["auto", "light", "dark"];
    this.store.set({ theme: order[(order.indexOf(this.state.theme) + 1) % 3] });
  }

  listen() {
    addEventListener("keydown", (event) => this.transport.key(event));
    addEventListener("hashchange", () => this.store.set(fromHash(location.hash, this.store.defaults)));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.palette.refresh();
      this.redraw();
    });
    const theme = document.querySelector("#theme");
    theme.addEventListener("click", () => this.cycleTheme());
    document.querySelector("#help-button").addEventListener("click", () => this.help());
    document.querySelector("#help-close").addEventListener("click", () => this.help());
    document.querySelector("#help dl").append(...[...WORDS, ...KEYS].flatMap(([key, text]) => [el("dt", {}, key), el("dd", {}, text)]));
    const paper = document.querySelector("#paper");
    const toPaper = () => {
      const { theme: now } = document.documentElement.dataset;
      document.documentElement.dataset.theme = "light";
      this.palette.refresh();
      paper.replaceChildren(...this.runs.map((run) => printed(this, run)));
      document.documentElement.dataset.theme = now;
      this.palette.refresh();
    };
    addEventListener("beforeprint", toPaper);
    matchMedia("print").addEventListener("change", (event) => event.matches && toPaper());
    addEventListener("message", (event) => this.message(event));
    if (parent !== window) {
      this.tell = (step) => parent.postMessage({ kind: "induction-memory step", step }, "*");
      parent.postMessage({ kind: "induction-memory ready" }, "*");
    }
  }

  /** A notebook's kernel asks for a step; a frame asks for the height it needs. */
  message(event) {
    if (event.source !== parent || event.data?.kind !== "induction-memory set step") return;
    if (Number.isFinite(event.data.step)) this.goto(this.runs[0], event.data.step);
  }
}

/** The last place of a value in a list; undefined if it is not there. */
function lastIndex(list, value) {
  const at = list.lastIndexOf(value);
  return at < 0 ? undefined : at;
}

unpack(document.querySelector("#data").textContent.trim()).then(({ meta, arrays }) => {
  window.inductionMemory = new Page(meta, arrays);
  document.documentElement.dataset.ready = "true";
});
