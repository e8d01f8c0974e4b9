"""A whole experiment: task, model and training in one frozen, checked configuration; and the configurations of
branches.

`with_settings` changes single fields by their path, like `--set task.k=3`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, get_type_hints

from induction_memory.errors import require, require_known
from induction_memory.experiment.constraints import Clamp, Freeze, Graft
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.field_docs import field_docs, field_meanings
from induction_memory.fields import parsed, require_texts
from induction_memory.model.config import AnyModel, Architecture, ModelConfig, model_from_dict
from induction_memory.task import protocol
from induction_memory.task.protocol import Task, choose, offered

SIZES = {"d_vocab", "d_vocab_out", "n_ctx"}
"""Fields of the model that are derived from the task unless they are set."""


@field_docs
@dataclass(frozen=True)
class RunConfig:
    """An experiment: task, model and training.

    >>> import induction_memory as im
    >>> train = im.experiment.TrainConfig(steps=100)
    >>> config = im.experiment.RunConfig(im.BigramTask(k=3), im.ModelConfig(d_model=64), train)
    >>> config.model.d_model, config.train.steps
    (64, 100)
    """

    task: Any = field(default_factory=lambda: protocol.from_dict({}))
    """The data."""
    model: AnyModel = field(default_factory=ModelConfig)
    """The architecture."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Optimiser, loss, seeds, constraints and checkpoints."""

    def __post_init__(self) -> None:
        _require_parts(self.task, self.model)
        require(isinstance(self.train, TrainConfig), "train", "a TrainConfig", repr(self.train))
        task, model, train = self.task, self.model, self.train
        require(model.n_ctx >= task.length, "model.n_ctx", f"at least task.length = {task.length}", model.n_ctx)
        inputs = f"the vocabulary's size {task.n_inputs}"
        require(model.d_vocab == task.n_inputs, "model.d_vocab", inputs, model.d_vocab)
        outputs = f"the number of outputs {task.n_outputs}"
        require(model.n_outputs == task.n_outputs, "model.d_vocab_out", outputs, model.n_outputs)
        losses = ("all", "main", "trigger-output", *(offered(task, "groups") or (train.loss,)))
        require_known(train.loss, losses, "train.loss")
        trained, known = model.trained_names, model.parameters
        for rule in train.freezes:
            names = f"names out of the trained {', '.join(trained)}"
            require(rule.name in trained, "train.freeze", names, repr(rule.name))
        for rule in train.graft_rules:
            require(rule.name in known, "train.grafts", f"names out of {', '.join(known)}", repr(rule.name))
            tied = model.tied_output and rule.name == "W_U"
            require(not tied, "train.grafts", "W_E instead of W_U when the output is tied", repr(rule.name))
        for rule in train.clamp_rules:
            layers = 1 if rule.kind == "previous-token" else 2
            allowed = f"at least {layers} for the clamp {rule.kind}"
            require(model.n_layers >= layers, "model.n_layers", allowed, model.n_layers)
        _ = self.evaluation_task  # checked when made

    def __repr__(self) -> str:
        """Each part on its line, with the fields that are not at their defaults."""
        parts = [f"    {name}={_changed(getattr(self, name))}," for name in ("task", "model", "train")]
        return "\n".join(["RunConfig(", *parts, ")"])

    def _repr_html_(self) -> str:
        """In a notebook: every field, with its value and its meaning."""
        import pandas as pd

        rows = [
            (f"{part}.{name}", str(value)[:80], field_meanings(type(getattr(self, part))).get(name, ""))
            for part, values in self.to_dict().items()
            for name, value in values.items()
        ]
        return pd.DataFrame(rows, columns=["field", "value", "meaning"]).to_html(index=False)

    @property
    def evaluation_task(self) -> Any:
        """The task of the out-of-distribution accuracy, or None."""
        second = self.train.out_of_distribution
        return None if second is None else choose(self.task, "variants", second)

    @classmethod
    def of(cls, task: Any, model: AnyModel, train: TrainConfig) -> "RunConfig":
        """An experiment; sizes that the model leaves at their defaults are taken from the task."""
        _require_parts(task, model)
        sized = model if isinstance(model, Architecture) else with_sizes(model, task, ModelConfig())
        return cls(task, sized, train)

    @property
    def moving_parameters(self) -> tuple[str, ...]:
        """Parameters that may change between steps (trained or grafted), by their names in the HookedTransformer."""
        moving = {*self.model.trained_names, *(rule.name for rule in self.train.graft_rules)}
        return tuple(parameter for name, parameter in self.model.parameters.items() if name in moving)

    def replace(self, **changes: Any) -> "RunConfig":
        return replace(self, **changes)

    def with_settings(self, settings: "list[str] | tuple[str, ...]") -> "RunConfig":
        """A copy with fields changed by path: `config.with_settings(["task.k=3", "train.learning_rate=0.5"])`.

        Sizes of the model that no longer fit become the task's sizes, unless `settings` sets them.

        >>> RunConfig().with_settings(["task.length=512"]).model.n_ctx
        512
        """
        changes: dict[str, dict[str, Any]] = {"task": {}, "model": {}, "train": {}}
        for setting in require_texts(settings, "--set", "a list of texts such as task.k=3"):
            path, equals, text = setting.partition("=")
            path = path.strip()
            require(equals == "=" and path != "", "--set", "PART.FIELD=VALUE", repr(setting))
            part, _, name = path.partition(".")
            require(part in changes, path, "a path that begins with task, model or train", repr(part))
            owner = type(getattr(self, part))
            allowed = "task or train (a HookedTransformer's own configuration is set in Python)"
            require(owner is not Architecture, path, allowed, repr(setting))
            require(is_dataclass(owner), path, f"a dataclass, whose fields have paths ({part})", owner.__name__)
            known = [f.name for f in fields(owner)]
            require_known(name, known, path, f"one of {part}.{{{', '.join(known)}}}")
            changes[part][name] = parsed(text.strip(), get_type_hints(owner)[name], f"{part}.{name}")
        parts = {part: getattr(self, part) for part in changes}
        task, model, train = (replace(parts[part], **new) if new else parts[part] for part, new in changes.items())
        if not changes["model"].keys() & SIZES and isinstance(model, ModelConfig):
            fits = model.n_ctx >= task.length and (model.d_vocab, model.n_outputs) == (task.n_inputs, task.n_outputs)
            model = model if fits else with_sizes(model, task, model)
        return RunConfig(task, model, train)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        parts = {"task": protocol.to_dict(self.task), "model": self.model.to_dict(), "train": self.train.to_dict()}
        return json.loads(json.dumps(parts))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RunConfig":
        """The inverse of `to_dict`; keys that are not fields are refused."""
        for name in values:
            require_known(name, ("task", "model", "train"), name)
        return cls(
            protocol.from_dict(values.get("task", {})),
            model_from_dict(values.get("model", {})),
            TrainConfig.from_dict(values.get("train", {})),
        )

    def differences(self, other: "RunConfig") -> dict[str, tuple[Any, Any]]:
        """Path -> (value here, value there) of each field in which two configurations differ."""
        mine, theirs = self.to_dict(), other.to_dict()
        return {
            f"{part}.{name}": (mine[part].get(name), theirs[part].get(name))
            for part in mine
            for name in {**mine[part], **theirs[part]}
            if mine[part].get(name) != theirs[part].get(name)
        }


def _require_parts(task: Any, model: Any) -> None:
    require(isinstance(task, Task), "task", "a task (induction_memory.task.Task)", repr(task))
    require(isinstance(model, AnyModel), "model", "a ModelConfig or an Architecture", repr(model))


def with_sizes(model: ModelConfig, task: Any, unset: ModelConfig) -> ModelConfig:
    """The model with the task's vocabulary, outputs and length in the fields that have the values of `unset`."""
    outputs = None if task.n_outputs == task.n_inputs else task.n_outputs
    wanted = {"d_vocab": task.n_inputs, "d_vocab_out": outputs, "n_ctx": task.length}
    return replace(model, **{name: v for name, v in wanted.items() if getattr(model, name) == getattr(unset, name)})


def branch_config(
    config: RunConfig,
    at: int,
    *,
    freeze: Sequence[str] = (),
    clamps: Sequence[str] = (),
    grafts: Sequence[str] = (),
    steps: int | None = None,
    settings: Sequence[str] = (),
) -> RunConfig:
    """The configuration of a branch: the run's, with more rules from step `at` on."""
    train = config.train
    for name, rules in (("freeze", freeze), ("clamps", clamps), ("grafts", grafts)):
        require_texts(rules, name, "a list of rules written as text")
    frozen = [str(Freeze.parse(text) if ":" in text else replace(Freeze.parse(text), start=at)) for text in freeze]
    clamped = [str(Clamp.parse(text) if "@" in text else replace(Clamp.parse(text), start=at)) for text in clamps]
    grafted = [str(Graft.parse(text, default_start=at)) for text in grafts]
    early = [rule for rule in map(Graft.parse, grafted) if rule.start < at]
    require(not early, "train.grafts", f"grafts from step {at} (the branch's first) on", ", ".join(map(str, early)))
    changed = config.replace(
        train=train.replace(
            freeze=(*train.freeze, *frozen),
            clamps=(*train.clamps, *clamped),
            grafts=(*(str(rule) for rule in train.graft_rules if rule.start > at), *grafted),
            steps=train.steps if steps is None else steps,
        )
    ).with_settings(require_texts(settings, "settings", "a list of texts such as train.momentum=0.5"))
    require(changed.train.steps >= at, "train.steps", f"at least {at} (the branch's first step)", changed.train.steps)
    same = changed.model.untrained() == config.model.untrained()
    require(same, "model", "the run's own architecture", "another")
    return changed


def _changed(part: Any) -> str:
    """A part of a configuration, without the fields that are at their defaults."""
    if not is_dataclass(part):
        return repr(part)
    found = ((f.name, repr(getattr(part, f.name)), repr(f.default)) for f in fields(part) if f.repr)
    shown = [f"{name}={value}" for name, value, default in found if value != default]
    return f"{type(part).__name__}({', '.join(shown)})"
