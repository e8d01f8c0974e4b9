// One state for the whole page. What differs from the defaults stands in the URL's hash, so that a link opens the view.

const LISTS = new Set(["off", "erased"]);
const NUMBERS = new Set(["at", "seq", "query"]);

/** The hash for a state: only what differs from the defaults. */
export function toHash(state, defaults) {
  const parts = [];
  for (const [key, value] of Object.entries(state)) {
    const plain = LISTS.has(key) ? value.map(encodeURIComponent).join(",") : encodeURIComponent(value ?? "");
    const usual = LISTS.has(key) ? "" : encodeURIComponent(defaults[key] ?? "");
    if (plain !== usual) parts.push(`${key}=${plain}`);
  }
  return parts.join("&");
}

/** The state that a hash says, over the defaults; what cannot be read is left at its default. */
export function fromHash(hash, defaults) {
  const state = { ...defaults };
  for (const part of hash.replace(/^#/, "").split("&")) {
    const [key, text] = [part.slice(0, part.indexOf("=")), part.slice(part.indexOf("=") + 1)];
    if (!Object.hasOwn(defaults, key)) continue;
    try {
      if (LISTS.has(key)) state[key] = text ? text.split(",").map(decodeURIComponent) : [];
      else if (NUMBERS.has(key)) state[key] = Number.isFinite(Number(text)) && text !== "" ? Number(text) : defaults[key];
      else state[key] = decodeURIComponent(text);
    } catch {
      continue; // a broken escape
    }
  }
  return state;
}

/** State, listeners, and the hash kept in step. */
export class Store {
  constructor(defaults, hash = "") {
    this.defaults = defaults;
    this.state = fromHash(hash, defaults);
    this.listeners = [];
    this.timer = null;
  }

  /** Change some of the state and tell the listeners which keys changed. */
  set(patch) {
    const changed = Object.keys(patch).filter((key) => !same(this.state[key], patch[key]));
    if (!changed.length) return;
    this.state = { ...this.state, ...patch };
    for (const listener of this.listeners) listener(this.state, new Set(changed));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.writeHash(), 120);
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  writeHash() {
    const hash = toHash(this.state, this.defaults);
    try {
      history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
    } catch {
      // inside an iframe's srcdoc there is no address to change
    }
  }
}

function same(a, b) {
  return Array.isArray(a) && Array.isArray(b) ? a.length === b.length && a.every((x, i) => x === b[i]) : a === b;
}
