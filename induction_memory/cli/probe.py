"""`probe`: measure a trajectory."""

import sys
from difflib import get_close_matches
from typing import Annotated

import tyro

from induction_memory.cli.arguments import Names, Text, listed, load_any, optional, sequences_of, steps_of
from induction_memory.cli.output import TERMINAL, TableOutput
from induction_memory.cli.refusals import parts_of, require_text_of_series
from induction_memory.cli.usage import own_modules
from induction_memory.errors import InputError, require

TEXT_SEQUENCES = 64
# fmt: off
FAMILIES = (
    "recall", "weights", "composition", "attention", "prediction", "attribution", "predictors", "sources", "all",
)
BEGINNINGS = (
    "W_", "K_composition", "Q_composition", "V_composition", "copying", "norm_", "distance_", "cosine_", "explained_",
    "soft_rank_", "stable_rank_", "overlap_", "loss", "accuracy", "excess", "bayes_loss", "kl_", "dla_", "entropy",
    "match", "induction_", "previous_", "repeated_", "attended_is_target", "predicted_is_attended", "mass_on_",
)
# fmt: on
"""How the names of probes begin: other names are refused before heavy imports."""


def probe(
    run: Annotated[str | None, tyro.conf.Positional, optional("RUN")] = None,
    /,
    probes: Names = (),
    steps: str = "all",
    list: bool = False,
    text: Text = None,
    tokens: Names = (),
    output: TableOutput = TERMINAL,
) -> None:
    """Measure a trajectory: memory recall, attention, predictions, weights.

    Args:
        run: trajectory's folder or the name of a shipped one, or a folder of checkpoints that others trained.
        probes: names of the probes or of families; by default the memory recalls, or for a task without such memories
            the distances to its predictors, or else loss and accuracy.
        steps: all, or a list such as 0,100,300.
        list: explain each probe in one line.
        text: for a series of checkpoints, text to run on, or @FILE with it; random tokens repeated once by default.
        tokens: instead of probes, recall between these tokens through each head's QK and OV: numbers, or for a series
            texts of one token each.
    """
    chosen_steps, names = steps_of(steps), listed(probes, "--probes")
    if list:
        from induction_memory import probes as library

        for name, about in library.names().items():
            print(f"{name:<24} {about}")
        print("\nwith names of the task's own:")
        for name, about in library.PATTERNS.items():
            print(f"{name:<32} {about}")
        return
    if run is None:
        raise InputError("RUN: expected a trajectory's folder or name, or --list")
    require(not (tokens and names), "--tokens", "it or --probes", "both")
    _require_names(names)
    chosen = _tokens(run, tokens)
    require_text_of_series(run, text)
    opened = load_any(run, chosen_steps)
    from induction_memory import probes as library

    if chosen:
        output.write(library.token_recall(opened, chosen, steps=chosen_steps))
        return
    batch = sequences_of(opened, text, TEXT_SEQUENCES)
    table = library.table(opened, names or None, steps=chosen_steps, batch=batch)
    skipped = table.attrs.get("skipped", {})
    if table.empty and skipped:
        name, reason = next(iter(skipped.items()))
        raise InputError(f"--probes: expected some that this run allows, got {name!r}, which {reason}")
    for reason in dict.fromkeys(skipped.values()):
        print(f"{', '.join(name for name in skipped if skipped[name] == reason)}: {reason}", file=sys.stderr)
    output.write(library.wide(table).reset_index())


def _require_names(names: tuple[str, ...]) -> None:
    """Refuse a name that is no family and begins like no probe, unless the user has probes of their own."""
    for name in names if not own_modules() else ():
        if name not in FAMILIES and not name.startswith(BEGINNINGS):
            near = get_close_matches(name, [*FAMILIES, *BEGINNINGS], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            allowed = f"a probe (--list has them) or a family ({', '.join(FAMILIES)})"
            raise InputError(f"--probes: expected {allowed}, got {name!r}{hint}")


def _tokens(run: str, tokens: tuple[str, ...]) -> tuple[int | str, ...]:
    """Tokens by number, or for a series also by text."""
    parts = parts_of(run) if tokens else None
    if parts is not None:
        model, allowed = parts[1], f"two or more numbers from 0 to {parts[1].d_vocab - 1}"
        known = all(one.isascii() and one.isdecimal() and int(one) < model.d_vocab for one in tokens)
        require(known and len(set(tokens)) > 1, "--tokens", allowed, repr(" ".join(tokens)))
    return tuple(int(one) if one.isdecimal() else one for one in tokens)
