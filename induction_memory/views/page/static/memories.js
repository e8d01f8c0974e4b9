// The memories as score matrices v_j^T W u_i: tokens labelled, ideal pairs boxed, sorted by token, frequency or birth.
// Columns are inputs, rows outputs, as in `views/memory_maps.py`. The rows of a table are the side that recall fixes: for
// W_O2 and W_F the inputs, so these tables are turned when they are drawn.

import { variableOf } from "./colour.js";
import { slice } from "./data.js";
import { digitsOf, el, number } from "./dom.js";
import { HeatMap, paint } from "./heatmap.js";
import { Panel } from "./panel.js";

const FORMULA = {
  W_K1: ["p", "ₜᵀ W_K1 p", "ₛ: rows are query positions t, columns key positions s; it should find t − 1"],
  W_K2: ["w_E(k)ᵀ W_K2 Φ₁ w_E(k′)", "", ": rows are queries k, columns keys k′ as the previous-token head writes them"],
  W_O2: ["w_U(j)ᵀ W_O2 W_V2 w_E(k)", "", ": rows are outputs j, columns attended tokens k"],
  W_F: ["w_U(j)ᵀ W_F w_E(k)", "", ": rows are next tokens j, columns tokens k; boxed where the bigram is likely"],
};
const AXES = { W_K1: ["query", "key"], W_K2: ["query", "key"], W_O2: ["attended", "output"], W_F: ["token", "next"] };

/** Where the colours end: the absolute score that 4 in 1,000 exceed at the last step. */
export function strongest(array) {
  const last = slice(array, array.shape[0] - 1).map(Math.abs).sort();
  return last[Math.floor(0.996 * (last.length - 1))] || 1;
}

export class MemoryPanel {
  constructor(page, run, name) {
    Object.assign(this, { page, run, name });
    this.tables = run.meta.memories.filter((memory) => memory.memory === name);
    this.which = 0;
    this.tops = {};
    const tools = [];
    if (this.tables.length > 1) {
      const choose = el("select", { "aria-label": `Head of ${name}` }, ...this.tables.map((t, i) => el("option", { value: i }, t.head)));
      choose.addEventListener("change", () => {
        this.which = Number(choose.value);
        this.framed = null;
        page.redraw();
      });
      tools.push(choose);
    }
    this.panel = new Panel({ id: `${name.toLowerCase().replace("_", "-")}-${run.number}`, title: name, caption: FORMULA[name].join(""), of: page.nameOf(run), make: () => this.exported(), tools });
    this.panel.node.classList.add("memory", variableOf(name).slice(2));
    this.map = new HeatMap({
      label: name,
      onhover: (cell) => page.hover(cell ? { run: run.number, memory: name, ...this.original(cell) } : null),
      onclick: (cell) => page.choose(run, this.table, this.original(cell)),
    });
    this.scale = el("div", { class: "scale" }, el("span", {}), el("i", {}), el("span", {}));
    this.readout = el("p", { class: "readout" });
    this.erase = el("button", { type: "button", class: "erase", hidden: true, onclick: () => page.erase(run, this.table, this.chosen) }, "Erase");
    this.panel.body.append(this.map.node, this.scale, el("div", { class: "under" }, this.readout, this.erase));
    this.node = this.panel.node;
  }

  get table() {
    return this.tables[this.which];
  }

  /** Whether the table's rows are the columns of the map. */
  get turned() {
    return this.table.of_outputs;
  }

  /** The table's own row and column of a cell as drawn, and the token or position it speaks of. */
  original(cell) {
    const [i, j] = this.turned ? [cell.column, cell.row] : [cell.row, cell.column];
    const row = this.rowOrder ? this.rowOrder[i] : i;
    const column = this.columnOrder ? this.columnOrder[j] : j;
    return this.table.positions ? { row, column, position: row + this.table.first } : { row, column, token: row, other: column };
  }

  order(sort) {
    const { rows, births, positions } = this.table;
    const frequency = this.run.meta.frequency;
    const by = sort === "frequency" && frequency && !positions ? (i) => -frequency[i] : sort === "birth" && births ? (i) => births[i] ?? Infinity : null;
    if (!by || rows !== this.table.columns) return [null, null];
    const order = Array.from({ length: rows }, (_, i) => i).sort((a, b) => by(a) - by(b) || a - b);
    return [order, order];
  }

  update(state, view) {
    const { rows, columns } = this.table;
    const array = this.run.arrays[this.table.array];
    const high = (this.tops[this.which] ??= strongest(array));
    this.values = this.run.table(this.table, view);
    const live = view.erased.length > 0;
    const key = `${this.which} ${state.sort}`;
    if (this.framed !== key) {
      this.framed = key;
      [this.rowOrder, this.columnOrder] = this.order(state.sort);
      this.frame();
    }
    const lut = this.page.palette.signed(this.name);
    paint(this.map.canvas, this.values, rows, columns, { lut, low: -high, high, rowOrder: this.rowOrder, columnOrder: this.columnOrder, turned: this.turned });
    this.map.describe(`${this.name} ${this.table.head} at step ${view.step}: ${this.turned ? columns : rows} by ${this.turned ? rows : columns} scores; the table has the numbers.`);
    const [low, , top] = this.scale.children;
    [low.textContent, top.textContent] = [`≤ ${number(-high, 1)}`, `≥ ${number(high, 1)}`];
    this.digits = live ? 2 : digitsOf(this.table.quantum);
    this.panel.refreshTable();
    this.point(state, view);
  }

  frame() {
    const { rows, columns, first, positions, of_outputs } = this.table;
    const label = (i) => (positions ? String(i + 1) : this.run.name(i));
    const columnLabel = (j) => (of_outputs ? this.run.outputName(j) : label(j));
    const place = (order, n) => {
      const at = new Array(n);
      (order ?? Array.from({ length: n }, (_, i) => i)).forEach((i, drawn) => (at[i] = drawn));
      return at;
    };
    const [atRow, atColumn] = [place(this.rowOrder, rows), place(this.columnOrder, columns)];
    [this.atRow, this.atColumn] = [atRow, atColumn];
    const pairs = this.name === "W_F" ? this.run.meta.likely_bigrams : this.table.pairs;
    const rowLabels = Array.from({ length: rows }, (_, i) => label((this.rowOrder?.[i] ?? i) + first));
    const columnLabels = Array.from({ length: columns }, (_, j) => columnLabel(this.columnOrder?.[j] ?? j));
    const sides = this.turned ? { rows: columns, columns: rows, rowLabels: columnLabels, columnLabels: rowLabels } : { rows, columns, rowLabels, columnLabels };
    const ideal = pairs.map(([i, j]) => (this.turned ? [atColumn[j], atRow[i]] : [atRow[i], atColumn[j]]));
    this.map.frame({ ...sides, every: positions ? 8 : 1, boxes: { ideal } });
  }

  point(state, view) {
    const hover = this.page.hovered;
    const here = hover?.memory === this.name && hover.run === this.run.number ? hover : null;
    const chosen = this.page.chosenIn(this.run, this.table);
    this.chosen = here ?? chosen;
    const { token, query } = this.page.pointed(this.run, view);
    if (this.table.positions) {
      const position = here?.position ?? hover?.position ?? query;
      const row = position - this.table.first;
      this.map.mark(row >= 0 && row < this.table.rows ? this.atRow[row] : null, here ? this.atColumn[here.column] : null);
    } else {
      const row = here?.row ?? token;
      const column = here?.column ?? token;
      const [i, j] = [this.atRow[row], this.atColumn[column]];
      this.map.mark(...(this.turned ? [j, i] : [i, j]));
    }
    const cell = this.chosen ?? this.usual(token, query);
    this.erase.hidden = !(this.run.model && chosen) || here !== null;
    this.readout.replaceChildren(cell ? this.words(cell) : "");
  }

  /** The cell that the pointed token or position should have. */
  usual(token, query) {
    if (this.table.positions) {
      const row = query - this.table.first;
      const partner = this.partner(row);
      return partner === undefined ? null : { row, column: partner };
    }
    const partner = this.name === "W_F" ? undefined : this.partner(token);
    return partner === undefined ? null : { row: token, column: partner };
  }

  /** The column that a row should be stored with, if there is one. */
  partner(row) {
    return this.table.pairs?.find(([i]) => i === row)?.[1];
  }

  words({ row, column }) {
    const { columns, births, positions, first } = this.table;
    const [a, b] = AXES[this.name];
    const value = number(this.values[row * columns + column], this.digits);
    const target = column === this.partner(row);
    const born = !births || !target ? "" : births[row] === null ? "; not recalled at the end" : `; recalled from step ${births[row]} on`;
    const name = (i) => (positions ? String(i + 1) : `“${this.run.name(i)}”`);
    const other = this.table.of_outputs ? `“${this.run.outputName(column)}”` : name(column);
    return `${a} ${name(row + first)}, ${b} ${other}: ${value}${born}`;
  }

  exported() {
    const view = this.run.view(this.page.state);
    const { rows, columns, positions, first } = this.table;
    const label = (i) => (positions ? i + 1 : this.run.meta.vocabulary[i]);
    const keyed = AXES[this.name][0] === "query"; // the inputs of W_K are the keys, its outputs the queries
    const sides = (i, j) => (keyed ? [label(j), label(i + first)] : [label(i + first), this.table.of_outputs ? this.run.meta.outputs[j] : label(j)]);
    const table = [["run", "step", "memory", "head", "input", "output", "score"]];
    for (let i = 0; i < rows; i++)
      for (let j = 0; j < columns; j++) table.push([this.run.meta.name, view.step, this.name, this.table.head, ...sides(i, j), Number(this.values[i * columns + j].toPrecision(6))]);
    return {
      name: `${this.run.meta.name}-${this.name}-step-${view.step}`,
      drawings: [{ ...this.map.drawing(), title: `${this.run.meta.name}: ${this.name} ${this.table.head} at step ${view.step}` }],
      rows: table,
      python: this.page.snippet(this.run, this.name === "W_F" ? "memory_W_F" : "memory", view, { memory: this.name, head: this.table.head }),
    };
  }
}
