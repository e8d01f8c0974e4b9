// Why the page's model predicts an output: its logit, and its heads' scores, as exact sums over embeddings.
//
//   f^T x = sum over paths of weight * f'^T e,   weight: the attention on the way,   f' = ... (W_O W_V)^T W_F^T f
//
// as in `probes/why.py`. Attention, and what is switched off or erased, are taken from the same pass.

import { variableOf } from "./colour.js";
import { el, number, percent, svg } from "./dom.js";
import { Panel } from "./panel.js";

const [ROW, BARS, BESIDE, CELL] = [22, 7, 3, 15];

/** W^T f, for W of `f.length` rows. */
function back(W, f) {
  const cols = W.length / f.length;
  const out = new Float32Array(cols);
  for (let a = 0; a < f.length; a++) for (let b = 0; b < cols; b++) out[b] += W[a * cols + b] * f[a];
  return out;
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

/** What adds to the streams of a sequence at one step, with its attention. */
export class Streams {
  constructor(model, view, tokens, map) {
    const off = new Set(view.off);
    Object.assign(this, { model, tokens, map, weights: model.weights(view.index, view.erased), n: tokens.length });
    this.writers = model.facts.layers.flatMap((layer, l) => [
      ...layer.heads.map((head, h) => ({ name: `L${l + 1}H${h + 1}`, layer: l, head, on: !off.has(`L${l + 1}H${h + 1}`) && !off.has(`W_O${l + 1}`) })),
      ...(layer.feed_forward ? [{ name: layer.feed_forward.name, layer: l, feed: true, on: !off.has(layer.feed_forward.name) }] : []),
    ]);
    this.heads = this.writers.filter((writer) => writer.head);
    this.scales = model.facts.layers.map((_, l) => (off.has(`W_K${l + 1}`) ? 0 : model.facts.scale));
  }

  /** How many writers come before those that a layer's heads read. */
  before(layer) {
    return this.writers.filter((writer) => writer.layer < layer).length;
  }

  /** The terms of sum_s weight_s f^T x_s, x the sum of the embeddings and the first `upto` writers. */
  expand(f, weight, upto = this.writers.length, path = []) {
    const { model, tokens, n, weights } = this;
    const terms = [];
    for (let s = 0; s < n; s++) {
      if (weight[s] === 0) continue;
      terms.push({ path, part: "embed", at: s, value: weight[s] * dot(f, model.row("w_E", tokens[s])) });
      terms.push({ path, part: "pos", at: s, value: weight[s] * dot(f, model.row("p", s)) });
    }
    this.writers.slice(0, upto).forEach((writer, i) => {
      if (!writer.on) return;
      if (writer.feed) return terms.push(...this.expand(back(weights[writer.name], f), weight, i, [...path, writer.name]));
      const A = this.map(this.heads.indexOf(writer));
      const mixed = new Float32Array(n);
      for (let t = 0; t < n; t++) if (weight[t] !== 0) for (let s = 0; s <= t; s++) mixed[s] += weight[t] * A[t * n + s];
      const read = back(weights[writer.head.W_V.name], back(weights[writer.head.W_O.name], f));
      terms.push(...this.expand(read, mixed, this.before(writer.layer), [...path, writer.name]));
    });
    return terms;
  }

  at(...places) {
    const weight = new Float32Array(this.n);
    places.forEach((s, i) => s !== null && (weight[s] += i ? -1 : 1));
    return weight;
  }

  /** The terms of an output's logit at a position. */
  logit(t, y) {
    return this.expand(this.model.row("w_U", y), this.at(t));
  }

  /** Where a head attends from a position: its key, the runner-up of another token, and why. */
  attended(writer, t) {
    const A = this.map(this.heads.indexOf(writer)).subarray(t * this.n, t * this.n + t + 1);
    const best = (allowed) => A.reduce((found, a, s) => (allowed(s) && (found === null || a > A[found]) ? s : found), null);
    const key = best(() => true);
    const rival = best((s) => this.tokens[s] !== this.tokens[key]);
    const weight = A.reduce((sum, a, s) => sum + (this.tokens[s] === this.tokens[key] ? a : 0), 0);
    const W_K = this.weights[writer.head.W_K.name];
    const terms = [["embed", "w_E", this.tokens[t]], ["pos", "p", t]].flatMap(([query, name, i]) => {
      const f = back(W_K, this.model.row(name, i)).map((x) => x * this.scales[writer.layer]);
      return this.expand(f, this.at(key, rival), this.before(writer.layer)).map((term) => ({ ...term, query }));
    });
    return { head: writer.name, layer: writer.layer, query: t, key, rival, weight, terms, odds: rival === null ? null : Math.log(A[key] / A[rival]) };
  }
}

/** Terms of one path, part and token (or position) together, largest first. */
export function grouped(terms, nameOf) {
  const found = new Map();
  for (const term of terms) {
    const name = term.part === "pos" ? `p(${term.at + 1})` : nameOf(term.at);
    const key = JSON.stringify([term.path, term.part, name, term.query]);
    if (!found.has(key)) found.set(key, { ...term, name, value: 0 });
    found.get(key).value += term.value;
  }
  return [...found.values()].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
}

export class WhyPanel {
  constructor(page, run) {
    Object.assign(this, { page, run });
    this.choice = el("select", { "aria-label": "Output to explain", onchange: () => page.redraw() }, el("option", { value: "right" }, "the right output"), el("option", { value: "predicted" }, "the predicted output"));
    this.panel = new Panel({
      id: `why-${run.number}`, title: "Why", of: page.nameOf(run), tools: [this.choice], make: () => this.exported(),
      caption: "The output’s logit at the query as an exact sum over paths from embeddings, with attention held as it is. Arcs: where each head attends, and the part of its log-odds against the runner-up key that stored pairs explain.",
    });
    this.line = svg("svg", { class: "parts why-line", role: "img", "aria-label": "Tokens, with an arc for each head" });
    this.bars = svg("svg", { class: "parts", role: "img", "aria-label": "The terms of the logit; the table has the numbers." });
    this.said = el("p", { class: "readout" });
    this.panel.body.append(this.line, this.bars, this.said);
    this.node = this.panel.node;
  }

  update(state, view) {
    this.view = view;
    this.drawn = null;
    this.point(state, view);
  }

  /** The streams of the view: of its own pass, or of the page's where the view shows stored maps. */
  streams(view) {
    if (this.of !== view) {
      const { maps } = view.live ? {} : this.run.model.forward(view.index, view.sequence.tokens);
      [this.of, this.kept] = [view, new Streams(this.run.model, view, view.sequence.tokens, maps ? (i) => maps[i] : view.map)];
    }
    return this.kept;
  }

  point(state, view) {
    const { query } = this.page.pointed(this.run, view);
    const truth = view.sequence.targets[query];
    const y = this.choice.value === "right" && truth >= 0 ? truth : view.likely(query)[0][0];
    const wanted = `${query} ${y}`;
    if (this.drawn === wanted) return;
    this.drawn = wanted;
    this.found = this.explain(view, query, y);
    this.draw(view);
    this.panel.refreshTable();
  }

  name(at) {
    return this.run.name(this.view.sequence.tokens[at]);
  }

  explain(view, query, y) {
    const streams = this.streams(view);
    const terms = streams.logit(query, y);
    const effect = (head) => terms.reduce((sum, { path, value }) => sum + (path.find((one) => one[0] === "L") === head.name ? value : 0), 0);
    const ranked = streams.heads.filter((head) => head.on).map((head) => [head, effect(head)]).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
    const heads = ranked.slice(0, 1).flatMap(([head]) => {
      const first = streams.attended(head, query);
      const wrote = new Map();
      for (const { path, value } of first.terms) if (path.length) wrote.set(path[0], (wrote.get(path[0]) ?? 0) + value);
      const earlier = streams.heads.filter((other) => wrote.has(other.name)).sort((a, b) => wrote.get(b.name) - wrote.get(a.name))[0];
      return earlier ? [first, streams.attended(earlier, first.key)] : [first];
    });
    const logit = terms.reduce((sum, { value }) => sum + value, 0);
    return { query, y, terms, heads: heads.map((one) => ({ ...one, signal: this.signal(one) })), logit };
  }

  /** What stored pairs add to a head's log-odds; null where the page knows none. */
  signal({ layer, query, terms }) {
    const memory = this.run.meta.memories.find((one) => one.memory === `W_K${layer + 1}`);
    if (!memory?.pairs) return null;
    const stored = new Set(memory.pairs.map(String));
    const { tokens } = this.view.sequence;
    const kind = memory.positions ? "pos" : "embed";
    const isPair = ({ part, path, at }) => (memory.positions ? path.length === 0 && stored.has(`${query - memory.first},${at}`) : path.length === 1 && path[0][0] === "L" && stored.has(`${tokens[query]},${tokens[at]}`)) && part === kind;
    return terms.reduce((sum, term) => sum + (term.query === kind && isPair(term) ? term.value : 0), 0);
  }

  draw(view) {
    const { query, y, heads, logit, terms } = this.found;
    const width = this.bars.clientWidth || 600;
    const centres = new Set([query, ...heads.flatMap(({ key, rival }) => (rival === null ? [key] : [key, rival]))]);
    const near = [...Array(query + 1).keys()].filter((t) => query < 40 || [...centres].some((c) => Math.abs(c - t) <= BESIDE));
    const place = new Map(near.map((t, i) => [t, (i + near.slice(0, i + 1).filter((s, j) => j && s > near[j - 1] + 1).length) * CELL + 12]));
    const high = 78;
    const texts = near.map((t) => svg("text", { x: place.get(t), y: high + 18, "text-anchor": "middle", class: centres.has(t) ? "part" : "" }, this.name(t), svg("title", {}, `position ${t + 1}`)));
    const arcs = heads.flatMap(({ head, layer, query: t, key, weight, odds, signal }) => {
      const [a, b] = [place.get(t), place.get(key)];
      const kind = variableOf(layer ? "W_K2" : "W_K1").slice(2);
      const up = Math.max(14, high - 26 - Math.abs(a - b) * 0.12);
      const why = odds === null ? "" : `, ${signal === null ? "" : `${number(signal, 1)} of `}${number(odds, 1)}`;
      return [
        svg("path", { class: `why-arc ${kind}`, d: `M${a} ${high}Q${(a + b) / 2} ${up - 22} ${b} ${high}`, "stroke-width": 0.8 + 3 * weight }),
        svg("text", { x: (a + b) / 2, y: Math.max(10, up - 8), "text-anchor": "middle", class: `part ${kind}` }, `${head} ${percent(weight, 0)}${why}`),
      ];
    });
    const right = Math.max(...place.values()) + 20;
    const wide = Math.max(width, right + 90);
    texts.push(svg("text", { x: right, y: high + 18, class: "value" }, `→ ${this.run.outputName(y)}`));
    this.line.setAttribute("viewBox", `-60 -6 ${wide + 60} ${high + 30}`);
    this.line.replaceChildren(...arcs, ...texts);
    const rows = grouped(terms, (at) => this.name(at));
    const shown = rows.slice(0, BARS).map((row) => ({ ...row, label: `${[...row.path].reverse().join(">") || "direct"}: ${row.name}→${this.run.outputName(y)}` }));
    const rest = rows.slice(BARS).reduce((sum, row) => sum + row.value, 0);
    const all = [...shown, { path: [], value: rest, label: `${Math.max(0, rows.length - BARS)} others` }];
    let sum = 0;
    const spans = all.map(({ value }) => [sum, (sum += value)]);
    const [low, top] = [Math.min(0, ...spans.flat()), Math.max(0.1, ...spans.flat())];
    const left = Math.min(0.45 * width, 190);
    const x = (value) => left + ((value - low) / (top - low)) * (width - left - 60);
    const bar = ({ path, label, value }, [from, to], i) => {
      const kind = path.length ? variableOf(path[0][0] === "L" ? `W_O${path[0][1]}` : path[0]).slice(2) : "ink";
      return [
        svg("text", { x: left - 6, y: i * ROW + 15, "text-anchor": "end" }, label),
        svg("rect", { class: `bar ${kind}`, x: Math.min(x(from), x(to)), y: i * ROW + 4, width: Math.max(1, Math.abs(x(to) - x(from))), height: 14, rx: 1.5 }),
        svg("text", { x: Math.max(x(from), x(to)) + 5, y: i * ROW + 15, class: "value" }, number(value, 2)),
      ];
    };
    const total = bar({ path: [], label: `logit of ${this.run.outputName(y)}`, value: logit }, [0, logit], all.length);
    this.bars.setAttribute("viewBox", `0 0 ${width} ${(all.length + 1) * ROW}`);
    this.bars.replaceChildren(...all.flatMap((row, i) => bar(row, spans[i], i)), ...total);
    const [first] = heads;
    const p = view.likely(query).find(([id]) => id === y)?.[1];
    this.said.textContent = `${this.run.outputName(y)} after “${this.name(query)}” (${query + 1})${p === undefined ? "" : `, given ${percent(p)}`}: ` + (first ? `${first.head} attends to “${this.name(first.key)}” (${first.key + 1}), ${percent(first.weight)}${first.rival === null ? "" : `, log-odds ${number(first.odds, 1)} over “${this.name(first.rival)}” (${first.rival + 1})${first.signal === null ? "" : `, of which stored pairs give ${number(first.signal, 1)}`}`}.` : "no head is on.");
  }

  exported() {
    const { query, y, terms, heads } = this.found;
    const view = this.run.view(this.page.state);
    const rows = [["run", "step", "of", "path", "part", "position", "input", "query_part", "value"]];
    const add = (of, list) => list.forEach((term) => rows.push([this.run.meta.name, view.step, of, [...term.path].reverse().join(">"), term.part, term.at + 1, this.name(term.at), term.query ?? "", term.value]));
    add(`logit of ${this.run.outputName(y)} at ${query + 1}`, terms);
    for (const one of heads) add(`${one.head} at ${one.query + 1} to ${one.key + 1}`, one.terms);
    const drawing = (node) => ({ node: node.cloneNode(true), source: node, width: node.viewBox.baseVal.width, height: node.viewBox.baseVal.height });
    return {
      name: `${this.run.meta.name}-why-step-${view.step}`,
      drawings: [{ ...drawing(this.line), title: `${this.run.meta.name}, step ${view.step}: why “${this.run.outputName(y)}”` }, { ...drawing(this.bars), title: "" }],
      rows,
      python: this.page.snippet(this.run, view.row === undefined ? "why_text" : "why", view, { position: query + 1 }),
    };
  }
}
