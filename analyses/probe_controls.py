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

`python analyses/probe_controls.py` prints the table, and `probe_page.py` writes the page that explains it.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from induction_memory.errors import run_script
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.constructed import construct
from induction_memory.probes import tables
from induction_memory.source.sources import select
from induction_memory.task.bigrams import BigramTask

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
    names: str | Iterable[str] = tuple(tables.FAMILIES),
) -> pd.DataFrame:
    """One row per probe, one column per control; nan where the control cannot have the probe."""
    columns, asked = {}, list[str]()
    for name, (model, task) in models(d, d_with_W_F, length).items():
        columns[name] = tables.table(model, names, task=task).set_index("probe")["value"]
        asked = [probe.name for probe in tables.resolve(names, select(model, task=task))]
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


def main() -> None:
    """Measure every probe on the controls and print the table, then the values outside their known range."""
    found = measure_controls()
    print(found.round(3).to_string())
    for line in failures(found):
        print(line)


if __name__ == "__main__":
    run_script(main, __doc__)
