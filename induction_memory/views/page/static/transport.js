// The slider over training, with ticks at true steps, births as chips, play and keys.

import { variableOf } from "./colour.js";
import { el } from "./dom.js";
import { nearest } from "./run.js";

const BEAT = 450; // milliseconds of a step while it plays

export class Transport {
  constructor(page) {
    this.page = page;
    this.slider = el("input", { type: "range", min: 0, step: 1, id: "slider", "aria-label": "Step of training", oninput: () => page.store.set({ at: this.positions[Number(this.slider.value)] }) });
    this.play = el("button", { type: "button", class: "play", "aria-label": "Play", onclick: () => this.toggle() }, "▶");
    this.now = el("output", { class: "now", for: "slider" });
    this.ticks = el("div", { class: "ticks", "aria-hidden": "true" });
    this.track = el("div", { class: "track" }, this.slider, this.ticks);
    this.chips = el("div", { class: "chips", role: "group", "aria-label": "Births: jump to a step" });
    this.align = el("select", { "aria-label": "Runs are aligned by", onchange: () => page.realign(this.align.value) }, el("option", { value: "step" }, "aligned by step"), el("option", { value: "birth" }, "aligned by birth"));
    const tools = el("div", { class: "tools" }, el("span", { class: "caption" }, "one place per checkpoint"), page.runs.length > 1 ? this.align : null);
    this.node = el("div", { class: "transport" }, el("div", { class: "row" }, this.play, this.now, this.track), el("div", { class: "row under" }, this.chips, tools));
    new ResizeObserver(() => this.drawTicks()).observe(this.track);
    this.renew();
  }

  /** Positions of all runs together, for the present alignment. */
  renew() {
    const { page } = this;
    this.positions = [...new Set(page.runs.flatMap((run) => run.positions(page.state.align)))].sort((a, b) => a - b);
    this.slider.max = this.positions.length - 1;
    this.chips.replaceChildren(...page.runs.flatMap((run) => this.chipsOf(run)));
    this.drawTicks();
  }

  chipsOf(run) {
    const { page } = this;
    const prefix = page.runs.length > 1 ? `${run.meta.name}: ` : "";
    const chip = (text, step, kind, title) => el("button", { type: "button", class: `chip ${kind}`, title, onclick: () => page.goto(run, step) }, prefix + text);
    const births = run.meta.births.map((birth) =>
      chip(`${birth.memory}${run.severalHeads ? ` ${birth.head}` : ""} born, step ${Math.round(birth.change)}`, birth.change, variableOf(birth.memory).slice(2), `95 % interval: ${Math.round(birth.change_low)} to ${Math.round(birth.change_high)}`));
    const roles = (run.meta.causes.births ?? []).map((birth) => chip(`${birth.head} ${birth.role}, step ${birth.step}`, birth.step, "plain", "first measured step from which the head keeps this role"));
    return [...births, ...roles];
  }

  drawTicks() {
    const width = this.track.clientWidth;
    if (!width) return;
    const count = this.positions.length;
    const every = Math.max(1, Math.ceil((count * 42) / width));
    const place = (i) => `${8 + ((width - 16) * i) / Math.max(1, count - 1)}px`;
    const marks = this.positions.map((position, i) => {
      const labelled = (i % every === 0 && count - 1 - i >= every * 0.7) || i === count - 1;
      const node = el("i", { class: labelled ? "labelled" : "" }, labelled ? String(position) : "");
      node.style.left = place(i);
      return node;
    });
    const births = this.page.runs.flatMap((run) =>
      run.meta.births.map((birth) => {
        const offset = this.page.state.align === "birth" ? run.birth : 0;
        const node = el("i", { class: `born ${variableOf(birth.memory).slice(2)}` });
        node.style.left = place(fractional(this.positions, birth.change - offset));
        return node;
      }),
    );
    this.ticks.replaceChildren(...marks, ...births);
  }

  get index() {
    return nearest(this.positions, this.page.state.at);
  }

  update(state) {
    const { page, index } = this;
    this.slider.value = index;
    this.align.value = state.align;
    const steps = page.runs.map((run) => run.view(state).step);
    const same = steps.every((step) => step === steps[0]);
    const said = same ? `step ${steps[0]}` : page.runs.map((run, i) => `${run.meta.name} step ${steps[i]}`).join(", ");
    this.slider.setAttribute("aria-valuetext", `${said}, checkpoint ${index + 1} of ${this.positions.length}`);
    this.now.replaceChildren(...(same ? ["step ", el("b", {}, String(steps[0]))] : steps.flatMap((step, i) => [i ? " · " : "steps ", el("b", {}, String(step))])));
  }

  /** Go some checkpoints on or back. */
  move(by) {
    const next = Math.max(0, Math.min(this.positions.length - 1, this.index + by));
    this.page.store.set({ at: this.positions[next] });
  }

  toggle() {
    if (this.timer) return this.stop();
    if (this.index === this.positions.length - 1) this.page.store.set({ at: this.positions[0] });
    this.play.textContent = "❚❚";
    this.play.setAttribute("aria-label", "Pause");
    this.timer = setInterval(() => {
      this.move(1);
      if (this.index === this.positions.length - 1) this.stop();
    }, BEAT);
    return undefined;
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "▶";
    this.play.setAttribute("aria-label", "Play");
  }

  key(event) {
    const jump = event.shiftKey ? 5 : 1;
    const actions = {
      ArrowLeft: () => this.move(-jump),
      ArrowRight: () => this.move(jump),
      Home: () => this.move(-this.positions.length),
      End: () => this.move(this.positions.length),
      " ": () => this.toggle(),
      "?": () => this.page.help(),
      Escape: () => this.page.store.set({ query: null }),
    };
    const action = actions[event.key];
    const typing = event.target.closest("input[type=text], textarea, select");
    const pressing = event.key === " " && event.target.closest("button, summary, input[type=checkbox]");
    const closing = event.key === "Escape" && document.querySelector("dialog[open]"); // the browser closes it
    const reading = event.target.closest("[role=listbox], [role=region], dialog, pre") && event.key !== "?" && event.key !== "Escape";
    if (!action || typing || pressing || reading || closing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  }
}

/** Where a number lies between the entries of a sorted list, as a fraction of an index. */
function fractional(list, x) {
  const after = list.findIndex((value) => value >= x);
  if (after <= 0) return after < 0 ? list.length - 1 : 0;
  return after - 1 + (x - list[after - 1]) / (list[after] - list[after - 1]);
}
