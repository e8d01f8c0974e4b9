"""A model on a batch at one step: attention patterns, logits and other activations, each computed once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from induction_memory.errors import UnsupportedError
from induction_memory.field_docs import field_docs
from induction_memory.model.config import ModelConfig
from induction_memory.runner.recording import Runner, pattern_name
from induction_memory.source.sources import At, Stack
from induction_memory.task.batch import Batch, repeated_tokens

REPEATED_SEQUENCES = 16  # random sequences of the standard scores
REPEATED_SEED = 0


@field_docs
@dataclass(eq=False)
class Activations:
    """One model on one batch. It runs when a probe first needs an activation."""

    at: At
    """The step, with its model, its weights and its sequences."""
    batch_facts: dict[str, Any] = field(default_factory=dict, repr=False)
    """Values that depend only on the batch, by name; the steps of a run share them."""
    kept: dict[str, Any] = field(default_factory=dict, repr=False)
    """Values computed at this step, by name."""

    @property
    def model(self) -> nn.Module:
        """The TransformerLens model, made on first use."""
        return self.at.model

    @property
    def stack(self) -> Stack:
        """Its weights, with the task."""
        return self.at.stack

    @cached_property
    def runner(self) -> Runner | None:
        """Runs the model without TransformerLens. None for a model with norms, whose scales it does not record."""
        if self.at.loaded is not None or self.at.chosen.via == "hooks":
            return None
        config = getattr(self.at.chosen.source, "model_config", None)
        return self.at.runner if isinstance(config, ModelConfig) and not config.layer_norm else None

    @property
    def n_layers(self) -> int:
        return self.stack.n_layers

    @property
    def n_heads(self) -> int:
        return self.stack.n_heads

    @property
    def parallel(self) -> bool:
        """Whether attention and feed-forward of a layer read the same stream."""
        if self.runner is not None:
            return self.runner.graph.parallel
        cfg: Any = self.model.cfg
        return bool(cfg.parallel_attn_mlp)

    @property
    def batch(self) -> Batch:
        return self.at.batch

    @property
    def logits(self) -> Float[Tensor, "batch pos vocab"]:
        return self.cache["logits"]

    @cached_property
    def log_q(self) -> Float[Tensor, "batch pos vocab"]:
        """The logarithm of the model's prediction, in double precision."""
        return self.logits.double().log_softmax(-1)

    @cached_property
    def predicted(self) -> Int[Tensor, "batch pos"]:
        """The output with the largest logit."""
        return largest(self.logits)

    @cached_property
    def diverged(self) -> Bool[Tensor, ""]:
        """Whether any logit is nan, which makes argmax meaningless."""
        return self.logits.isnan().any()

    def pattern(self, layer: int) -> Float[Tensor, "batch head query key"]:
        """Attention of a layer, counted from 1."""
        self._require_layer(layer)
        return self.cache[pattern_name(layer)]

    def attended(self, layer: int) -> Int[Tensor, "batch head query"]:
        """The position each query attends to most."""
        return self.once(f"attended {layer}", lambda: largest(self.pattern(layer)))

    def repeated_pattern(self, layer: int) -> Float[Tensor, "batch head query key"]:
        """Attention on random tokens repeated once."""
        self._require_layer(layer)
        return self.once("repeated", self._repeated)[layer - 1]

    def _repeated(self) -> list[Float[Tensor, "batch head query key"]]:
        if self.runner is None:
            return run_repeated(self.model, self.stack.n_layers)
        length = self.runner.n_ctx // 2
        tokens = self.of_batch("repeated tokens", lambda: standard_tokens(self.stack.vocab_size, length))
        return self.runner.patterns(tokens)

    def mass(self, layer: int, name: str, sought: Bool[Tensor, "batch query key"]) -> Float[Tensor, "batch head query"]:
        """The attention from each query of a layer to the sought keys, kept under a name."""
        pattern = self.pattern(layer)
        keys = self.of_batch(f"keys of {name}", lambda: sought.to(pattern.dtype))
        return self.once(f"mass {name} {layer}", lambda: torch.einsum("bhqk,bqk->bhq", pattern, keys))

    @cached_property
    def cache(self) -> dict[str, Tensor]:
        """The activations of one forward pass: logits, patterns, and the inputs of attributions."""
        if self.runner is not None:
            recording = self.runner.record(self.batch.tokens, patterns=True)
            return {"logits": recording.logits, **recording.activations}
        wanted = [pattern_name(layer) for layer in range(1, self.n_layers + 1)]
        wanted += ["hook_embed", "hook_pos_embed", "ln_final.hook_scale"]
        for layer in range(self.n_layers):
            wanted += [f"blocks.{layer}.{hook}" for hook in ("attn.hook_z", "hook_mlp_out", "ln1.hook_scale")]
            wanted += [f"blocks.{layer}.ln2.hook_scale"]
        return run(self.model, self.batch.tokens, wanted)

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """A value of this step, kept under this name, computed on first use."""
        if name not in self.kept:
            self.kept[name] = compute()
        return self.kept[name]

    def of_batch(self, name: str, compute: Callable[[], Any]) -> Any:
        """A value that all steps share, kept under this name, computed on first use."""
        if name not in self.batch_facts:
            self.batch_facts[name] = compute()
        return self.batch_facts[name]

    def _require_layer(self, layer: int) -> None:
        if not 1 <= layer <= self.n_layers:
            raise UnsupportedError(f"needs layer {layer}, the model has {self.n_layers}")


def largest(x: Float[Tensor, "*lead n"]) -> Int[Tensor, "*lead"]:
    """x.argmax(-1). On a CPU numpy is several times faster, for the precisions that it supports."""
    known = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return torch.from_numpy(x.detach().numpy().argmax(-1)) if known else x.argmax(-1)


def run(model: nn.Module, tokens: Int[Tensor, "batch pos"], wanted: list[str]) -> dict[str, Tensor]:
    """The logits and the activations of these hooks, without hooks that the model lacks or its forward does not
    reach."""
    any_model: Any = model
    tokens = tokens.to(next(model.parameters()).device)
    with torch.no_grad():
        logits, cache = any_model.run_with_cache(tokens, names_filter=lambda name: name in wanted)
    passed = set(cache.keys())
    return {"logits": logits} | {name: cache[name] for name in wanted if name in passed}


def mean_where(values: Tensor, queries: Bool[Tensor, "batch query"]) -> Float[Tensor, " head"]:
    """Mean per head over the chosen queries; nan if there are none."""
    return values.double().movedim(1, 0)[:, queries].mean(-1)


def standard_tokens(vocab_size: int, length: int) -> Int[Tensor, "batch twice_length"]:
    """The repeated sequences of the standard scores."""
    generator = torch.Generator().manual_seed(REPEATED_SEED)
    return repeated_tokens(vocab_size, length, REPEATED_SEQUENCES, generator)


def run_repeated(model: nn.Module, n_layers: int, length: int | None = None) -> list[Tensor]:
    """All patterns on random tokens repeated once, `length` tokens per half (by default half the context)."""
    cfg: Any = model.cfg
    names = [pattern_name(layer) for layer in range(1, n_layers + 1)]
    cache = run(model, standard_tokens(cfg.d_vocab, length or cfg.n_ctx // 2), names)
    return [cache[name] for name in names]
