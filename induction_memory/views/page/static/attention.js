// Attention of every head: thumbnails by layer, one head in focus; hover a query row, click to pin it.

import { el, number, percent } from "./dom.js";
import { HeatMap, paint } from "./heatmap.js";
import { Panel } from "./panel.js";

const layerOf = (head) => Number(/^L(\d+)/.exec(head)[1]);

export class AttentionPanel {
  constructor(page, run) {
    Object.assign(this, { page, run });
    this.panel = new Panel({
      id: `attention-${run.number}`,
      title: "Attention",
      caption: ["Row: query. Column: key. ", ...Object.entries(run.meta.words.boxes).flatMap(([kind, text], i) => [i ? "; " : "", el("span", { class: `key ${kind}` }), ` ${text}`]), "."],
      of: page.nameOf(run), make: () => this.exported(),
    });
    const layers = new Map();
    this.thumbs = run.meta.heads.map((head, i) => {
      const canvas = el("canvas", { class: "cells", "aria-hidden": "true" });
      const role = el("span", { class: "role" });
      const button = el("button", { type: "button", class: "thumb", onclick: () => page.store.set({ head }) }, canvas, el("span", {}, head), role);
      const layer = layerOf(head);
      if (!layers.has(layer)) layers.set(layer, el("div", { class: "layer", role: "group", "aria-label": `Layer ${layer}` }, el("span", { class: "name" }, `Layer ${layer}`)));
      layers.get(layer).append(button);
      return { head, i, canvas, button, role };
    });
    this.map = new HeatMap({
      label: "attention",
      onhover: (cell) => page.hover(cell ? { run: run.number, query: cell.row, key: cell.column } : null),
      onclick: (cell) => page.pin(cell.row),
    });
    this.readout = el("p", { class: "readout" });
    this.panel.body.append(el("div", { class: layers.size === run.meta.heads.length ? "thumbs single" : "thumbs" }, ...layers.values()), el("div", { class: "focus" }, this.map.node, this.readout));
    this.node = this.panel.node;
  }

  get focus() {
    const wanted = this.run.meta.heads.indexOf(this.page.state.head);
    return wanted < 0 ? this.run.meta.heads.length - 1 : wanted;
  }

  update(state, view) {
    const n = view.sequence.tokens.length;
    const { palette } = this.page;
    const roles = this.page.rolesAt(this.run, view.step);
    const style = (head) => ({ lut: palette.sequential("attention"), low: 0, high: 1, causal: true, beyond: palette.beyond });
    for (const { head, i, canvas, button, role } of this.thumbs) {
      paint(canvas, view.map(i), n, n, style(head));
      const off = view.off.includes(head);
      button.setAttribute("aria-pressed", String(i === this.focus));
      button.classList.toggle("off", off);
      role.textContent = off ? "off" : (roles[head] ?? "");
    }
    const head = this.run.meta.heads[this.focus];
    paint(this.map.canvas, view.map(this.focus), n, n, style(head));
    this.map.describe(`Attention of ${head} at step ${view.step} over ${n} tokens; the table has the numbers.`);
    if (this.framed !== view.sequence) {
      this.framed = view.sequence;
      const labels = view.sequence.tokens.map((id) => this.run.name(id));
      const classes = labels.map((_, t) => kindOf(view.sequence, t));
      this.map.frame({ rows: n, columns: n, rowLabels: labels, columnLabels: labels, classes, boxes: { other: view.sequence.other, right: view.sequence.right } });
    }
    this.panel.refreshTable();
    this.point(state, view);
  }

  /** Marks and words for the query that is hovered or pinned. */
  point(state, view) {
    const { query, key } = this.page.pointed(this.run, view);
    this.map.mark(query, key);
    const name = (t) => `“${this.run.name(view.sequence.tokens[t])}” (${t + 1})`;
    const n = view.sequence.tokens.length;
    const row = view.map(this.focus).subarray(query * n, query * n + query + 1);
    const most = row.reduce((best, a, s) => (a > row[best] ? s : best), 0);
    const head = this.run.meta.heads[this.focus];
    const parts = [`${head}, step ${view.step}: ${name(query)} attends most to ${name(most)}, ${percent(row[most])}.`];
    if (key !== null && key <= query && key !== most) parts.push(` To ${name(key)}: ${percent(row[key])}.`);
    this.readout.replaceChildren(...parts);
  }

  exported() {
    const view = this.run.view(this.page.state);
    const n = view.sequence.tokens.length;
    const rows = [["run", "step", "head", "query", "query_token", "key", "key_token", "attention"]];
    const head = this.run.meta.heads[this.focus];
    const map = view.map(this.focus);
    const token = (t) => this.run.meta.vocabulary[view.sequence.tokens[t]];
    for (let t = 0; t < n; t++) for (let s = 0; s <= t; s++) rows.push([this.run.meta.name, view.step, head, t + 1, token(t), s + 1, token(s), Number(number(map[t * n + s], 5).replace("−", "-"))]);
    return {
      name: `${this.run.meta.name}-attention-${head}-step-${view.step}`,
      drawings: [{ ...this.map.drawing(), title: `${this.run.meta.name}: attention of ${head} at step ${view.step}` }],
      rows,
      python: this.page.snippet(this.run, view.row === undefined ? "attention_text" : "attention", view),
    };
  }
}

/** "trigger", "output" or "" for a position of a sequence. */
export function kindOf(sequence, t) {
  return sequence.triggers.includes(t) ? "trigger" : sequence.outputs.includes(t) ? "output" : "";
}
