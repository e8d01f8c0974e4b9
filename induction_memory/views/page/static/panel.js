// The frame of every panel: a heading, a caption, exports, and the table behind the picture.

import { csvText, el, save, svg } from "./dom.js";

const COPIED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "font-family", "font-size", "font-weight", "text-anchor", "visibility"];
const MOST_ROWS = 400; // of the table on the page; the CSV has them all

/** A section with a heading and a body. `make` gives what is exported: {name, drawings, rows, python}. */
export class Panel {
  constructor({ id, title, caption, make, tools = [], of = "" }) {
    const full = of ? `${title}, ${of}` : title;
    this.make = make;
    this.id = id;
    this.body = el("div", { class: "body" });
    this.code = el("pre", { class: "code", hidden: true, tabindex: "0", "aria-label": "Python" });
    this.table = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${full}: table` });
    const button = (text, action, label) => el("button", { type: "button", onclick: action, "aria-label": label }, text);
    const numbers = el("details", { class: "numbers" }, el("summary", {}, "Table"), this.table);
    numbers.addEventListener("toggle", () => this.refreshTable(numbers.open));
    this.numbers = numbers;
    this.exports = el(
      "div",
      { class: "exports", role: "group", "aria-label": `Export ${full}` },
      button("PNG", () => this.png(), `${full} as PNG`),
      button("SVG", () => this.svgFile(), `${full} as SVG`),
      button("CSV", () => save(`${this.make().name}.csv`, new Blob([csvText(this.make().rows)], { type: "text/csv" })), `${full} as CSV`),
      button("Python", () => this.python(), `The line of Python for ${full}`),
    );
    this.node = el(
      "section",
      { class: `panel ${id.replace(/-\d+$/, "")}`, id, "aria-label": full },
      el("header", {}, el("h3", { id: `${id}-title` }, title), el("div", { class: "tools" }, ...tools)),
      caption ? el("p", { class: "caption" }, ...(Array.isArray(caption) ? caption : [caption])) : null,
      this.body,
      el("footer", {}, numbers, this.exports, this.code),
    );
  }

  /** Make the table anew where it is open. */
  refreshTable(open = this.numbers.open) {
    if (!open) return;
    const [head, ...rows] = this.make().rows;
    const shown = rows.slice(0, MOST_ROWS);
    const caption = rows.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${rows.length} rows; the CSV has all.` : `${rows.length} rows.`;
    const cell = (value) => el("td", {}, typeof value === "number" ? trimmed(value) : String(value ?? ""));
    this.table.replaceChildren(
      el(
        "table",
        {},
        el("caption", {}, caption),
        el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, ...shown.map((row) => el("tr", {}, ...row.map(cell)))),
      ),
    );
  }

  python() {
    this.code.hidden = !this.code.hidden;
    this.code.textContent = this.make().python;
    if (!this.code.hidden) navigator.clipboard?.writeText(this.code.textContent).catch(() => {});
  }

  /** The drawings under each other as one SVG text, every style written out. */
  svgText() {
    const { drawings } = this.make();
    const width = Math.max(...drawings.map((d) => d.width));
    let y = 12;
    const groups = drawings.map(({ node, source, height, title }) => {
      inline(node, source);
      const group = svg("g", { transform: `translate(12 ${y + (title ? 18 : 0)})` }, ...node.childNodes);
      const text = title ? [svg("text", { x: 12, y: y + 11, "font-family": "sans-serif", "font-size": 12, fill: colourOf("--ink") }, title)] : [];
      y += height + (title ? 18 : 0) + 10;
      return [...text, group];
    });
    const paper = svg("rect", { width: width + 24, height: y + 4, fill: colourOf("--panel") });
    const whole = svg("svg", { viewBox: `0 0 ${width + 24} ${y + 4}`, width: width + 24, height: y + 4 }, paper, ...groups.flat());
    return { text: new XMLSerializer().serializeToString(whole), width: width + 24, height: y + 4 };
  }

  svgFile() {
    save(`${this.make().name}.svg`, new Blob([this.svgText().text], { type: "image/svg+xml" }));
  }

  async png() {
    const { text, width, height } = this.svgText();
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await image.decode();
    const canvas = el("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    canvas.toBlob((blob) => save(`${this.make().name}.png`, blob), "image/png");
  }
}

function trimmed(value) {
  return Number.isInteger(value) ? String(value) : value.toPrecision(6).replace("-", "−");
}

function colourOf(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}

/** Write the computed style of every element of `source` into its copy. */
function inline(copy, source) {
  const [to, from] = [[...copy.querySelectorAll("*")].filter((node) => node.tagName !== "image"), [...source.querySelectorAll("*")]];
  to.forEach((node, i) => {
    const style = getComputedStyle(from[i]);
    for (const name of COPIED) node.setAttribute(name, style.getPropertyValue(name));
    node.removeAttribute("class");
  });
}
