"""The page's words for tokens, outputs and groups of positions of a run's task.

Sequences with triggers are described as in the paper. For other tasks the groups have their own names. A source whose
task is not known reads random tokens repeated once, so its groups are the two halves. Each panel also has lines of
Python that compute its content; the page fills in `{step}` and other placeholders.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from induction_memory.shown_tokens import visible
from induction_memory.task.batch import Batch, scored_groups
from induction_memory.task.protocol import offered
from induction_memory.trajectory.series import Revisions
from induction_memory.views.light_maps import WORDS

TRIGGERS = {
    "words": {
        "main": "at triggers seen before",
        "marked": [WORDS["trigger"], WORDS["output"]],
        "boxes": {kind: WORDS[kind] for kind in ("right", "other")},
    },
    "titles": {"in_context": "At triggers seen before", "global": "Elsewhere"},
    "recorded": {
        "in_context": "in context",
        "global": "elsewhere",
        "first_occurrence": "first occurrence of a trigger",
        "first": "first occurrence of a trigger",
    },
}
HALVES = {
    "words": {
        "main": "in the second half",
        "marked": [],
        "boxes": {"other": "key after the earlier occurrence of the query"},
    },
    "titles": {"in_context": "In the second half, which repeats the first", "global": "In the first half"},
    "recorded": {},
}


def wording(task: Any, batch: Batch) -> dict[str, Any]:
    """The words that depend on the kind of sequences: marked positions, boxes in the maps, groups of positions."""
    if task is None:
        return HALVES
    if "triggers" in batch.latents and "outputs" in batch.latents:
        return TRIGGERS
    return {
        "words": {
            "main": f"at positions of the group {batch.main}",
            "marked": [] if bool(batch.group().all()) else [f"group {batch.main}"],
            "boxes": {
                "right": f"source of the answer, for a query of the group {batch.main}",
                "other": "source of the answer, for another query",
            },
        },
        "titles": {},
        "recorded": {},
    }


def legend_words(task: Any, batch: Batch) -> dict[str, str]:
    """The legend of an attention map: a text for each kind of mark, with the keys of `light_maps.WORDS`."""
    words = wording(task, batch)["words"]
    return dict(zip(("trigger", "output"), words["marked"], strict=False)) | words["boxes"]


def group_titles(task: Any, batch: Batch) -> dict[str, str]:
    """The groups with scores, the main one first, with their headings."""
    scored, titles = scored_groups(batch), wording(task, batch)["titles"]
    found = {}
    for name in (batch.main, *scored):
        if name in scored and batch.group(name).any():
            found[name] = titles.get(name, f"At positions of the group {name}")
    return found


def facts(task: Any, batch: Batch, read: Sequence[str], said: Sequence[str]) -> dict[str, Any]:
    """Tokens, outputs, and the words that differ between tasks."""
    frequency, fixed = (None, None) if task is None else (offered(task, "unigram"), offered(task, "fixed_triggers"))
    of_task = wording(task, batch)
    return {
        "vocabulary": list(read),
        "visible": list(map(visible, read)),
        "outputs": list(said),
        "visible_outputs": list(map(visible, said)),
        "frequency": None if frequency is None else np.asarray(frequency, dtype=float).tolist(),
        "fixed_triggers": None if fixed is None else np.asarray(fixed).tolist(),
        "next_token": follows(batch),
        "triggers": of_task is TRIGGERS,
        "words": of_task["words"],
    }


def follows(batch: Batch) -> bool:
    """Whether targets are the next tokens, so that a typed text has targets."""
    if batch.soft or batch.tokens.shape[1] < 2:
        return False
    same = batch.targets[:, :-1] == batch.tokens[:, 1:]
    return bool(same[batch.counted[:, :-1]].all()) and bool(batch.counted[:, :-1].any())


BATCH = "batch = im.source.select(run, sequences=16).batch"


def _columns(curves: Sequence[Mapping[str, Any]], group: str, *first: str) -> str:
    """The names of the curves of a group as a list in Python."""
    names = list(first)
    for curve in curves:
        if curve["group"] == group and curve["name"] not in names:
            names.append(curve["name"])
    return json.dumps(names)


def of(source: Any, curves: Sequence[Mapping[str, Any]], length: int) -> dict[str, str]:
    """Snippets by the name of the panel; `curves` are the page's curves."""
    opened = (
        f'revisions("{series_folder(source)}")'
        if isinstance(source, Revisions)
        else f'load("{source.path.as_posix()}")'
    )
    start = f"import induction_memory as im\n\nrun = im.{opened}\n"
    found = {
        "attention": f"{start}{BATCH}\nim.attention(run, step={{step}}, batch=batch, row={{row}}, length={length})",
        "causes": f'{start}{BATCH}\nim.ablate(run, batch, kind="mean", step={{step}})',
        "shares": f"{start}{BATCH}\nim.heads.identify(run, step={{step}}, batch=batch).shares",
        "prediction": f"{start}{BATCH}\nrun.model({{step}})(batch.tokens[[{{row}}]]).softmax(-1)[0, {{query}}]",
    }
    if source.task is None:
        for group in ("loss", "accuracy", "previous", "induction"):
            found[group] = f"{start}{BATCH}\nim.probes.table(run, {_columns(curves, group)}, batch=batch)"
        return found
    return found | {
        "attention_text": f"{start}im.attention(run, step={{step}}, text={{text}})",
        "why": f"{start}{BATCH}\nim.why(run, step={{step}}, batch=batch, row={{row}}, position={{position}})",
        "why_text": f"{start}im.why(run, step={{step}}, text={{text}}, position={{position}})",
        "memory": f'{start}im.probes.score_matrix(run, "{{memory}}", step={{step}}, head="{{head}}")',
        "memory_W_F": (
            f'{start}W_F, w_E, w_U = run.memory("W_F", [{{step}}])[0], run.embedding("w_E"), run.embedding("w_U")\n'
            "w_E @ W_F.T @ w_U.T"
        ),
        "loss": f"{start}run.metrics[{_columns(curves, 'loss', 'step')}]",
        "accuracy": f"{start}run.metrics[{_columns(curves, 'accuracy', 'step')}]",
        "recall": f"{start}im.probes.table(run, {_columns(curves, 'recall')})",
        "kl": f"{start}{BATCH}\nim.probes.table(run, {_columns(curves, 'kl')}, batch=batch)",
    }


def series_folder(series: Revisions) -> str:
    """The folder that `revisions` reads. In a Hub cache it is the folder above `snapshots`."""
    parent = series.checkpoints[-1].folder.parent
    return (parent.parent if parent.name == "snapshots" else parent).as_posix()
