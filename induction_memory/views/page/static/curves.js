// Curves over training: the cursor is the step, dragging moves the slider, births are marked with their intervals.

import { variableOf } from "./colour.js";
import { el, number, svg } from "./dom.js";
import { Panel } from "./panel.js";
import { nearest } from "./run.js";

const GROUPS = {
  loss: ["Loss", "Mean of −log q(next), in nats, on the training batch of each step."],
  accuracy: ["Accuracy", "Share of next tokens that the model puts first, on the training batch of each step."],
  recall: ["Recall", "Share of pairs that each memory recalls, at the stored steps. Bands: 95 % intervals of the births."],
  previous: ["Previous-token scores", "Mean attention of each head to the previous position, on random tokens repeated once, at the stored steps."],
  induction: ["Induction scores", "Mean attention of each head to the token after the earlier occurrence, on random tokens repeated once, at the stored steps."],
  kl: ["Distance", "KL from each predictor to the model, in nats, at the stored steps; W_F against the bigrams it should hold."],
};
const ASKED = {
  loss: "Mean of −log q(right output), in nats, on the training batch of each step.",
  accuracy: "Share of right outputs that the model puts first, on the training batch of each step.",
};
const MEASURED = {
  loss: "Mean of −log q(next), in nats, on random tokens repeated once, at the stored steps.",
  accuracy: "Share of next tokens that the model puts first, on random tokens repeated once, at the stored steps.",
};
const PREDICTORS = "KL from each predictor of the task to the model, in nats, at the stored steps. Bands: which predictor is the closest. The axis is cut.";
const DASHES = ["", "5 3", "1.5 2.5", "8 3 2 3"];
const FLOOR = 0.5; // the smallest end of an axis, so that noise before training does not fill it
const [LEFT, RIGHT, TOP, BOTTOM, HEIGHT] = [34, 8, 8, 22, 190];

/** Round numbers that cut [low, high] into about n parts. */
export function ticks(low, high, n = 4) {
  const raw = (high - low) / n || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const out = [];
  for (let value = Math.ceil(low / step) * step; value <= high + 1e-9 * step; value += step) out.push(Number(value.toPrecision(12)));
  return out;
}

export class CurvePanel {
  constructor(page, run, group) {
    Object.assign(this, { page, run, group });
    this.curves = styled(run.meta.curves.filter((curve) => curve.group === group));
    const [title, about] = GROUPS[group];
    const caption = group === "kl" && run.meta.phases ? PREDICTORS : !run.meta.recorded ? (MEASURED[group] ?? about) : run.meta.next_token ? about : (ASKED[group] ?? about);
    this.panel = new Panel({ id: `${group}-${run.number}`, title, caption, of: page.nameOf(run), make: () => this.exported() });
    this.panel.node.classList.add("curve");
    this.chart = svg("svg", { class: "chart", role: "img", "aria-label": `${title} over training; the table has the numbers.` });
    this.legend = el("ul", { class: "legend" });
    this.panel.body.append(this.chart, this.legend);
    this.phases = group === "kl" ? (run.meta.phases?.spans ?? []) : [];
    if (this.phases.length) this.panel.body.append(el("p", { class: "readout" }, run.meta.phases.text));
    this.node = this.panel.node;
    let dragging = false;
    const move = (event) => dragging && page.goto(run, this.stepAt(event));
    this.chart.addEventListener("pointerdown", (event) => {
      dragging = true;
      this.chart.setPointerCapture(event.pointerId);
      move(event);
    });
    this.chart.addEventListener("pointermove", move);
    for (const end of ["pointerup", "pointercancel"]) this.chart.addEventListener(end, () => (dragging = false));
    new ResizeObserver(() => this.draw()).observe(this.chart);
    this.listed = this.curves.filter((curve) => curve.leads);
    this.items = this.listed.map((curve) => {
      const value = el("b", {});
      const swatch = svg("svg", { viewBox: "0 0 20 6", "aria-hidden": "true" }, svg("path", { d: "M0 3H20", class: `line ${curve.style}`, "stroke-dasharray": curve.dash }));
      this.legend.append(el("li", { class: curve.style }, swatch, el("span", {}, curve.shown), value));
      return value;
    });
  }

  get x() {
    const [first, last] = this.domain;
    const scale = this.page.state.scale === "log" ? (s) => Math.log1p(s - first) / Math.log1p(last - first || 1) : (s) => (s - first) / (last - first || 1);
    return (step) => LEFT + scale(step) * (this.width - LEFT - RIGHT);
  }

  get domain() {
    const steps = this.curves.flatMap((curve) => [curve.steps[0], curve.steps.at(-1)]);
    return [Math.min(...steps), Math.max(...steps)];
  }

  stepAt(event) {
    const [first, last] = this.domain;
    const t = Math.max(0, Math.min(1, (event.clientX - this.chart.getBoundingClientRect().left - LEFT) / (this.width - LEFT - RIGHT)));
    return this.page.state.scale === "log" ? first + Math.expm1(t * Math.log1p(last - first || 1)) : first + t * (last - first);
  }

  draw() {
    this.width = this.chart.clientWidth;
    if (!this.width || !this.curves.length) return;
    const values = this.curves.flatMap((curve) => curve.values);
    const shares = this.group === "recall" || this.group === "accuracy";
    const top = shares ? 1 : (this.run.meta.caps[this.group] ?? Math.max(FLOOR, ...values));
    const low = Math.min(0, ...values);
    const y = (value) => TOP + (1 - (Math.min(value, top) - low) / (top - low || 1)) * (HEIGHT - TOP - BOTTOM);
    const { x } = this;
    this.y = y;
    const [first, last] = this.domain;
    const grid = svg("g", { class: "grid" });
    for (const value of ticks(low, top, 4)) grid.append(svg("path", { d: `M${LEFT} ${y(value)}H${this.width - RIGHT}` }), svg("text", { x: LEFT - 6, y: y(value) + 3, "text-anchor": "end" }, String(value)));
    const marks = this.page.state.scale === "log" ? [0, 1, 10, 100, 1000, 10000, 100000].filter((s) => s <= last - first).map((s) => s + first) : ticks(first, last, 5);
    for (const step of marks) grid.append(svg("text", { x: x(step), y: HEIGHT - 6, "text-anchor": "middle" }, String(step)));
    const births = svg("g", { class: "births" });
    for (const birth of this.run.meta.births) {
      const memory = variableOf(birth.memory).slice(2);
      if (this.group === "recall") births.append(svg("rect", { class: `band ${memory}`, x: x(birth.change_low), y: TOP, width: Math.max(1, x(birth.change_high) - x(birth.change_low)), height: HEIGHT - TOP - BOTTOM }));
      births.append(svg("path", { class: `birth ${memory}`, d: `M${x(birth.change)} ${TOP}V${HEIGHT - BOTTOM}` }));
    }
    const phases = svg("g", { class: "phases" });
    for (const { predictor, first: from, last: to } of this.phases) {
      const style = this.curves.find((curve) => curve.label === predictor).style;
      phases.append(svg("rect", { class: `phase ${style}`, x: x(from), y: TOP, width: Math.max(1, x(to) - x(from)), height: HEIGHT - TOP - BOTTOM }));
    }
    const lines = svg("g", {});
    for (const curve of [...this.curves].sort((a, b) => a.leads - b.leads)) {
      const d = curve.steps.map((step, i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(curve.values[i]).toFixed(1)}`).join("");
      lines.append(svg("path", { d, class: `line ${curve.style}${curve.leads ? "" : " faint"}`, "stroke-dasharray": curve.dash }));
    }
    this.cursor = svg("path", { class: "cursor" });
    this.dots = svg("g", { class: "dots" }, ...this.listed.map((curve) => svg("circle", { r: 3, class: curve.style })));
    this.chart.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.chart.replaceChildren(grid, phases, births, lines, this.cursor, this.dots);
    this.point();
  }

  update(state, view, changed) {
    if (changed.has("scale")) this.draw();
    this.step = view.step;
    this.point();
  }

  /** The cursor, the dots and the numbers of the present step. */
  point() {
    if (this.step === undefined) return;
    this.listed.forEach((curve, i) => {
      const at = nearest(curve.steps, this.step);
      this.items[i].textContent = number(curve.values[at], 3);
      if (this.cursor) {
        this.dots.children[i].setAttribute("cx", this.x(curve.steps[at]));
        this.dots.children[i].setAttribute("cy", this.y(curve.values[at]));
      }
    });
    this.cursor?.setAttribute("d", `M${this.x(this.step)} ${TOP}V${HEIGHT - BOTTOM}`);
  }

  exported() {
    const rows = [["run", "probe", "head", "step", "value"]];
    for (const curve of this.curves) curve.steps.forEach((step, i) => rows.push([this.run.meta.name, curve.name, curve.head, step, curve.values[i]]));
    return {
      name: `${this.run.meta.name}-${this.group}`,
      drawings: [{ node: this.chart.cloneNode(true), source: this.chart, width: this.width, height: HEIGHT, title: `${this.run.meta.name}: ${GROUPS[this.group][0].toLowerCase()}` }],
      rows,
      python: this.page.snippet(this.run, this.group, this.run.view(this.page.state)),
    };
  }
}

/** Each curve with its class, its dashes, and whether it is the one of its probe that is named in the legend. */
function styled(curves) {
  let plain = 0;
  return curves.map((curve) => {
    const same = curves.filter((other) => other.name === curve.name);
    const style = curve.memory ? variableOf(curve.memory).slice(2) : `plain-${Math.min(plain, 4)}`;
    const dash = curve.memory ? (curve.name.includes("first64") ? "3 3" : "") : DASHES[plain % 4];
    if (!curve.memory) plain += 1;
    return { ...curve, style, dash, shown: [curve.label, same.length > 1 || !curve.label ? curve.head : ""].filter(Boolean).join(", ") };
  });
}
