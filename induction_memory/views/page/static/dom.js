// Elements, numbers and files. Text only ever reaches the page as text nodes: no markup is ever parsed.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, listeners (`onclick`) and children (nodes or strings). */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A number as it is read: `digits` after the point, a true minus sign, a dash for what is missing. */
export function number(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−");
}

/** A share as percent. */
export function percent(value, digits = 1) {
  return Number.isNaN(value) || value === null ? "–" : `${(100 * value).toFixed(digits)}\u00a0%`;
}

/** Digits after the point that a number known to within `quantum` deserves, at most three. */
export function digitsOf(quantum) {
  return Math.max(0, Math.min(3, Math.floor(-Math.log10(quantum || 1e-9))));
}

/** Hand a file to the reader. */
export function save(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** A cell of a CSV file, quoted where it must be. */
export function csvCell(value) {
  const text = value === null || value === undefined || Number.isNaN(value) ? "" : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Rows as CSV. */
export function csvText(rows) {
  return rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
}
