// A typed text as tokens, and the boxes of a sequence: the keys that follow an earlier occurrence of the query.

/** Ids of a text, longest token first; what is outside the vocabulary is left out and counted. */
export function encode(text, vocabulary, most) {
  const ids = new Map(vocabulary.map((token, i) => [token, i]));
  const longest = Math.max(...vocabulary.map((token) => token.length));
  const tokens = [];
  let unknown = 0;
  for (let at = 0; at < text.length; ) {
    let size = Math.min(longest, text.length - at);
    while (size > 0 && !ids.has(text.slice(at, at + size))) size--;
    if (size === 0) unknown += 1;
    else tokens.push(ids.get(text.slice(at, at + size)));
    at += Math.max(1, size);
  }
  return { tokens: tokens.slice(0, most), unknown, cut: Math.max(0, tokens.length - most) };
}

/** A sequence of the page made from tokens; triggers are the fixed ones that have one successor there.
    A task whose targets are not the next tokens says nothing of the targets of a typed text. */
export function sequenceOf(tokens, fixed, nextToken = true) {
  const targets = nextToken ? [...tokens.slice(1), -1] : tokens.map(() => -1);
  const answer = new Map();
  for (const q of fixed ?? []) {
    const after = new Set(tokens.slice(1).filter((_, t) => tokens[t] === q));
    if (after.size === 1) answer.set(q, [...after][0]);
  }
  const right = [];
  const other = [];
  tokens.forEach((query, t) => {
    for (let s = 1; s <= t; s++) if (tokens[s - 1] === query) (answer.get(query) === tokens[s] ? right : other).push([t, s]);
  });
  const triggers = tokens.flatMap((token, t) => (answer.has(token) ? [t] : []));
  const outputs = tokens.flatMap((token, t) => (t > 0 && answer.get(tokens[t - 1]) === token ? [t] : []));
  const seen = new Map();
  const inContext = tokens.flatMap((token, t) => {
    const count = (seen.get(token) ?? 0) + 1;
    seen.set(token, count);
    return answer.has(token) && count >= 2 && targets[t] >= 0 ? [t] : [];
  });
  return { tokens, targets, triggers, outputs, right, other, in_context: inContext };
}
