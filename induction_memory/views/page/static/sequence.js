// The sequence as text: attention of the pointed query behind it, the next token's probability under it; the live pass.

import { kindOf } from "./attention.js";
import { classOf } from "./causes.js";
import { variableOf } from "./colour.js";
import { el, number, percent, svg } from "./dom.js";
import { Panel } from "./panel.js";

const BAR = 150; // pixels of a sure prediction

export class SequencePanel {
  constructor(page, run) {
    Object.assign(this, { page, run });
    const choices = run.meta.sequences.map((_, i) => el("option", { value: i }, `sequence ${i + 1}`));
    this.select = el("select", { "aria-label": "Sequence", onchange: () => page.store.set({ seq: Number(this.select.value), query: null, text: "" }) }, ...choices);
    const tools = run.meta.sequences.length > 1 ? [this.select] : [];
    this.panel = new Panel({
      id: `sequence-${run.number}`,
      title: "Sequence",
      caption: [`Behind each token: how much the query attends to it. Under it: the probability that the model gave to ${run.meta.next_token ? "the token that came next" : "the right output, where one is asked"}. `, ...run.meta.words.marked.flatMap((word, i) => [el("span", { class: `${["trigger", "output"][i]} sample` }, word), i + 1 < run.meta.words.marked.length ? " " : ". "]), "Click a token to pin it as the query."],
      of: page.nameOf(run), make: () => this.exported(),
      tools,
    });
    this.strip = el("div", { class: "strip", role: "listbox", "aria-label": "Tokens: choose the query", tabindex: "0" });
    this.strip.addEventListener("keydown", (event) => this.key(event));
    this.said = el("p", { class: "said" });
    this.bars = svg("svg", { class: "bars", role: "img", "aria-label": "Most likely next tokens" });
    this.losses = el("dl", { class: "losses" });
    this.panel.body.append(this.strip, el("div", { class: "prediction" }, el("div", {}, this.said, this.bars), this.losses));
    this.panel.body.append(run.model ? this.controls() : el("p", { class: "note" }, `Stored maps only: the page does not run this model, because ${run.meta.why_not_live}.`));
    this.node = this.panel.node;
  }

  controls() {
    const { page, run } = this;
    this.text = el("input", { type: "text", spellcheck: "false", autocomplete: "off", maxlength: 4000, placeholder: "Type a text and the model reads it", "aria-label": "Text for the model to read", oninput: () => page.store.set({ text: this.text.value, query: null }) });
    this.switches = run.parts.map((part) => {
      const box = el("input", { type: "checkbox", checked: true, onchange: () => page.toggle(part) });
      return { part, box, node: el("label", { class: `switch ${classOf(part)}` }, box, part) };
    });
    this.erased = el("div", { class: "erased" });
    this.reset = el("button", { type: "button", class: "reset", onclick: () => page.store.set({ text: "", off: [], erased: [], query: null }) }, "Reset");
    this.note = el("p", { class: "note", role: "status" });
    return el("div", { class: "live" }, el("div", { class: "typed" }, this.text, this.reset), el("div", { class: "switches", role: "group", "aria-label": "Parts of the model" }, el("span", { class: "name" }, "On:"), ...this.switches.map((s) => s.node)), this.erased, this.note);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const view = this.run.view(this.page.state);
    const { query } = this.page.pointed(this.run, view);
    this.page.store.set({ query: Math.max(0, Math.min(view.sequence.tokens.length - 1, query + step)) });
  }

  update(state, view) {
    if (this.shown !== view.sequence) {
      this.shown = view.sequence;
      this.tokens = view.sequence.tokens.map((id, t) => {
        const node = el("span", { class: `token ${kindOf(view.sequence, t)}`, role: "option", id: `token-${this.run.number}-${t}` }, el("b", {}, this.run.name(id)), el("i", {}));
        node.addEventListener("pointerenter", () => this.page.hover({ run: this.run.number, query: t, token: id }));
        node.addEventListener("pointerleave", () => this.page.hover(null));
        node.addEventListener("click", () => this.page.pin(t));
        return node;
      });
      this.strip.replaceChildren(...this.tokens);
    }
    if (view.row !== undefined) this.select.value = String(view.row);
    view.right.forEach((p, t) => {
      this.tokens[t].style.setProperty("--p", Number.isNaN(p) ? 0 : p.toFixed(3));
    });
    const rows = [["loss of this sequence", number(view.loss, 3)]];
    if (view.sequence.in_context.length) rows.push([this.run.meta.words.main, number(view.lossInContext, 3)]);
    if (view.changed) rows.push(["loss of the intact model", number(view.lossBefore, 3)]);
    this.losses.replaceChildren(...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
    if (this.run.model) this.updateControls(state, view);
    this.panel.refreshTable();
    this.point(state, view);
  }

  updateControls(state, view) {
    if (this.text.value !== state.text) this.text.value = state.text;
    for (const { part, box, node } of this.switches) {
      box.checked = !view.off.includes(part);
      node.classList.toggle("off", !box.checked);
    }
    this.erased.replaceChildren(
      ...view.erased.map((cell) => {
        const memory = this.run.memoryOf(cell);
        const key = state.erased.find((text) => text === `${cell.memory}|${cell.index}|${cell.row}|${cell.column}`);
        return el("button", { type: "button", class: `chip ${variableOf(cell.memory).slice(2)}`, onclick: () => this.page.store.set({ erased: state.erased.filter((text) => text !== key) }) }, `${cell.memory}: ${this.page.pairName(this.run, memory, cell)} erased ×`);
      }),
    );
    this.reset.hidden = !(view.live || state.text);
    const { tolerance } = this.run.meta.live;
    const said = [];
    if (view.typed?.unknown) said.push(`${view.typed.unknown} characters outside the vocabulary were left out.`);
    if (view.typed?.cut) said.push(`Only the first ${this.run.meta.live.n_ctx} tokens are read.`);
    if (view.live) said.push(`Computed in this page from weights in 8 bits: attention is within ${tolerance.attention_max.toPrecision(1)} of the model’s own on the stored sequences (on average ${tolerance.attention_mean.toPrecision(1)}).`);
    this.note.textContent = said.join(" ");
  }

  point(state, view) {
    const { query, token } = this.page.pointed(this.run, view);
    const n = view.sequence.tokens.length;
    const head = this.page.focusOf(this.run);
    const map = view.map(head);
    const colour = "--attention";
    this.strip.style.setProperty("--of", `var(${colour})`);
    this.strip.setAttribute("aria-activedescendant", this.tokens[query].id);
    this.tokens.forEach((node, t) => {
      node.style.setProperty("--a", t <= query ? map[query * n + t].toFixed(3) : 0);
      node.classList.toggle("query", t === query);
      node.classList.toggle("ahead", t > query);
      node.classList.toggle("same", view.sequence.tokens[t] === token);
      node.setAttribute("aria-selected", String(t === query));
    });
    const truth = view.sequence.targets[query];
    const name = (id) => `“${this.run.name(id)}”`;
    const right = this.run.meta.next_token ? "comes" : "the right output is";
    const born = this.run.birthsOf(view.sequence.tokens[query]).map(([memory, step]) => `${memory} ${step === null ? "never" : `step ${step}`}`);
    this.said.replaceChildren(el("b", {}, `After ${name(view.sequence.tokens[query])} (${query + 1})`), truth < 0 ? "" : ` ${right} “${this.run.outputName(truth)}”, given ${percent(view.right[query])}.`, born.length ? el("span", { class: "born" }, ` Recalled from: ${born.join(", ")}.`) : "");
    this.drawBars(view.likely(query), truth);
  }

  drawBars(likely, truth) {
    const left = Math.max(24, 7 * Math.max(...likely.map(([id]) => this.run.outputName(id).length)));
    this.bars.setAttribute("viewBox", `0 0 ${left + BAR + 86} ${likely.length * 18}`);
    this.bars.replaceChildren(
      ...likely.flatMap(([id, p], i) => [
        svg("text", { x: left, y: 18 * i + 13, "text-anchor": "end", class: id === truth ? "token truth" : "token" }, this.run.outputName(id)),
        svg("rect", { x: left + 8, y: 18 * i + 3, width: Math.max(1, BAR * p), height: 12, rx: 1.5, class: id === truth ? "truth" : "" }),
        svg("text", { x: left + 14 + BAR * p, y: 18 * i + 13, class: "value" }, percent(p)),
      ]),
    );
  }

  exported() {
    const view = this.run.view(this.page.state);
    const { query } = this.page.pointed(this.run, view);
    const rows = [["run", "step", "position", "token", "next", "probability_of_next"]];
    const { vocabulary, outputs } = this.run.meta;
    view.sequence.tokens.forEach((id, t) => rows.push([this.run.meta.name, view.step, t + 1, vocabulary[id], outputs[view.sequence.targets[t]] ?? "", view.right[t]]));
    const copy = this.bars.cloneNode(true);
    return {
      name: `${this.run.meta.name}-prediction-step-${view.step}`,
      drawings: [{ node: copy, source: this.bars, width: BAR + 110, height: 90, title: `${this.run.meta.name}, step ${view.step}: after “${this.run.name(view.sequence.tokens[query])}” (${query + 1})` }],
      rows,
      python: this.page.snippet(this.run, "prediction", view),
    };
  }
}
