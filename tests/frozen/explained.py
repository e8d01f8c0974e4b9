"""Frozen numbers that moved for a known reason: which rows, and the error whose correction moved them.

Each pattern is a regular expression that matches the whole of a call, run, key or column of the frozen table or of the
present one. A difference that an entry matches is counted under its reason; every other difference is a failure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Moved:
    """Rows that moved, and why."""

    why: str
    call: str
    run: str = ".*"
    key: str = ".*"
    column: str = ".*"


EXPLAINED: tuple[Moved, ...] = (
    Moved("new: recall as the paper prints it", "probes.weights", key=r"probe=W_K\d_reversed\|.*"),
    Moved("8: one ideal W_F, without the fixed triggers", "probes.weights", key=r"probe=explained_W_F\|.*"),
    Moved("6: the table names the heads", "surgery", column="head|through"),
    Moved(
        "8: W_K2's ideal pairs are the triggers",
        "surgery",
        run="fixed-triggers",
        key=r"memory=W_K2\|edit=.*('insert'|'project').*",
    ),
    Moved("8: one ideal W_F", "surgery", key=r"memory=W_F\|edit=.*('insert'|'project').*"),
    Moved(
        "rounding: at one position of 1,484 the two best logits are 1e-6 apart",
        r"ablate\.(components|parts)",
        run="random-triggers",
        key=r"component=(embed\|kind=resample-output|L1H1->L2H1\.v\|kind=mean)",
        column="global_accuracy|global_accuracy_se",
    ),
    Moved(
        "rounding: at one position of 1,484 the two best logits are 3e-6 apart",
        r"ablate\.matrices",
        run="layernorm-mlp",
        key=r"component=W_Q2\|kind=resample",
        column="global_accuracy|global_accuracy_se",
    ),
    Moved(
        "rounding: at one position of 1,484 the two best logits are 3e-7 apart; double precision has the new one",
        r"ablate\.matrices",
        run="layernorm-mlp",
        key=r"component=W_V2\|kind=mean-position",
        column="global_accuracy|global_accuracy_se",
    ),
    Moved(
        "rounding: a sum of four differences, -0.018678 in double precision, frozen as -0.0186776, now -0.0186791",
        r"identify\.totals",
        run="four-heads",
        key=r"game=q\|layer=1",
        column="sum_of_single",
    ),
    Moved(
        "the standard error is unknown where a single sequence has the positions; it was 0",
        "surgery",
        key=r"memory=W_(K1|O2)\|.*group=target",
        column=".*_se",
    ),
    Moved(
        "a part whose necessity is within twice its error never becomes necessary",
        r"causal\.births",
        column="necessary|delay",
    ),
    Moved(
        "rounding: a sum of 14 differences, 3e-6 from the one in double precision on either side: L1H3 -0.3414485 "
        "there, frozen -0.3414511, now -0.3414461; L1H2 -0.1414502, -0.1414531, -0.1414481",
        r"identify\.mediation",
        run="four-heads",
        key=r"source=L1H[1-4]\|path=rest\|.*",
        column="effect",
    ),
    Moved(
        "rounding: a difference of logits near 10 that is 0.00015, taken from 60 sequences",
        r"identify\.(shares|totals|mediation)",
        run="copying-middle",
        key=r"game=k\|(head=L1H1|layer=1)|source=L1H1\|path=indirect\|target=L2H1\|input=k",
        column="alone|shapley|single|sum_of_single|total|effect|effect_se",
    ),
    Moved(
        "rounding of logits near 10: frozen as -0.0154945, now -0.0154930",
        r"identify\.(shares|totals)",
        run="copying-any",
        key=r"game=out\|(head=L1H1|layer=1)",
        column="alone|shapley|single|sum_of_single|total",
    ),
    Moved(
        "rounding: shares of a corruption that changes a logit of 6.8 by 0.004",
        r"patch\.activation",
        run="copying-middle",
        key=r"corruption=trigger\|.*",
        column="effect|effect_se",
    ),
    Moved(
        "rounding: the 8th and 9th singular values are 1.642 and 1.638, so the matrix of rank 8 is uncertain by 1e-5",
        "surgery",
        run="frozen-keys",
        key=r"memory=W_K1\|edit=\{'truncate': 8\}\|.*",
        column=".*loss",
    ),
    Moved(
        "rounding of a gradient of 0.025, between logits near 10",
        r"discover\.edges",
        run="causal-graph",
        key="edge=pos->L1H1.k",
        column="gradient",
    ),
    Moved(
        "probes that the model has are listed beside those that it lacks", r"probes\.weights", key="", column="refused"
    ),
)


def reasons(differences: pd.DataFrame, explained: Sequence[Moved] = EXPLAINED) -> pd.Series:
    """The reason of each difference, "" where there is none; the first entry that matches counts."""
    why = pd.Series("", index=differences.index)
    for moved in reversed(explained):
        matches = pd.Series(True, index=differences.index)
        for name in ("call", "run", "key", "column"):
            pattern = re.compile(getattr(moved, name))
            matches &= differences[name].map(lambda text, pattern=pattern: bool(pattern.fullmatch(text))).astype(bool)
        why[matches] = moved.why
    return why
