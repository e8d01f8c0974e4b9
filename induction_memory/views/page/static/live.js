// The forward pass of the simplified model, with parts switched off and associations erased (see `live.py`).
//
//   a_ts = softmax over s <= t of x_t^T W_K x_s * scale,   x_t += W_O W_V sum_s a_ts x_s,   x_t += W_F x_t
//
// Off: a head or W_O writes nothing, W_K gives every key the same score, W_F adds nothing. Erasing pairs (u_k, v_k) is the
// smallest change that makes their scores v_k^T W u_k zero: W + sum_k c_k v_k u_k^T with G c = -(v_k^T W u_k)_k and
// G_kl = (v_k . v_l)(u_k . u_l), as in `surgery`.

/** Rows x -> rows W x: X is n rows of `cols`, W is `rows` x `cols`. */
export function applyMatrix(X, n, W, rows, cols) {
  const out = new Float32Array(n * rows);
  for (let i = 0; i < n; i++) {
    const x = i * cols;
    for (let a = 0; a < rows; a++) {
      const w = a * cols;
      let sum = 0;
      for (let b = 0; b < cols; b++) sum += W[w + b] * X[x + b];
      out[i * rows + a] = sum;
    }
  }
  return out;
}

/** Causal softmax of queries Q against keys K, both n rows of d. */
export function causalAttention(Q, K, n, d, scale) {
  const out = new Float32Array(n * n);
  for (let t = 0; t < n; t++) {
    let most = -Infinity;
    for (let s = 0; s <= t; s++) {
      let sum = 0;
      for (let b = 0; b < d; b++) sum += Q[t * d + b] * K[s * d + b];
      out[t * n + s] = sum * scale;
      if (sum * scale > most) most = sum * scale;
    }
    let total = 0;
    for (let s = 0; s <= t; s++) total += out[t * n + s] = Math.exp(out[t * n + s] - most);
    for (let s = 0; s <= t; s++) out[t * n + s] /= total;
  }
  return out;
}

/** Solve G c = r for a small symmetric positive G (rows of arrays), by elimination with pivots. */
export function solve(G, r) {
  const m = G.map((row, i) => [...row, r[i]]);
  const n = m.length;
  for (let i = 0; i < n; i++) {
    let best = i;
    for (let k = i + 1; k < n; k++) if (Math.abs(m[k][i]) > Math.abs(m[best][i])) best = k;
    [m[i], m[best]] = [m[best], m[i]];
    for (let k = i + 1; k < n; k++) {
      const f = m[k][i] / m[i][i];
      for (let j = i; j <= n; j++) m[k][j] -= f * m[i][j];
    }
  }
  const c = new Array(n).fill(0);
  for (let i = n - 1; i >= 0; i--) {
    let rest = m[i][n];
    for (let j = i + 1; j < n; j++) rest -= m[i][j] * c[j];
    c[i] = rest / m[i][i];
  }
  return c;
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** W with the scores of the pairs (u, v) set to zero. */
export function erasePairs(W, pairs, cols) {
  const rowOf = (u, v) => dot(v, applyMatrix(u, 1, W, v.length, cols));
  const G = pairs.map((a) => pairs.map((b) => dot(a.v, b.v) * dot(a.u, b.u)));
  const c = solve(G, pairs.map((pair) => -rowOf(pair.u, pair.v)));
  const out = Float32Array.from(W);
  pairs.forEach(({ u, v }, k) => {
    for (let a = 0; a < v.length; a++) for (let b = 0; b < cols; b++) out[a * cols + b] += c[k] * v[a] * u[b];
  });
  return out;
}

/** A simplified model over training. */
export class LiveModel {
  constructor(facts, arrays) {
    this.facts = facts;
    this.arrays = arrays;
    this.d = facts.d;
    this.cache = { key: null, weights: null };
    this.sizes = { w_E: arrays.w_E.shape[0], p: arrays.p.shape[0], w_U: arrays.w_U.shape[0] };
  }

  row(name, i) {
    return this.arrays[name].data.subarray(i * this.d, (i + 1) * this.d);
  }

  decode(matrix, step) {
    const base = this.arrays[matrix.name].data;
    if (!matrix.moves) return base;
    const [codes, scale] = [this.arrays[`${matrix.name} codes`], this.arrays[`${matrix.name} scale`]];
    const [rows, cols] = codes.shape.slice(1);
    const out = new Float32Array(rows * cols);
    for (let a = 0; a < rows; a++) {
      const s = scale.data[step * rows + a];
      const from = step * rows * cols + a * cols;
      for (let b = 0; b < cols; b++) out[a * cols + b] = base[a * cols + b] + s * codes.data[from + b];
    }
    return out;
  }

  /** All matrices at a step, by name, with the erasures [{memory, index, row, column}] done. */
  weights(step, erased = []) {
    const key = `${step}|${JSON.stringify(erased)}`;
    if (this.cache.key === key) return this.cache.weights;
    const weights = {};
    for (const layer of this.facts.layers) {
      for (const head of layer.heads) for (const m of Object.values(head)) weights[m.name] = this.decode(m, step);
      if (layer.feed_forward) weights[layer.feed_forward.name] = this.decode(layer.feed_forward, step);
    }
    const groups = new Map();
    for (const cell of erased) {
      const place = this.place(cell, weights);
      if (!groups.has(place.name)) groups.set(place.name, []);
      groups.get(place.name).push(place);
    }
    for (const [name, pairs] of groups) weights[name] = erasePairs(weights[name], pairs, pairs[0].u.length);
    this.cache = { key, weights };
    return weights;
  }

  /** The matrix that a cell of a table belongs to, and its u and v; rows are queries (W_K) or inputs. */
  place({ memory, index, row, column }, weights) {
    const { d, facts } = this;
    if (memory === "W_F") return { name: "W_F", u: this.row("w_E", row), v: this.row("w_U", column) };
    if (memory === "W_K1") return { name: `L1H${index + 1} W_K`, u: this.row("p", column), v: this.row("p", row) };
    if (memory === "W_O2") {
      const V = weights[`L2H${index + 1} W_V`];
      return { name: `L2H${index + 1} W_O`, u: applyMatrix(this.row("w_E", row), 1, V, V.length / d, d), v: this.row("w_U", column) };
    }
    const heads = facts.layers[0].heads.length;
    const [first, second] = [Math.floor(index / heads) + 1, (index % heads) + 1];
    return { name: `L2H${second} W_K`, u: this.through(first, this.row("w_E", column), 1, weights), v: this.row("w_E", row) };
  }

  /** Phi_1 of a head of layer 1 on rows of X. */
  through(head, X, n, weights) {
    const V = weights[`L1H${head} W_V`];
    const width = V.length / this.d;
    return applyMatrix(applyMatrix(X, n, V, width, this.d), n, weights[`L1H${head} W_O`], this.d, width);
  }

  /** The score table of a memory with the present weights, as in `views/page/tables.py`. */
  table({ memory, index, rows, columns, first }, weights) {
    const scores = new Float32Array(rows * columns);
    const { d } = this;
    const heads = this.facts.layers[0].heads.length;
    let inputs, outputs, W;
    if (memory === "W_K1") [inputs, outputs, W] = [this.rows("p", first, rows), this.rows("p", 0, columns), weights[`L1H${index + 1} W_K`]];
    else if (memory === "W_K2") {
      const keys = this.through(Math.floor(index / heads) + 1, this.rows("w_E", 0, columns), columns, weights);
      [inputs, outputs, W] = [this.rows("w_E", 0, rows), keys, weights[`L2H${(index % heads) + 1} W_K`]];
    } else if (memory === "W_O2") {
      const V = weights[`L2H${index + 1} W_V`];
      const values = applyMatrix(this.rows("w_E", 0, rows), rows, V, V.length / d, d);
      [inputs, outputs, W] = [applyMatrix(values, rows, weights[`L2H${index + 1} W_O`], d, V.length / d), this.rows("w_U", 0, columns), null];
    } else [inputs, outputs, W] = [applyMatrix(this.rows("w_E", 0, rows), rows, weights.W_F, d, d), this.rows("w_U", 0, columns), null];
    const right = W ? applyMatrix(outputs, columns, W, d, d) : outputs;
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
      let sum = 0;
      for (let b = 0; b < d; b++) sum += inputs[i * d + b] * right[j * d + b];
      scores[i * columns + j] = sum;
    }
    return scores;
  }

  rows(name, from, count) {
    return this.arrays[name].data.subarray(from * this.d, (from + count) * this.d);
  }

  /** Attention of every head and log q(next token) at every position of a sequence. */
  forward(step, tokens, { off = [], erased = [] } = {}) {
    const { d, facts } = this;
    const n = tokens.length;
    const weights = this.weights(step, erased);
    const without = new Set(off);
    let X = new Float32Array(n * d);
    for (let t = 0; t < n; t++) {
      const [e, p] = [this.row("w_E", tokens[t]), this.row("p", t)];
      for (let b = 0; b < d; b++) X[t * d + b] = e[b] + p[b];
    }
    const maps = [];
    facts.layers.forEach((layer, l) => {
      const added = new Float32Array(n * d);
      layer.heads.forEach((head, h) => {
        const scale = without.has(`W_K${l + 1}`) ? 0 : facts.scale;
        const A = causalAttention(X, applyMatrix(X, n, weights[head.W_K.name], d, d), n, d, scale);
        maps.push(A);
        if (without.has(`L${l + 1}H${h + 1}`) || without.has(`W_O${l + 1}`)) return;
        const V = weights[head.W_V.name];
        const width = V.length / d;
        const values = applyMatrix(X, n, V, width, d);
        const written = applyMatrix(mix(A, values, n, width), n, weights[head.W_O.name], d, width);
        for (let i = 0; i < added.length; i++) added[i] += written[i];
      });
      for (let i = 0; i < added.length; i++) X[i] += added[i];
      const name = layer.feed_forward?.name;
      if (name && !without.has(name)) {
        const more = applyMatrix(X, n, weights[name], d, d);
        for (let i = 0; i < more.length; i++) X[i] += more[i];
      }
    });
    const vocabulary = this.sizes.w_U;
    return { maps, logProbabilities: logSoftmax(applyMatrix(X, n, this.arrays.w_U.data, vocabulary, d), n, vocabulary) };
  }
}

/** Rows of A V for a causal A. */
function mix(A, V, n, d) {
  const out = new Float32Array(n * d);
  for (let t = 0; t < n; t++) for (let s = 0; s <= t; s++) {
    const a = A[t * n + s];
    if (a < 1e-9) continue;
    for (let b = 0; b < d; b++) out[t * d + b] += a * V[s * d + b];
  }
  return out;
}

/** Rows of logits less the logarithm of the sum of their exponentials. */
function logSoftmax(logits, n, m) {
  for (let t = 0; t < n; t++) {
    let most = -Infinity;
    for (let j = 0; j < m; j++) most = Math.max(most, logits[t * m + j]);
    let total = 0;
    for (let j = 0; j < m; j++) total += Math.exp(logits[t * m + j] - most);
    const shift = most + Math.log(total);
    for (let j = 0; j < m; j++) logits[t * m + j] -= shift;
  }
  return logits;
}
