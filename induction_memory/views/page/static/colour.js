// One colour per memory, read from the style sheet, and ramps from the paper's colour to it.

const KNEE = 0.66; // where a ramp has reached the memory's own colour

/** The custom property that holds a memory's colour, or the ink's where there is none. */
export function variableOf(memory) {
  const known = ["W_K1", "W_K2", "W_O2", "W_F", "attention"];
  const base = memory === "W_O1" ? "W_K1" : memory;
  return known.includes(base) ? `--${base.toLowerCase().replace("_", "-")}` : "--ink";
}

/** [r, g, b] of a custom property as it is now, in light or dark. */
export function rgb(variable) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  return parseColour(text);
}

/** #rrggbb as numbers. */
export function parseColour(text) {
  const match = /^#([0-9a-f]{6})$/i.exec(text);
  if (!match) throw new Error(`expected a colour like #1f2328, got ${text}`);
  const value = parseInt(match[1], 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** 256 colours from `from` over `to` (at two thirds) to `end`, as little-endian RGBA. */
export function ramp(from, to, end) {
  const table = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const t = i / 255;
    const [a, b, share] = t < KNEE ? [from, to, t / KNEE] : [to, end, (t - KNEE) / (1 - KNEE)];
    const channel = (c) => Math.round(255 * encode((1 - share) * decodeLight(a[c] / 255) + share * decodeLight(b[c] / 255)));
    table[i] = (255 << 24) | (channel(2) << 16) | (channel(1) << 8) | channel(0);
  }
  return table;
}

/** A colour on the way from one to another. */
export function between(from, to, share) {
  return from.map((c, i) => Math.round((1 - share) * c + share * to[i]));
}

/** 256 colours from one end over a middle to the other; `down` and `up` are ramps from the middle. */
export function diverging(down, up) {
  const table = new Uint32Array(256);
  for (let i = 0; i < 128; i++) {
    table[127 - i] = down[2 * i + (i > 0)];
    table[128 + i] = up[2 * i + (i > 0)];
  }
  return table;
}

function decodeLight(v) {
  return v ** 1.6;
}

function encode(v) {
  return v ** (1 / 1.6);
}

/** Ramps for the present theme, made once per theme. */
export class Palette {
  constructor() {
    this.refresh();
  }

  refresh() {
    this.ramps = {};
    this.paper = rgb("--map");
    this.against = rgb("--against");
  }

  sequential(memory) {
    const own = rgb(variableOf(memory));
    return (this.ramps[memory] ??= ramp(this.paper, own, between(own, rgb("--ink"), 0.5)));
  }

  signed(memory) {
    const down = ramp(this.paper, this.against, this.against);
    return (this.ramps[`${memory} signed`] ??= diverging(down, this.sequential(memory)));
  }

  get beyond() {
    const [r, g, b] = rgb("--beyond");
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  }
}
