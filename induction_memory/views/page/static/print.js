// On paper: five steps as small multiples, each with every head's attention and every memory.

import { variableOf } from "./colour.js";
import { el } from "./dom.js";
import { paint } from "./heatmap.js";
import { strongest } from "./memories.js";

/** Five steps of a run: the first, its births, the last, filled up evenly. */
export function fiveSteps(steps, births, n = 5) {
  const chosen = new Set([steps[0], steps.at(-1)]);
  const next = (x) => steps.reduce((best, s) => (Math.abs(s - x) < Math.abs(best - x) ? s : best));
  for (const birth of births) if (chosen.size < n) chosen.add(next(birth.change));
  for (let parts = 4; chosen.size < Math.min(n, steps.length); parts++)
    for (let i = 1; i < parts && chosen.size < Math.min(n, steps.length); i++) chosen.add(steps[Math.round((i * (steps.length - 1)) / parts)]);
  return [...chosen].sort((a, b) => a - b);
}

/** The section for paper of one run. */
export function printed(page, run) {
  const { palette } = page;
  const steps = fiveSteps(run.meta.steps, run.meta.births);
  const columns = steps.map((step) => {
    const view = run.view({ ...page.state, at: step, align: "step" });
    const n = view.sequence.tokens.length;
    const maps = run.meta.heads.map((head, i) => {
      const canvas = el("canvas", { class: "cells" });
      const lut = palette.sequential("attention");
      paint(canvas, view.map(i), n, n, { lut, low: 0, high: 1, causal: true, beyond: palette.beyond });
      return figure(canvas, head, "");
    });
    const seen = new Set();
    const tables = run.meta.memories.filter((memory) => !seen.has(memory.memory) && seen.add(memory.memory)).map((memory) => {
      const canvas = el("canvas", { class: "cells" });
      const high = strongest(run.arrays[memory.array]);
      paint(canvas, run.table(memory, view), memory.rows, memory.columns, { lut: palette.signed(memory.memory), low: -high, high });
      return figure(canvas, `${memory.memory} ${memory.head}`, variableOf(memory.memory).slice(2));
    });
    return el("div", { class: "paper-step" }, el("h4", {}, `step ${step}`), ...maps, ...tables);
  });
  run.key = null;
  return el("section", { class: "paper" }, el("h3", {}, `${run.meta.name}: five steps of training`), el("div", { class: "paper-grid" }, ...columns));
}

function figure(canvas, name, kind) {
  return el("figure", { class: kind }, canvas, el("figcaption", {}, name));
}
