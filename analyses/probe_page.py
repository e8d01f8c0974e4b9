"""docs/probes.md: what each probe measures, and its value on models whose circuit is known.

`python -m analyses.probe_page --docs docs/probes.md` measures the controls (`probe_controls.py`) and writes the
page, with one small table for each question that several probes answer.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analyses.probe_controls import D_MODEL, D_MODEL_WITH_W_F, LENGTH, expected, failures, measure_controls
from induction_memory.errors import run_script
from induction_memory.probes import tables

PLACE = re.compile(r"(W_(?:K1|K2|O2|F)(?:_first64|_causal|_triggers|_spurious)?)|(\d)$")
"""The memory, or the layer at the end, in a probe's name."""
MEMORY = r"W_(K1|K2|O2)(_first64|_causal|_triggers|_spurious)?"


class Question(NamedTuple):
    title: str
    probes: str
    """Pattern of their names."""
    asks: str
    shows: str
    """What the table shows, in words."""


QUESTIONS = (
    Question(
        "Recall",
        MEMORY,
        "Which share of its pairs does each matrix recall?",
        "Everything that was stored is recalled. Shuffled and random matrices recall nothing, except some of "
        "the five triggers by chance. With fixed triggers `W_K2` stores five of 65 tokens.",
    ),
    Question(
        "Margin",
        f"{MEMORY}_margin",
        "How far is the target ahead of its best rival?",
        "Positive where the pairs are stored, negative where wrong pairs are. The size depends on the scale of "
        "the weights: compare signs.",
    ),
    Question(
        "Rank",
        f"{MEMORY}_rank",
        "In which place is the target?",
        "It is first where the pairs are stored, and in the middle of the candidates by chance.",
    ),
    Question(
        "Signal to interference",
        f"{MEMORY}_sir",
        "How large is the score of a right pair beside the noise of the others?",
        "The known ranges follow from the dimension (formula in `analyses/probe_controls.py`).",
    ),
    Question(
        "Softmax probability",
        f"{MEMORY}_soft",
        "Which probability does a softmax over the scores give the partner?",
        "Scores of the built models are large, so the probability of a stored pair is near 1.",
    ),
    Question(
        "Recall with the key fixed",
        f"{MEMORY}_reversed",
        "Recall as the paper prints it: queries compete for a key.",
        "The models store exact pairs, so both directions agree.",
    ),
    Question(
        "Global bigrams",
        r"W_F_kl.*",
        "How far is the feed-forward from the global bigrams, in nats?",
        "It is close where the bigrams were stored. The columns without a feed-forward are empty.",
    ),
    Question(
        "Size of a matrix",
        r"(norm|distance)_.*",
        "How large is each matrix?",
        "Shuffling keeps the size. So size says nothing about what is stored.",
    ),
    Question(
        "Likeness to the ideal memory",
        r"(cosine|explained)_.*",
        "How much of the matrix is the memory we look for?",
        "All of it where it was built, none of it in shuffled and random matrices.",
    ),
    Question(
        "Rank of the spectrum",
        r"(soft|stable)_rank_.*",
        "Over how many directions is a matrix spread?",
        "A memory of five pairs has rank five. Shuffling hardly changes the spectrum, so this does not say whether the "
        "pairs are right.",
    ),
    Question(
        "Overlap of two memories",
        r"overlap_.*",
        "Do `W_F` and `W_O2` write the same thing?",
        "They do not, in either model.",
    ),
    Question(
        "Composition",
        r"[KQV]_composition.*",
        "Does layer 2 read what layer 1 writes, more than a random matrix would?",
        "Only by its keys (K), as the paper's circuit does. `_z` is in standard deviations of the random "
        "matrices. It is as large with shuffled pairs: composition does not see which token matches which.",
    ),
    Question(
        "Copying",
        r"copying.*",
        "Does a layer raise the logit of the token that it attends to?",
        "Layer 2 does, unless its pairs are shuffled.",
    ),
    Question(
        "Attention to the previous token",
        r"previous_.*",
        "Which layer looks back?",
        "Layer 1, where that was stored.",
    ),
    Question(
        "Attention to what followed before",
        r"induction_.*",
        "Which layer attends to tokens that followed earlier occurrences of the query?",
        "Layer 2 does. With fixed triggers it does so only at triggers, so `_other` is 0. With random triggers it "
        "does so at every repeated token. Uniform attention scores 0.",
    ),
    Question(
        "The attended token",
        r"(match|attended_is_target|predicted_is_attended).*",
        "Is the attended token the right one, and is it predicted?",
        "In layer 2 of the built models both hold.",
    ),
    Question(
        "Standard head scores",
        r"repeated_.*",
        "What do the usual scores on repeated random tokens say?",
        "A perfect induction head scores 0.53 here and not 1, because 64 random tokens out of 65 repeat by chance too.",
    ),
    Question(
        "Spread of attention",
        r"entropy.*",
        "How spread is attention?",
        "`entropy` is in nats, `entropy_share` is the share of the entropy of uniform attention.",
    ),
    Question(
        "Loss",
        r"loss.*",
        "How large is the loss, by kind of position?",
        "Built memories are confident. So where they know nothing, their loss is far above the loss of a "
        "uniform guess (4.17): at first occurrences, and without `W_F` at positions that are not triggers.",
    ),
    Question(
        "Accuracy",
        r"accuracy.*",
        "How often is the model right, by kind of position?",
        "In context nearly always. The first occurrence of a trigger cannot be known. The global bigrams are "
        "known with `W_F` only.",
    ),
    Question(
        "Distance to predictors",
        r"kl_.*|bayes_loss|excess.*",
        "How far is the model from predictors that are known, in nats?",
        "The model that stores everything is the nearest to Bayes.",
    ),
    Question(
        "Direct logit attribution",
        r"dla_.*",
        "Which part writes the logit of the right output?",
        "The heads of layer 2, by what `W_O2` makes of the attended token.",
    ),
)


def page(found: pd.DataFrame) -> str:
    """The page: the calls, what each probe measures by family, and the controls with the known ranges."""
    lines = [INTRODUCTION]
    for family, module in tables.FAMILIES.items():
        about = (module.__doc__ or "").split("\n\n")[0].strip()
        lines += [f"\n## {family}\n", about, "", *(_memories() if family == "recall" else [])]
        lines += ["| probe | what it measures | for |", "| --- | --- | --- |"]
        lines += [f"| `{name}` | {_escaped(text)} | {of} |" for name, text, of in together(module.PROBES)]
    wrong = failures(found)
    verdict = "Every value with a known range is inside it." if not wrong else "Outside: " + "; ".join(wrong) + "."
    lines += [CONTROLS.format(d=D_MODEL, larger=D_MODEL_WITH_W_F, T=LENGTH, verdict=verdict)]
    measured = found.loc[found.notna().any(axis=1)]
    for title, pattern, asks, shows in QUESTIONS:
        lines += [
            f"### {title}\n",
            f"{asks} {shows}\n",
            *_table(measured.loc[measured.index.str.fullmatch(pattern)]),
            "",
        ]
    unmeasured = ", ".join(f"`{name}`" for name in found.index.difference(measured.index, sort=False))
    lines += [
        "### Not measured\n",
        f"These models have no history, no first feed-forward and no LayerNorm, which these probes need: {unmeasured}.",
    ]
    return "\n".join([*lines, ""])


def question_of(probe: str) -> list[str]:
    """The titles of the tables in which a probe stands: exactly one."""
    return [title for title, pattern, _, _ in QUESTIONS if re.fullmatch(pattern, probe)]


def _table(rows: pd.DataFrame) -> list[str]:
    ranges = expected(D_MODEL, LENGTH)
    lines = [f"| probe | {' | '.join(rows.columns)} |", "| --- |" + " ---: |" * len(rows.columns)]
    for probe, values in zip(rows.index, rows.to_numpy(), strict=True):
        known = [ranges[control].get(probe) for control in rows.columns]
        lines.append(f"| `{probe}` | {' | '.join(map(_cell, values, known))} |")
    return lines


def together(probes: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, meaning and places: one row for probes that ask the same of several memories, layers or occurrences."""
    groups: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for name, probe in probes.items():
        kind, where = _kind(name)
        own = _meaning(kind, probe.about)
        groups.setdefault((kind, _general(own, where)), []).append((name, own, where))
    rows = []
    for (kind, text), found in groups.items():
        if len(found) == 1:
            rows.append((*found[0][:2], ""))
        else:
            places = [f"`{where}`" for _, _, where in found]
            rows.append((kind, text, (", " if "<memory>" in kind else ",\u00a0").join(places)))
    return rows


def _kind(name: str) -> tuple[str, str]:
    """A probe's name without its memory, layer or occurrence, and what was left out."""
    place = PLACE.search(name)
    if place is None:
        return name, ""
    where = next(filter(None, place.groups()))
    stands_for = "<memory>" if where.startswith("W") else "<n>" if "occurrence" in name else "<layer>"
    return name.replace(where, stands_for, 1), where


def _meaning(kind: str, about: str) -> str:
    """What a probe measures: the reading alone where one table lists the memories, the whole for a special recall."""
    pairs, _, reading = about.rpartition("; ")
    return f"recall of {pairs}" if reading.startswith("recall") and kind != "<memory>" else reading


def _general(text: str, where: str) -> str:
    """The meaning for any memory, layer or occurrence."""
    text = text.removeprefix(f"{where}: ").removeprefix(f"layer {where}: ")
    text = re.sub(rf"(layer |Phi_){where}\b", r"\1<layer>", text) if where.isdigit() else text
    return text.replace(f"occurrence {where}", "occurrence <n>") if where else text


def _memories() -> list[str]:
    """A table of the memories and the pairs that each is asked for."""
    probes = tables.FAMILIES["recall"].PROBES.items()
    rows = [(name, probe.about.partition("; ")[0]) for name, probe in probes if _kind(name)[0] == "<memory>"]
    lines = ["Which pairs should each memory recall? The arrow points to the target.", ""]
    lines += ["| memory | score and right answer |", "| --- | --- |"]
    return [*lines, *(f"| `{name}` | {_escaped(pairs)} |" for name, pairs in rows), ""]


def _cell(value: float, known: tuple[float, float] | None) -> str:
    if np.isnan(value):
        return ""
    text = f"{value + 0.0:.2f}".replace("-0.00", "0.00")
    if known is None:
        return text
    low, high = known
    if low == high:
        return f"**{text}** (= {low:g})"
    return f"**{text}** (≥ {low:.3g})" if np.isinf(high) else f"**{text}** ({low:.3g} to {high:.3g})"


def _escaped(text: str) -> str:
    """Bars and stars as themselves inside a table."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


INTRODUCTION = """# Every probe, and its controls

<!-- Written by `python -m analyses.probe_page --docs docs/probes.md`; edit that instead. -->

**What does each probe measure, and can it be trusted?** The first part of this page lists every probe by family. The
second part, [controls](#controls), has its value on models whose circuit is known.

```python
import torch

import induction_memory as im

run = im.load("induction-alone")
model, task = run.model(step=600), run.task
im.probes.recall(run)                                        # step x probe: the paper's recalls
im.probes.table(run, ["W_O2", "attention"], step=[0, 300])  # tidy: step, probe, head, value
im.probes.table(model, ["recall", "weights"], task=task)     # any model; "all" for every probe
```

`table` takes probes or families by name, on a trajectory, a model or stacked weights. A probe that a model cannot have
is left out, and `table.attrs["skipped"]` says why. Heads are named as in every table of the package: `L2H1` is layer 2,
head 1, and `L1H3>L2H1` a pair of heads. The head is empty for a probe that has none. A trajectory's results are kept
beside it in `.cache/probes`, keyed by its content, the probe, the arguments and the code. The folder may be deleted at
any time.

A function of your own is a probe too. It receives the weights of some steps and returns one value per step, then per
head of the layers that it names:

```python
@im.probes.register("norm_of_W_O", about="Frobenius norm of layer 2's output matrix", layers=(2,))
def norm(subject):
    return torch.linalg.matrix_norm(subject.memory("W_O2"))

im.probes.table(run, ["W_O2", "norm_of_W_O"])
```

With `of="activations"` it receives one step's logits, attention patterns and batch instead.
[Extending](extending.md#a-probe) says what it can read. These calls answer questions that a table of probes does not:

| call | gives |
| --- | --- |
| `im.probes.births(run, "W_K2")` | birth step and strength of every association, against frequency or position |
| `im.probes.trends(births)` | their rank correlations |
| `im.probes.score_matrix(run, "W_O2", step=300)` | all scores v_j^T W u_i, labelled; `im.memory_map` draws them |
| `im.probes.spectrum(run, "W_K1")` | singular values at every step |
| `im.probes.change_points(runs, [...])` | when each curve changes, with a bootstrap interval |
| `im.probes.birth_order(runs)` | the order W_O2, W_K2, W_K1 with its exact test |
| `im.probes.lead_lag(run, [...])` | which curve leads, by how many steps |
| `im.probes.head_scores(model)` | the standard previous-token and induction scores, any TransformerLens model |
| `im.probes.recall(model, W, inputs=u, outputs=v)` | recall between chosen sets, any TransformerLens model |
| `im.probes.recall(model, tokens=[...])` | recall between tokens through the QK and OV circuits of every head |

W_K1 also takes any window within the sequence, `W_K1[32:96]`, each with `_causal`. The attention and attribution
probes take any layer's number, and `loss_occurrence<n>` any n.

In a model with LayerNorm there are three recalls of W_K1 and W_K2. `W_K2` has the norm's linear part folded into the
matrix. `W_K2_normed` applies the model's own norms to each embedding, as the model does. The two differ, because recall
compares keys, which have different norms. `W_K2_raw` leaves the norms out, as the authors measured it. In a
model without LayerNorm all three are equal, and only the first is measured. `_reversed` fixes the key and lets queries
compete, which is the formula as the paper prints it."""

CONTROLS = """
## Controls

Can a probe be trusted? Here is every probe on models whose circuit is known, and on models that have none.

| model | what it is |
| --- | --- |
| constructed | the paper's memories for five fixed triggers, by hand, no feed-forward (d = {d}, T = {T}) |
| random triggers | the same for random triggers: `W_K2` stores every token |
| with W_F | the global bigrams stored as well (d = {larger}) |
| shuffled | each matrix stores the wrong pairs of the same vectors |
| untrained | random weights |

Values in bold are known beforehand, with their range in brackets. The others are for comparison. {verdict}
"""


def main(docs: Path) -> None:
    """Measure every probe on the controls and write the page.

    Args:
        docs: the file to write.
    """
    docs.write_text(page(measure_controls()), encoding="utf-8")


if __name__ == "__main__":
    run_script(main, __doc__)
