"""The lines of Python that compute what a panel shows; the page fills in `{step}` and other placeholders."""

from collections.abc import Mapping, Sequence
from typing import Any

from induction_memory.trajectory.trajectory import Trajectory

BATCH = "batch = im.sample(run.task, 16, im.step_rng(run.config.train.eval_seed, 0))"


def _columns(curves: Sequence[Mapping[str, Any]], group: str, *first: str) -> str:
    """The names of the curves of a group as a list in Python."""
    names = dict.fromkeys([*first, *(curve["name"] for curve in curves if curve["group"] == group)])
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def of(run: Trajectory, curves: Sequence[Mapping[str, Any]], length: int) -> dict[str, str]:
    """Snippets by the name of the panel; `curves` are those that the page draws."""
    start = f'import induction_memory as im\n\nrun = im.load("{run.path.as_posix()}")\n'
    return {
        "start": start,
        "attention": f"{start}{BATCH}\nim.attention(run, step={{step}}, batch=batch, row={{row}}, length={length})",
        "attention_text": f"{start}im.attention(run, step={{step}}, text={{text}})",
        "memory": f'{start}im.probes.score_matrix(run, "{{memory}}", step={{step}}, head="{{head}}")',
        "memory_W_F": (
            f'{start}W_F, w_E, w_U = run.memory("W_F", [{{step}}])[0], run.embedding("w_E"), run.embedding("w_U")\n'
            "w_E @ W_F.T @ w_U.T"
        ),
        "loss": f"{start}run.metrics[{_columns(curves, 'loss', 'step')}]",
        "accuracy": f"{start}run.metrics[{_columns(curves, 'accuracy', 'step')}]",
        "recall": f"{start}im.probes.table(run, {_columns(curves, 'recall')})",
        "kl": f"{start}{BATCH}\nim.probes.table(run, {_columns(curves, 'kl')}, batch=batch)",
        "causes": f'{start}{BATCH}\nim.ablate(run, batch, kind="mean", step={{step}})',
        "shares": f"{start}{BATCH}\nim.heads.identify(run, step={{step}}, batch=batch).shares",
        "prediction": f"{start}{BATCH}\nrun.model({{step}})(batch.tokens[[{{row}}]]).softmax(-1)[0, {{query}}]",
    }
