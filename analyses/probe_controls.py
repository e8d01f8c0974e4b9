"""Controls: every probe on models whose circuit is known, and on models that have none.

    constructed        the paper's memories for fixed triggers, no feed-forward
    random triggers    the same for random triggers: W_K2 stores every token
    with W_F           the global bigrams stored as well
    shuffled           each of W_K1, W_K2, W_O2 stores the wrong pairs
    untrained          random weights

`expected` holds the known values: a range per control and probe. Two of them are derived here:

- Signal to interference. A memory of n pairs scores 1 where a pair is stored, and elsewhere a noise of variance
  a + b + n a b, with a and b those of the inner products of two of its inputs, two of its outputs. For random vectors
  that is 1/d, and each random map they have passed adds another 1/d: 2/d for W_V2 w_E, 3/d for Phi_1 w_E.
- The standard induction score. Among n random tokens out of N, repeated once, a perfect head shares its attention
  between all earlier occurrences: at place i of the second half it gives the right one E[1 / (1 + B)], B binomial with
  n - 1 + i trials of probability 1/N, which is N / m (1 - (1 - 1/N)^m) with m = n + i.

`python analyses/probe_controls.py --docs docs/probes.md` writes the page with the probes and this table.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from induction_memory.errors import run_script
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.construction import construct
from induction_memory.probes import catalogue, tidy
from induction_memory.subject import subject
from induction_memory.task.bigrams import BigramTask

PLACE = re.compile(r"(W_(?:K1|K2|O2|F)(?:_first64|_causal|_triggers|_spurious)?)|(\d)$")
"""The memory, or the layer at the end, in a probe's name."""
D_MODEL, D_MODEL_WITH_W_F, LENGTH = 512, 1024, 128
ONE, NEAR_ONE, NONE, CHANCE = (1.0, 1.0), (0.95, 1.0), (0.0, 0.06), (-0.1, 0.1)
INDUCTION = (0.93, 1.0)  # a sequence that begins with a trigger shows a false match at its first position
RECALLS = ("W_K1", "W_K1_first64", "W_K1_causal", "W_K2_triggers", "W_O2")
CORRECTED = tuple(
    f"{what}_{how}"
    for what in ("previous_token", "induction", "induction_repeated", "induction_other")
    for how in ("mass", "argmax")
)


def expected(d: int, length: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Control -> probe -> the smallest and the largest value that its known circuit allows."""
    constructed = (
        dict.fromkeys([*RECALLS, *(f"{name}_rank" for name in RECALLS)], ONE)
        | dict.fromkeys([f"{name}_soft" for name in RECALLS], NEAR_ONE)
        | dict.fromkeys([f"{name}_margin" for name in RECALLS], (1.0, np.inf))
        | {f"W_K1{part}_sir": _around(signal_to_interference(d, length - 1, 1)) for part in ("", "_causal")}
        | {"W_O2_sir": _around(signal_to_interference(d, 65, 2)), "W_O2_spurious": NONE, "W_K2": (0.0, 0.15)}
        | dict.fromkeys([f"{what}_{W}" for what in ("cosine", "explained") for W in ("W_K1", "W_K2", "W_O2")], NEAR_ONE)
        | {"K_composition_z": (10.0, np.inf), "Q_composition_z": (-4.0, 4.0), "V_composition_z": (-4.0, 4.0)}
        | {"copying2": NEAR_ONE, "copying1": (-0.3, 0.3)}
        | dict.fromkeys(["previous_token_mass1", "previous_token_argmax1", "previous_after_trigger1"], NEAR_ONE)
        | dict.fromkeys(["repeated_previous1", "previous_where_attended"], NEAR_ONE)
        | dict.fromkeys([f"{name}2" for name in ("induction_mass", "induction_argmax", "match")], INDUCTION)
        | {"attended_is_target2": INDUCTION, "predicted_is_attended2": NEAR_ONE}
        | {"entropy_share1": (0.0, 0.05), "previous_token_mass2": CHANCE, "induction_other_mass2": CHANCE}
        | {"accuracy_in_context": INDUCTION, "accuracy_first_occurrence": (0.0, 0.1)}
        | {"dla_heads2": (12.0, 18.0), "dla_W_O2_token": (12.0, 18.0), "dla_heads1": (-1.0, 1.0)}
    )
    wrong = (
        dict.fromkeys(["W_K1", "W_K1_first64", "W_K2_triggers", "W_O2", "accuracy_in_context"], NONE)
        | {f"{how}1": CHANCE for how in CORRECTED[:2]}
        | {f"cosine_{W}": CHANCE for W in ("W_K1", "W_O2")}
        | {"copying2": (-0.3, 0.3), "dla_heads2": (-2.0, 2.0)}
    )
    chance = (
        dict.fromkeys(["W_K1", "W_K1_first64", "W_K2", "W_O2", "W_O2_spurious"], NONE)
        | {"W_K1_causal": (0.0, 2.5 * float(np.mean(1 / np.arange(2, length + 1))))}
        | {f"{how}{layer}": CHANCE for how in CORRECTED[::2] for layer in (1, 2)}
        | {f"{how}{layer}": (-0.2, 0.2) for how in CORRECTED[1::2] for layer in (1, 2)}
        | {f"{what}_{W}": CHANCE for what in ("cosine", "explained") for W in ("W_K1", "W_K2", "W_O2")}
        | {f"{letter}_composition_z": (-5.0, 5.0) for letter in "KQV"}
        | {"copying1": (-0.3, 0.3), "copying2": (-0.3, 0.3), "accuracy_in_context": (0.0, 0.1)}
        | {"dla_heads2": (-0.5, 0.5), "overlap_W_F_W_O2": CHANCE, "kl_uniform": (0.0, 1.0)}
    )
    return {
        "constructed": constructed,
        "random triggers": {
            "W_K2": NEAR_ONE,
            "W_K2_sir": _around(signal_to_interference(d, 65, 3)),
            "W_O2": ONE,
            "cosine_W_K2": NEAR_ONE,
            "induction_other_mass2": NEAR_ONE,
            "repeated_induction2": _around(shared_induction(length // 2, 65)),
        },
        "with W_F": {"W_F_kl": (0.0, 0.5), "cosine_W_F": NEAR_ONE, "explained_W_F": NEAR_ONE},
        "shuffled": wrong,
        "untrained": chance,
    }


def signal_to_interference(d: int, n: int, maps: int) -> float:
    """Of n stored pairs of random vectors; `maps` is 1 plus the number of random maps the inputs have passed."""
    a, b = maps / d, 1 / d
    return (a + b + n * a * b) ** -0.5


def shared_induction(n: int, vocab_size: int) -> float:
    """The standard induction score of a perfect head on n random tokens that are repeated once."""
    m = n + np.arange(1, n)
    return float(np.mean(vocab_size / m * (1 - (1 - 1 / vocab_size) ** m)))


def _around(value: float) -> tuple[float, float]:
    return 0.8 * value, 1.2 * value


def models(d: int, d_with_W_F: int, length: int) -> dict[str, tuple[Any, BigramTask]]:
    """The controls: model and task of each."""
    fixed, drawn = BigramTask(length=length, triggers="fixed"), BigramTask(length=length)
    alone = ModelConfig(d_model=d, n_ctx=length, feed_forward="none")
    return {
        "constructed": (construct(fixed, alone), fixed),
        "random triggers": (construct(drawn, alone), drawn),
        "with W_F": (construct(fixed, ModelConfig(d_model=d_with_W_F, n_ctx=length)), fixed),
        "shuffled": (construct(fixed, alone, shuffle=["W_K1", "W_K2", "W_O2"]), fixed),
        "untrained": (build(ModelConfig(d_model=d, n_ctx=length)), fixed),
    }


def measure_controls(
    d: int = D_MODEL,
    d_with_W_F: int = D_MODEL_WITH_W_F,
    length: int = LENGTH,
    names: str | Iterable[str] = tuple(catalogue.FAMILIES),
) -> pd.DataFrame:
    """One row per probe, one column per control; nan where the control cannot have the probe."""
    columns, asked = {}, list[str]()
    for name, (model, task) in models(d, d_with_W_F, length).items():
        columns[name] = tidy.table(model, names, task=task).set_index("probe")["value"]
        asked = [probe.name for probe in catalogue.resolve(names, subject(model, task=task))]
    return pd.DataFrame(columns).reindex(asked)


def failures(found: pd.DataFrame, d: int = D_MODEL, length: int = LENGTH) -> list[str]:
    """Values outside their known range: "control, probe: value not in low to high"."""
    wrong = []
    for control, ranges in expected(d, length).items():
        for probe, (low, high) in ranges.items():
            value = found.loc[probe, control]
            if not low - 1e-6 <= value <= high + 1e-6:
                wrong.append(f"{control}, {probe}: {value:.4g} not in {low:.4g} to {high:.4g}")
    return wrong


def page(found: pd.DataFrame) -> str:
    """docs/probes.md: what each probe measures, and the table of controls with the known ranges."""
    lines = [INTRODUCTION]
    for family, module in catalogue.FAMILIES.items():
        about = (module.__doc__ or "").split("\n\n")[0].strip()
        lines += [f"\n## {family}\n", about, "", "| probe | what it measures | of |", "| --- | --- | --- |"]
        lines += [f"| `{name}` | {_escaped(text)} | {of} |" for name, text, of in together(module.PROBES)]
    lines += [CONTROLS.format(d=D_MODEL, larger=D_MODEL_WITH_W_F, T=LENGTH)]
    lines += [f"| probe | {' | '.join(found.columns)} |", "| --- |" + " ---: |" * len(found.columns)]
    ranges = expected(D_MODEL, LENGTH)
    unmeasured = []
    for probe, values in zip(found.index, found.to_numpy(), strict=True):
        if np.isnan(values).all():
            unmeasured.append(f"`{probe}`")
            continue
        known = [ranges[control].get(probe) for control in found.columns]
        lines.append(f"| `{probe}` | {' | '.join(map(_cell, values, known))} |")
    wrong = failures(found)
    verdict = "Every value with a known range is inside it." if not wrong else "Outside: " + "; ".join(wrong) + "."
    others = (
        f"Not measured, because these models have no history, first feed-forward or LayerNorm: {', '.join(unmeasured)}."
    )
    return "\n".join([*lines, "", verdict, "", others, ""])


def together(probes: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, meaning and places: one row for probes that ask the same of several memories or layers."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for name, probe in probes.items():
        place = PLACE.search(name)
        where = next(filter(None, place.groups())) if place else ""
        kind = name.replace(where, "<memory>" if where.startswith("W") else "<layer>", 1) if where else name
        groups.setdefault(kind, []).append((name, probe.about, where))
    rows = []
    for kind, found in groups.items():
        name, about, where = found[0]
        if len(found) == 1:
            rows.append((name, about, ""))
        else:
            what, _, reading = about.rpartition("; ")
            recalled = reading.startswith("recall") and kind != "<memory>"
            text = (
                f"recall of {what}" if recalled else reading.removeprefix(f"{where}: ").removeprefix(f"layer {where}: ")
            )
            rows.append((kind, text, ", ".join(f"`{place}`" for _, _, place in found)))
    return rows


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

<!-- Written by `python analyses/probe_controls.py --docs docs/probes.md`; edit that instead. -->

```python
import torch

import induction_memory as im

run = im.load("induction-alone")
model, task = run.model(step=600), run.task
im.probes.recall(run)                                      # step x probe: the paper's recalls, one batched pass
im.probes.table(run, ["W_O2", "attention"], steps=[0, 300])  # tidy: step, probe, head, value
im.probes.table(model, ["recall", "weights"], task=task)   # any model; "all" for every probe
```

`table` takes probes or families by name, on a trajectory, a model or stacked weights. A probe that a model cannot have
is left out, and `table.attrs["skipped"]` says why. Heads are named as in every table of the package: `L2H1` is layer 2,
head 1, and `L1H3>L2H1` a pair of heads. The head is empty for a probe that has none. A trajectory's results are kept
beside it in `.cache/probes`, keyed by its content, the probe, the arguments and the code. The folder may be deleted at
any time.

A function of your own is a probe too. It receives the weights of some steps and returns one value per step, then per
head of the layers that it names:

```python
@im.probe("norm_of_W_O", about="Frobenius norm of layer 2's output matrix", layers=(2,))
def norm(subject):
    return torch.linalg.matrix_norm(subject.memory("W_O2"))

im.probes.table(run, ["W_O2", "norm_of_W_O"])
```

With `of="activations"` it receives one step's logits, attention patterns and batch instead. Beside the tables:

| call | gives |
| --- | --- |
| `im.probes.births(run, "W_K2")` | birth step and strength of every association, against frequency or position |
| `im.probes.trends(births)` | their rank correlations |
| `im.probes.score_matrix(run, "W_O2", step=300)` | all scores v_j^T W u_i, labelled |
| `im.probes.spectrum(run, "W_K1")` | singular values at every step |
| `im.probes.change_points(runs, [...])` | when each curve changes, with a bootstrap interval |
| `im.probes.birth_order(runs)` | the order W_O2, W_K2, W_K1 with its exact test |
| `im.probes.lead_lag(run, [...])` | which curve leads, by how many steps |
| `im.probes.head_scores(model)` | the standard previous-token and induction scores, any TransformerLens model |
| `im.probes.recall_between(model, W, inputs=u, outputs=v)` | recall between chosen sets, any TransformerLens model |

W_K1 also takes any window of positions, `W_K1[32:96]`, each with `_causal`. The attention and attribution probes take
any layer's number, and `loss_occurrence<n>` any n.

In a model with LayerNorm there are three recalls of W_K1 and W_K2. `W_K2` has the norm's linear part folded into the
matrix. `W_K2_normed` applies the model's own norms to each embedding, as the model does; the two differ, because recall
compares keys and every key has a norm of its own. `W_K2_raw` leaves the norms out, as the authors measured it. In a
model without LayerNorm all three are equal, and only the first is measured. `_reversed` fixes the key and lets queries
compete, which is the formula as the paper prints it."""

CONTROLS = """
## Controls

Every probe on models whose circuit is known, and on models that have none (d = {d}, T = {T}; with W_F d = {larger}).
Values in bold are known beforehand and stand with their range; the others are for comparison. Shuffled memories store
wrong pairs of the same vectors, so a probe that does not depend on the pairing (norms, ranks of the spectrum) does not
change.
"""


def main(docs: Path | None = None) -> None:
    """Measure every probe on the controls and print the table.

    Args:
        docs: write the documentation page here instead.
    """
    found = measure_controls()
    if docs is not None:
        docs.write_text(page(found), encoding="utf-8")
    else:
        print(found.round(3).to_string())
    for line in failures(found):
        print(line)


if __name__ == "__main__":
    run_script(main, __doc__)
