// What one run shows at a state: stored numbers, or the live pass where the reader typed or changed something.

import { slice, valueAt } from "./data.js";
import { LiveModel } from "./live.js";
import { encode, sequenceOf } from "./text.js";

/** "W_O2|3|12|12": memory, index of the head, row and column, as the state keeps an erasure. */
export function parseErased(text) {
  const [memory, index, row, column] = text.split("|");
  return { memory, index: Number(index), row: Number(row), column: Number(column) };
}

export class Run {
  constructor(meta, arrays, number) {
    this.meta = meta;
    this.number = number;
    this.arrays = {};
    const weights = {};
    for (const [name, array] of Object.entries(arrays)) {
      const [owner, rest] = [name.slice(0, name.indexOf(" ")), name.slice(name.indexOf(" ") + 1)];
      if (Number(owner) !== number) continue;
      if (rest.startsWith("live ")) weights[rest.slice(5)] = array;
      else this.arrays[rest] = array;
    }
    this.model = meta.live ? new LiveModel(meta.live, weights) : null;
    this.key = null;
    this.outputSize = meta.outputs.length;
  }

  /** The token as it is shown. */
  name(id) {
    return id < 0 ? "?" : this.meta.visible[id];
  }

  /** The output as it is shown. */
  outputName(id) {
    return id < 0 ? "?" : this.meta.visible_outputs[id];
  }

  get severalHeads() {
    return this.meta.heads.length > this.meta.n_layers;
  }

  /** The query that is pointed at if none is chosen: the best answered trigger that came again, at the last step. */
  usualQuery(view) {
    const { tokens, in_context: again } = view.sequence;
    if (!again.length || view.row === undefined) return again.at(-1) ?? tokens.length - 1;
    const losses = slice(this.arrays.loss, this.meta.steps.length - 1, view.row);
    return again.reduce((best, t) => (losses[t] <= losses[best] ? t : best));
  }

  /** Where this run was born: the change point that comes last, for alignment. */
  get birth() {
    const found = this.meta.births.find((birth) => birth.memory === "W_O2") ?? this.meta.births[0];
    return found ? found.change : 0;
  }

  /** Positions on the slider: its steps, or steps since birth. */
  positions(align) {
    return align === "birth" ? this.meta.steps.map((step) => Math.round(step - this.birth)) : this.meta.steps;
  }

  /** Index of the stored step next to a position. */
  indexAt(at, align) {
    return nearest(this.positions(align), at);
  }

  /** The view of a state; the same object for the same inputs. */
  view(state) {
    const index = this.indexAt(state.at, state.align);
    const off = this.model ? state.off.filter((part) => this.parts.includes(part)) : [];
    const erased = this.model ? state.erased.map(parseErased).filter((cell) => this.memoryOf(cell)) : [];
    const text = this.model ? state.text : "";
    const key = JSON.stringify([index, state.seq, text, off, erased]);
    if (this.key === key) return this.current;
    const changed = off.length > 0 || erased.length > 0;
    const view = { index, step: this.meta.steps[index], off, erased, live: changed || text !== "", changed };
    const typed = text === "" ? null : encode(text, this.meta.vocabulary, this.meta.live.n_ctx);
    if (typed && typed.tokens.length) Object.assign(view, { sequence: sequenceOf(typed.tokens, this.meta.fixed_triggers, this.meta.next_token), typed });
    else {
      Object.assign(view, { row: Math.min(state.seq, this.meta.sequences.length - 1), typed });
      view.sequence = this.meta.sequences[view.row];
      view.live = changed;
    }
    if (view.live) this.compute(view);
    else this.read(view);
    view.right = view.losses.map((loss) => Math.exp(-loss));
    view.loss = meanLoss(view.losses, view.sequence.targets.keys());
    view.lossInContext = meanLoss(view.losses, view.sequence.in_context);
    [this.key, this.current] = [key, view];
    return view;
  }

  read(view) {
    const { attention, loss, likely, probability } = this.arrays;
    const n = view.sequence.tokens.length;
    const maps = {};
    view.map = (head) => (maps[head] ??= square(slice(attention, view.index, view.row, head), n));
    view.losses = slice(loss, view.index, view.row);
    view.likely = (t) =>
      Array.from({ length: likely.shape[3] }, (_, i) => [
        valueAt(likely, view.index, view.row, t, i),
        valueAt(probability, view.index, view.row, t, i),
      ]);
  }

  compute(view) {
    const { tokens, targets } = view.sequence;
    const { maps, logProbabilities } = this.model.forward(view.index, tokens, view);
    const m = this.outputSize;
    const lossesOf = (logs) => Float32Array.from(targets, (id, t) => (id < 0 ? NaN : -logs[t * m + id]));
    view.map = (head) => maps[head];
    view.losses = lossesOf(logProbabilities);
    view.likely = (t) => {
      const row = Array.from(logProbabilities.subarray(t * m, (t + 1) * m), (log, id) => [id, Math.exp(log)]);
      return row.sort((a, b) => b[1] - a[1]).slice(0, 5);
    };
    if (view.changed) {
      const intact = view.row === undefined ? this.model.forward(view.index, tokens) : null;
      const before = intact ? lossesOf(intact.logProbabilities) : slice(this.arrays.loss, view.index, view.row);
      view.lossBefore = meanLoss(before, targets.keys());
    }
  }

  /** The scores of a memory's table: stored, or with the present erasures. */
  table(memory, view) {
    if (!view.erased.length) return slice(this.arrays[memory.array], view.index);
    return this.model.table(memory, this.model.weights(view.index, view.erased));
  }

  memoryOf(cell) {
    return this.meta.memories.find((memory) => memory.memory === cell.memory && memory.index === cell.index);
  }

  /** What can be switched off: heads, and the matrices that change in training. */
  get parts() {
    if (!this.model) return [];
    const names = [...this.meta.heads];
    this.meta.live.layers.forEach((layer, l) => {
      if (layer.heads.some((head) => head.W_K.moves)) names.push(`W_K${l + 1}`);
      if (layer.heads.some((head) => head.W_O.moves)) names.push(`W_O${l + 1}`);
      if (layer.feed_forward) names.push(layer.feed_forward.name);
    });
    return names;
  }

  /** When the association of a token was born in each memory: [[memory, step or null]]. */
  birthsOf(token) {
    const found = [];
    for (const memory of this.meta.memories)
      if (memory.births && !memory.positions && !found.some(([name]) => name === memory.memory))
        found.push([memory.memory, memory.births[token]]);
    return found;
  }
}

/** Index of the number in a sorted list that is next to x. */
export function nearest(list, x) {
  let best = 0;
  list.forEach((value, i) => {
    if (Math.abs(value - x) < Math.abs(list[best] - x)) best = i;
  });
  return best;
}

function square(triangle, n) {
  const out = new Float32Array(n * n);
  for (let t = 0, i = 0; t < n; t++) for (let s = 0; s <= t; s++, i++) out[t * n + s] = triangle[i];
  return out;
}

/** Mean of the losses at some positions, those without a next token left out; nan for none. */
export function meanLoss(losses, positions) {
  let [sum, count] = [0, 0];
  for (const t of positions)
    if (!Number.isNaN(losses[t])) {
      sum += losses[t];
      count += 1;
    }
  return count ? sum / count : NaN;
}
