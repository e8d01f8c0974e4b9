// A heat map: a canvas with one pixel per cell, an SVG over it with labels, boxes and marks, laid out in pixels.

import { el, svg } from "./dom.js";

const LABEL = 9; // pixels of a label's font, and of one lane of labels
const LARGEST = 44; // pixels of a cell: a table of two tokens does not fill its panel

/**
 * Paint values into a canvas of one pixel per cell. `order` permutes rows and columns; `causal` greys what lies ahead;
 * with `turned`, the rows of the values are the columns of the picture.
 */
export function paint(canvas, values, rows, columns, { lut, low, high, causal = false, beyond = 0, rowOrder, columnOrder, turned = false }) {
  const [width, height] = turned ? [rows, columns] : [columns, rows];
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const factor = 255 / (high - low || 1);
  for (let i = 0; i < rows; i++) {
    const from = (rowOrder ? rowOrder[i] : i) * columns;
    for (let j = 0; j < columns; j++) {
      const code = (values[from + (columnOrder ? columnOrder[j] : j)] - low) * factor;
      pixels[turned ? j * rows + i : i * columns + j] = causal && j > i ? beyond : lut[code < 0 ? 0 : code > 255 ? 255 : code | 0];
    }
  }
  context.putImageData(image, 0, 0);
}

/** A label that fits: long tokens are cut. */
function short(text) {
  return text.length <= 4 ? text : `${text.slice(0, 3)}…`;
}

/** A map with labels that can be hovered and clicked. */
export class HeatMap {
  constructor({ label, onhover, onclick, axes = ["", ""] }) {
    this.canvas = el("canvas", { class: "cells", role: "img", "aria-label": label });
    this.overlay = svg("svg", { class: "overlay", "aria-hidden": "true" });
    this.node = el("div", { class: "map" }, this.canvas, this.overlay);
    this.axes = axes;
    this.spec = null;
    this.overlay.addEventListener("pointermove", (event) => onhover?.(this.cellAt(event)));
    this.overlay.addEventListener("pointerleave", () => onhover?.(null));
    this.overlay.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) onclick?.(cell);
    });
    new ResizeObserver(() => this.layout()).observe(this.node);
  }

  describe(label) {
    this.canvas.setAttribute("aria-label", label);
  }

  /** Rows, columns, their labels and classes, and boxes [[row, column]] by class; in the order that is drawn. */
  frame(spec) {
    this.spec = spec;
    this.layout();
  }

  layout() {
    if (!this.spec) return;
    const width = this.node.clientWidth;
    if (!width) return;
    const { rows, columns, rowLabels, columnLabels, classes = [], boxes = {}, every = 1 } = this.spec;
    const lanes = every > 1 ? 1 : Math.min(4, Math.ceil((LABEL + 1) / ((width - 24) / columns)));
    const letters = Math.max(...rowLabels.map((text) => short(text).length));
    const lane = Math.max(LABEL + 2, 5.6 * letters + 3);
    const left = lanes * lane + 4;
    const cell = Math.min(LARGEST, (width - left - 2) / columns);
    const bottom = lanes * (LABEL + 2) + 6;
    const height = cell * rows + bottom;
    Object.assign(this, { cell, left });
    this.node.style.height = `${height}px`;
    Object.assign(this.canvas.style, { left: `${left}px`, width: `${cell * columns}px`, height: `${cell * rows}px` });
    this.overlay.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.size = [width, height];
    const marks = svg("g", { class: "labels" });
    marks.style.fontSize = `${Math.max(LABEL, Math.min(13, 0.72 * cell))}px`;
    rowLabels.forEach((text, i) => {
      if (every > 1 && Number(text) % every) return;
      const x = left - 4 - (i % lanes) * lane;
      marks.append(svg("text", { x, y: (i + 0.5) * cell + 3, "text-anchor": "end", class: classes[i] ?? "" }, short(text)));
    });
    columnLabels.forEach((text, j) => {
      if (every > 1 && Number(text) % every) return;
      const y = rows * cell + LABEL + 2 + (j % lanes) * (LABEL + 2);
      marks.append(svg("text", { x: left + (j + 0.5) * cell, y, "text-anchor": "middle", class: classes[j] ?? "" }, short(text)));
    });
    const drawn = svg("g", { class: "boxes" });
    for (const [kind, cells] of Object.entries(boxes))
      for (const [i, j] of cells)
        drawn.append(kind === "other" ? svg("circle", { class: kind, cx: left + (j + 0.5) * cell, cy: (i + 0.5) * cell, r: cell / 2 }) : svg("rect", { class: kind, x: left + j * cell, y: i * cell, width: cell, height: cell }));
    this.rowMark = svg("rect", { class: "mark", x: left, width: cell * columns, height: cell, visibility: "hidden" });
    this.columnMark = svg("rect", { class: "mark", y: 0, width: cell, height: cell * rows, visibility: "hidden" });
    const border = svg("rect", { class: "border", x: left, y: 0, width: cell * columns, height: cell * rows });
    this.overlay.replaceChildren(border, marks, drawn, this.rowMark, this.columnMark);
    this.mark(this.marked?.row ?? null, this.marked?.column ?? null);
  }

  /** Mark a row, a column, or neither. */
  mark(row, column) {
    this.marked = { row, column };
    if (!this.rowMark) return;
    this.rowMark.setAttribute("visibility", row === null ? "hidden" : "visible");
    this.columnMark.setAttribute("visibility", column === null ? "hidden" : "visible");
    if (row !== null) this.rowMark.setAttribute("y", row * this.cell);
    if (column !== null) this.columnMark.setAttribute("x", this.left + column * this.cell);
  }

  cellAt(event) {
    if (!this.spec) return null;
    const box = this.overlay.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - this.left) / this.cell);
    const row = Math.floor((event.clientY - box.top) / this.cell);
    const inside = row >= 0 && column >= 0 && row < this.spec.rows && column < this.spec.columns;
    return inside ? { row, column } : null;
  }

  /** A drawing of its own for the exports: the overlay with the cells as an image behind it. */
  drawing() {
    const copy = this.overlay.cloneNode(true);
    const { rows, columns } = this.spec;
    const place = { x: this.left, y: 0, width: this.cell * columns, height: this.cell * rows };
    copy.prepend(svg("image", { ...place, href: this.canvas.toDataURL(), preserveAspectRatio: "none", "image-rendering": "pixelated" }));
    return { node: copy, source: this.overlay, width: this.size[0], height: this.size[1] };
  }
}
