"""Direct logit attribution: which part of the model writes the right answer, per head and per memory.

The logits are a sum over what each part adds to the last residual stream, so the target's logit above the average,

    w_U(y)^T x_T - mean over j of w_U(j)^T x_T,

is a sum with one term per part: token and position embedding, each head, each feed-forward. Measured on the main group
of the task: for in-context bigrams, triggers from their second occurrence on. The contribution of the last layer's
heads is split further by what their values read, because W_O2 W_V2 acts on each part of the stream separately:

    dla_W_O2_token      sum_s A[t, s] of Phi_2 w_E(z_s)        the memory w_U(k) (W_V2 w_E(k))^T
    dla_W_O2_position   sum_s A[t, s] of Phi_2 p_s
    dla_W_O2_layer1     sum_s A[t, s] of Phi_2 (what layer 1 wrote at s), where the spurious memory is read

and a linear W_F likewise by the part of the stream it reads. A LayerNorm divides by the scale that it had in that
forward pass and its bias is left out, so that attributions stay linear. With several heads, one value per head.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from induction_memory.errors import UnsupportedError
from induction_memory.probes.activations import Activations
from induction_memory.probes.registry import Probe

_W_O2 = {"token": "Phi_2 w_E(z_s)", "position": "Phi_2 p_s", "layer1": "Phi_2 x layer 1's output at s"}
_W_F = {"token": "W_F w_E(z_t)", "position": "W_F p_t", "layer1": "W_F x layer 1's output", "layer2": "W_F x layer 2's"}


def above_average(
    stream: Float[Tensor, "*lead d"], target: Float[Tensor, "*#lead d"], mean: Float[Tensor, " d"]
) -> Float[Tensor, "*lead"]:
    """(w_U(y) - mean_j w_U(j))^T x for each x."""
    return (stream * (target - mean)).sum(-1)


def _mean(a: Activations, added: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Mean direct effect of additions to the stream at the triggers, through the last LayerNorm."""
    w_U = a.stack.embedding("w_U")[0, 0]
    return _scaled(a, above_average(added, w_U[a.batch.targets[_triggers(a)]], w_U.mean(0))).mean(0)


def _of_heads(a: Activations, layer: int) -> Float[Tensor, " head"]:
    """Mean direct effect of each head of a layer, W_O z: the unembedding is applied to W_O first, then to z."""
    z, W_O = _values_and_output(a, layer)
    triggers, w_U = _triggers(a), a.stack.embedding("w_U")[0, 0]
    read = torch.einsum("vd,hde->vhe", w_U - w_U.mean(0), W_O)
    return _scaled(a, torch.linalg.vecdot(z[triggers], read[a.batch.targets[triggers]])).mean(0)


def _scaled(a: Activations, effect: Float[Tensor, "n *head"]) -> Float[Tensor, "n *head"]:
    """Direct effects at the triggers over the scale of the last LayerNorm, in double precision."""
    if "ln_final.hook_scale" in a.cache:
        scale = a.cache["ln_final.hook_scale"][_triggers(a)]
        effect = effect / (scale if effect.dim() == 2 else scale.squeeze(-1))
    return effect.double()


def _triggers(a: Activations) -> Bool[Tensor, "batch pos"]:
    """The positions of the task's main group, each with one right output."""
    triggers = a.batch.group()
    if not triggers.any():
        raise UnsupportedError(f"needs positions of the group {a.batch.main}, the batch has none")
    if a.batch.soft:
        raise UnsupportedError("needs one right output for each position, the targets are distributions")
    return triggers


def _stream(a: Activations, part: str) -> Float[Tensor, "batch pos d"]:
    """What the embeddings or a whole layer's heads add to the stream."""
    if part in ("token", "position"):
        name = "hook_embed" if part == "token" else "hook_pos_embed"
        if name not in a.cache:
            raise UnsupportedError(f"needs the hook {name}, the model has none")
        value = a.cache[name]
        return value.expand(len(a.batch), -1, -1)
    layer = int(part.removeprefix("layer"))
    z, W_O = _values_and_output(a, layer)
    if a.runner is None:
        written = torch.einsum("bphe,hde->bpd", z, W_O)
    else:  # the recording has the sum over heads
        b_O = a.runner.weights.get(f"blocks.{layer - 1}.attn.b_O", 0.0)
        written = a.cache[f"blocks.{layer - 1}.hook_attn_out"] - b_O
    return written + _feed_forward(a, layer) if layer < a.n_layers and _has_feed_forward(a, layer) else written


def _values_and_output(
    a: Activations, layer: int
) -> tuple[Float[Tensor, "batch pos head d_head"], Float[Tensor, "head d d_head"]]:
    """The attended values z of each head of a layer, and the matrix W_O that writes them."""
    a.pattern(layer)  # raises an error if there is no such layer
    return a.cache[f"blocks.{layer - 1}.attn.hook_z"], a.stack.memory(f"W_O{layer}")[0]


def _has_feed_forward(a: Activations, layer: int) -> bool:
    """Whether the layer has a feed-forward with weights (not a stand-in that returns zeros)."""
    if f"blocks.{layer - 1}.hook_mlp_out" not in a.cache:
        return False
    return a.runner is not None or next(a.model.get_submodule(f"blocks.{layer - 1}.mlp").parameters(), None) is not None


def _feed_forward(a: Activations, layer: int) -> Float[Tensor, "batch pos d"]:
    a.pattern(layer)
    if not _has_feed_forward(a, layer):
        raise UnsupportedError(f"needs a feed-forward in layer {layer}, the model has none")
    return a.cache[f"blocks.{layer - 1}.hook_mlp_out"]


def _read_by_values(a: Activations, part: str) -> Float[Tensor, " head"]:
    """Mean direct effect of what layer 2's heads write because of one part of the stream they read."""
    effect = a.once("effect of values", lambda: _effect_of_values(a))
    read = _normalised(a, _stream(a, part), "blocks.1.ln1.hook_scale")
    return torch.linalg.vecdot(effect.flatten(2), read.flatten(1)).double().sum(-1)


def _effect_of_values(a: Activations) -> Float[Tensor, "head batch key d"]:
    """The g_s with mean over triggers t of sum_s A[t, s] (w_U(y_t) - mean)^T Phi_2 x_s = sum_s g_s^T x_s for any x.

    The attention of triggers with the same target is added up first, to save multiplications.
    """
    triggers = _triggers(a)
    attention = a.pattern(2).movedim(1, 2)[triggers] / triggers.sum()
    if "ln_final.hook_scale" in a.cache:
        attention = attention / a.cache["ln_final.hook_scale"][triggers].unsqueeze(-1)
    w_U = a.stack.embedding("w_U")[0, 0]
    row = triggers.nonzero()[:, 0] * len(w_U) + a.batch.targets[triggers]
    to_target = attention.new_zeros(len(triggers) * len(w_U), *attention.shape[1:]).index_add_(0, row, attention)
    written = (w_U - w_U.mean(0)) @ a.stack.memory("Phi_2")[0]
    return torch.einsum("bvhk,hvd->hbkd", to_target.unflatten(0, (-1, len(w_U))), written)


def _read_by_feed_forward(a: Activations, part: str) -> Float[Tensor, "batch pos d"]:
    a.stack.require_weights("blocks.1.mlp.W_F", "a linear feed-forward in layer 2")
    if a.parallel:
        raise UnsupportedError("needs sequential blocks, in this model W_F does not read layer 2's output")
    read = _normalised(a, _stream(a, part), "blocks.1.ln2.hook_scale")
    return read @ a.stack.memory("W_F")[0, 0].mT


def _normalised(a: Activations, stream: Tensor, hook: str) -> Tensor:
    """The stream over its LayerNorm's scale (centring and gain are folded into the matrices)."""
    return stream / a.cache[hook] if hook in a.cache else stream


ABOVE = "logit of the target above the average, on triggers"


def heads_probe(layer: int) -> Probe:
    about = f"layer {layer}: output of each head -> {ABOVE}"
    name, family = f"dla_heads{layer}", "attribution"
    return Probe(name, about, lambda a: _of_heads(a, layer), "activations", (layer,), family)


def feed_forward_probe(layer: int) -> Probe:
    about = f"feed-forward of layer {layer} -> {ABOVE}"
    return _probe(f"dla_feed_forward{layer}", about, lambda a: _feed_forward(a, layer))


def _probe(name: str, about: str, stream: Callable[[Activations], Tensor]) -> Probe:
    return Probe(name, about, lambda a: _mean(a, stream(a)[_triggers(a)]), "activations", (), "attribution")


NUMBERED = {"dla_heads": heads_probe, "dla_feed_forward": feed_forward_probe}
PROBES = {
    probe.name: probe
    for probe in [
        _probe("dla_token", f"w_E(z_t) -> {ABOVE}", partial(_stream, part="token")),
        _probe("dla_position", f"p_t -> {ABOVE}", partial(_stream, part="position")),
        *(heads_probe(layer) for layer in (1, 2)),
        *(feed_forward_probe(layer) for layer in (1, 2)),
        *(
            Probe(
                f"dla_W_O2_{part}",
                f"sum_s A[t, s] of {what} -> logit of the target, on triggers",
                partial(_read_by_values, part=part),
                "activations",
                (2,),
                "attribution",
            )
            for part, what in _W_O2.items()
        ),
        *(
            _probe(
                f"dla_W_F_{part}",
                f"{what} -> logit of the target, on triggers",
                partial(_read_by_feed_forward, part=part),
            )
            for part, what in _W_F.items()
        ),
    ]
}
