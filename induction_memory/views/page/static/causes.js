// What is lost without each part at a step, and over training; Shapley shares and roles of heads.

import { variableOf } from "./colour.js";
import { el, number, percent, svg } from "./dom.js";
import { Panel } from "./panel.js";
import { nearest } from "./run.js";

const [ROW, LABEL] = [24, 52];
const FLOOR = 0.1; // the smallest end of the axis, so that noise before training does not fill it

/** Loss that is added, or accuracy that is lost, without a part: [causal step][part]. */
export function lost(causes, measure) {
  const sign = measure.endsWith("loss") ? 1 : -1;
  return causes.without[measure].map((row, s) => row.map((value) => (value === null || causes.intact[measure][s] === null ? null : sign * (value - causes.intact[measure][s]))));
}

/** The colour class of a part: its memory's, or for a head the class of the memory that drives it. */
export function classOf(part) {
  const layer = /^L(\d+)H/.exec(part);
  if (layer) return variableOf(layer[1] === "1" ? "W_K1" : "W_K2").slice(2);
  return variableOf(part).slice(2);
}

/** The width at which a chart is drawn: its own on the page, so that its text keeps its size. */
function widthOf(chart) {
  return chart.clientWidth || 460;
}

function sparkWidth(width) {
  return Math.min(96, 0.18 * width);
}

export class CausesPanel {
  constructor(page, run) {
    Object.assign(this, { page, run, causes: run.meta.causes });
    this.select = el("select", { "aria-label": "What is measured", onchange: () => page.store.set({ measure: this.select.value }) }, ...run.meta.causes.kinds.map((kind) => el("option", { value: kind }, kind === "loss" ? "loss added" : "accuracy lost")));
    this.panel = new Panel({ id: `causes-${run.number}`, title: "Causes", caption: "What is lost when a part is replaced by its mean: over training, and at this step with its standard error.", of: page.nameOf(run), make: () => this.exported(), tools: [this.select] });
    this.charts = Object.entries(run.meta.causes.groups).map(([kind, title]) => ({ kind, title, chart: svg("svg", { class: "parts", role: "img", "aria-label": `${title}: what is lost without each part; the table has the numbers.` }) }));
    this.when = el("p", { class: "readout" });
    this.panel.body.append(el("div", { class: "pair" }, ...this.charts.map(({ title, chart }) => el("figure", {}, el("figcaption", {}, title), chart))), this.when);
    this.shares = new Panel({ id: `shares-${run.number}`, title: "Heads", caption: `Shares of the heads in their effect ${run.meta.words.main} (Shapley values), and the role that weights, attention and ablations agree on.`, of: page.nameOf(run), make: () => this.exportedShares() });
    this.bars = svg("svg", { class: "parts", role: "img", "aria-label": "Shapley shares and roles of the heads; the table has the numbers." });
    this.whenShares = el("p", { class: "readout" });
    this.shares.body.append(this.bars, this.whenShares);
    this.shares.node.hidden = this.causes.heads.length === 0;
    this.node = this.panel.node;
    new ResizeObserver(() => this.last && this.update(...this.last)).observe(this.bars);
  }

  update(state, view) {
    this.last = [state, view];
    const measure = this.causes.kinds.includes(state.measure) ? state.measure : this.causes.kinds[0];
    this.select.value = measure;
    const at = nearest(this.causes.steps, view.step);
    const wanted = `${at} ${measure} ${this.bars.clientWidth} ${this.charts[0].chart.clientWidth}`;
    if (this.drawn !== wanted) {
      this.drawn = wanted;
      for (const { kind, chart } of this.charts) this.draw(chart, at, `${kind}_${measure}`);
      this.drawShares(at);
      const note = `Measured at step ${this.causes.steps[at]}, on 16 sequences.`;
      this.when.textContent = note;
      this.whenShares.textContent = note;
    }
    this.at = at;
    this.panel.refreshTable();
    this.shares.refreshTable();
  }

  draw(chart, at, measure) {
    const grid = lost(this.causes, measure);
    const errors = this.causes.error[measure];
    const ends = grid.flatMap((row, s) => row.flatMap((value, i) => [(value ?? 0) + (errors[s][i] ?? 0), (value ?? 0) - (errors[s][i] ?? 0)]));
    const [low, top] = [Math.min(0, ...ends), Math.max(FLOOR, ...ends)];
    const width = widthOf(chart);
    const x0 = LABEL + sparkWidth(width) + 24;
    const x = (value) => x0 + ((value - low) / (top - low)) * (width - x0 - 62);
    const height = (value) => 18 - (14 * ((value ?? 0) - low)) / (top - low);
    const rows = this.causes.parts.flatMap((part, i) => {
      const [y, value, error, kind] = [i * ROW, grid[at][i] ?? 0, errors[at][i] ?? 0, classOf(part)];
      const line = grid.map((row, s) => `${s ? "L" : "M"}${this.sparkX(s, width).toFixed(1)} ${(y + height(row[i])).toFixed(1)}`).join("");
      return [
        svg("text", { x: LABEL - 4, y: y + 16, "text-anchor": "end", class: `part ${kind}` }, part),
        svg("path", { class: `spark ${kind}`, d: line }),
        svg("circle", { class: `spark ${kind}`, r: 2.5, cx: this.sparkX(at, width), cy: y + height(value) }),
        svg("rect", { class: `bar ${kind}`, x: Math.min(x(0), x(value)), y: y + 5, width: Math.max(1, Math.abs(x(value) - x(0))), height: 14, rx: 1.5 }),
        svg("path", { class: "whisker", d: `M${x(value - error)} ${y + 12}H${x(value + error)}` }),
        svg("text", { x: Math.max(x(0), x(value + error)) + 6, y: y + 16, class: "value" }, number(grid[at][i], 3)),
      ];
    });
    chart.setAttribute("viewBox", `0 0 ${width} ${this.causes.parts.length * ROW}`);
    chart.replaceChildren(...rows);
  }

  sparkX(s, width) {
    return LABEL + 6 + (sparkWidth(width) * s) / Math.max(1, this.causes.steps.length - 1);
  }

  drawShares(at) {
    const { heads, shares, roles, agreement } = this.causes;
    const all = widthOf(this.bars);
    const longest = Math.min(150, 0.25 * all);
    const rows = heads.flatMap((head, i) => {
      const [y, share, kind] = [i * ROW, shares[at][i], classOf(head)];
      const width = Math.max(1, Math.min(1, Math.max(0, share ?? 0)) * longest);
      return [
        svg("text", { x: LABEL - 4, y: y + 16, "text-anchor": "end", class: `part ${kind}` }, head),
        svg("rect", { class: `bar ${kind}`, x: LABEL + 6, y: y + 5, width, height: 14, rx: 1.5 }),
        svg("text", { x: LABEL + 12 + width, y: y + 16, class: "value" }, share === null ? "–" : percent(share)),
        svg("text", { x: LABEL + longest + 68, y: y + 16, class: "role" }, `${roles[at][i]} (${number(agreement[at][i], 2)})`),
      ];
    });
    this.bars.setAttribute("viewBox", `0 0 ${all} ${heads.length * ROW}`);
    this.bars.replaceChildren(...rows);
  }

  drawing(chart, rows, title) {
    return [{ node: chart.cloneNode(true), source: chart, width: widthOf(chart), height: rows * ROW, title: `${this.run.meta.name}: ${title} at step ${this.causes.steps[this.at]}` }];
  }

  exported() {
    const { causes, run } = this;
    const rows = [["run", "step", "component", ...Object.keys(causes.without).flatMap((m) => [m, `${m}_se`])]];
    causes.steps.forEach((step, s) => {
      rows.push([run.meta.name, step, "none", ...Object.keys(causes.without).flatMap((m) => [causes.intact[m][s], ""])]);
      causes.parts.forEach((part, i) => rows.push([run.meta.name, step, part, ...Object.keys(causes.without).flatMap((m) => [causes.without[m][s][i], causes.error[m][s][i]])]));
    });
    const view = run.view(this.page.state);
    return { name: `${run.meta.name}-causes`, drawings: this.charts.flatMap(({ chart, title }) => this.drawing(chart, causes.parts.length, `${this.select.selectedOptions[0].textContent}, ${title.toLowerCase()},`)), rows, python: this.page.snippet(run, "causes", { ...view, step: causes.steps[this.at] }) };
  }

  exportedShares() {
    const { causes, run } = this;
    const rows = [["run", "step", "head", "share", "shapley", "shapley_se", "role", "agreement"]];
    causes.steps.forEach((step, s) => causes.heads.forEach((head, i) => rows.push([run.meta.name, step, head, causes.shares[s][i], causes.shapley[s][i], causes.shapley_error[s][i], causes.roles[s][i], causes.agreement[s][i]])));
    const view = run.view(this.page.state);
    return { name: `${run.meta.name}-heads`, drawings: this.drawing(this.bars, causes.heads.length, "shares and roles"), rows, python: this.page.snippet(run, "shares", { ...view, step: causes.steps[this.at] }) };
  }
}
