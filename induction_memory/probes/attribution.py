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
forward pass and its bias is left out, so that attributions stay linear. With several heads, one value per head. All of
them are sums over the paths of `why.py`, and are refused if all paths and biases do not add up to the logits.
"""

from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from induction_memory.errors import UnsupportedError
from induction_memory.probes.activations import Activations
from induction_memory.probes.registry import Probe
from induction_memory.probes.why import ROUNDING, WHOLE, Streams

_W_O2 = {"token": "Phi_2 w_E(z_s)", "position": "Phi_2 p_s", "layer1": "Phi_2 x layer 1's output at s"}
_W_F = {"token": "W_F w_E(z_t)", "position": "W_F p_t", "layer1": "W_F x layer 1's output", "layer2": "W_F x layer 2's"}
Effects = dict[tuple[str, ...], Tensor]
"""The components on a path and its end -> mean effect, with paths through one head at most."""


def _effects(a: Activations) -> Effects:
    """The mean over triggers of each path's effect on (w_U(y) - mean of w_U)^T N(x), without the bias of N."""
    triggers, found = _triggers(a), Effects()
    for row, at in enumerate(one.nonzero().flatten() for one in triggers):
        streams = Streams(a, row, deep=False)
        w_U, y = streams.weight("unembed.W_U").T, a.batch.targets[row, at][:, None]
        logits = a.logits[row, at] - streams.bias("unembed.b_U")
        missing = logits.gather(-1, y)[:, 0] - logits.mean(-1)
        f = w_U[y] - w_U.mean(0)
        f, weight, constant = streams.behind("ln_final", f, torch.ones_like(f[..., 0]), at)
        missing, size = missing - constant[:, 0], missing.abs()
        for leaf in streams.expand("out", f, weight, at):
            path, value = (*leaf.path, leaf.part), leaf.value.sum(-1)
            found[path] = found.get(path, 0.0) + value.double().sum() / triggers.sum()
            missing, size = missing - value, size + value.abs()
        if len(at) and bool((missing.abs() > ROUNDING * size.clamp_min(1.0)).any()):
            raise UnsupportedError(f"needs {WHOLE}: of the logits, a sum misses {float(missing.abs().max()):.3g}")
    return found


def _triggers(a: Activations) -> Bool[Tensor, "batch pos"]:
    """The positions of the task's main group, each with one right output."""
    triggers = a.batch.group()
    if not triggers.any():
        raise UnsupportedError(f"needs positions of the group {a.batch.main}, the batch has none")
    if a.batch.soft:
        raise UnsupportedError("needs one right output for each position, the targets are distributions")
    return triggers


def _sum(a: Activations, *starts: tuple[str, ...]) -> Float[Tensor, ""]:
    """The effect of all paths that begin with one of these."""
    effects = a.once("effects of paths", lambda: _effects(a))
    chosen = [value for path, value in effects.items() if any(path[: len(start)] == start for start in starts)]
    return torch.stack(chosen).sum() if chosen else torch.zeros((), dtype=torch.float64)


def _parts(a: Activations, read: str) -> list[str]:
    """The parts of the stream that `token`, `position` or `layer1` means."""
    if read in ("token", "position"):
        hook = "hook_embed" if read == "token" else "hook_pos_embed"
        if hook not in a.cache:
            raise UnsupportedError(f"needs the hook {hook}, the model has none")
        return ["embed" if read == "token" else "pos"]
    layer = int(read.removeprefix("layer"))
    a.pattern(layer)  # raises an error if there is no such layer
    return [*(f"L{layer}H{head}" for head in range(1, a.n_heads + 1)), f"FF{layer}"]


def _direct(a: Activations, read: str) -> Float[Tensor, ""]:
    return _sum(a, *((part,) for part in _parts(a, read)))


def _of_heads(a: Activations, layer: int, read: str | None = None) -> Float[Tensor, " head"]:
    """The effect of each head of a layer, or of what its values read."""
    parts = [()] if read is None else [(part,) for part in _parts(a, read)]
    return torch.stack([_sum(a, *((head, *part) for part in parts)) for head in _parts(a, f"layer{layer}")[:-1]])


def _of_feed_forward(a: Activations, layer: int, read: str | None = None) -> Float[Tensor, ""]:
    """The effect of a feed-forward, or of what W_F reads."""
    own = _parts(a, f"layer{layer}")[-1]
    if read is None and layer not in Streams(a).graph.feed_forwards:
        raise UnsupportedError(f"needs a feed-forward in layer {layer}, the model has none")
    if read is not None:
        a.stack.require_weights("blocks.1.mlp.W_F", "a linear feed-forward in layer 2")
    if read is not None and a.parallel:
        raise UnsupportedError("needs sequential blocks, in this model W_F does not read layer 2's output")
    return _sum(a, *((own, part) for part in _parts(a, read))) if read else _sum(a, (own,))


ABOVE = "logit of the target above the average, on triggers"


def heads_probe(layer: int, read: str | None = None) -> Probe:
    name = f"dla_heads{layer}" if read is None else f"dla_W_O2_{read}"
    about = f"layer {layer}: output of each head -> {ABOVE}"
    if read is not None:
        about = f"sum_s A[t, s] of {_W_O2[read]} -> logit of the target, on triggers"
    return Probe(name, about, partial(_of_heads, layer=layer, read=read), "activations", (layer,), "attribution")


def feed_forward_probe(layer: int, read: str | None = None) -> Probe:
    name = f"dla_feed_forward{layer}" if read is None else f"dla_W_F_{read}"
    about = f"feed-forward of layer {layer} -> {ABOVE}"
    about = about if read is None else f"{_W_F[read]} -> logit of the target, on triggers"
    return Probe(name, about, partial(_of_feed_forward, layer=layer, read=read), "activations", (), "attribution")


def _embedding_probe(read: str, name: str) -> Probe:
    return Probe(f"dla_{read}", f"{name} -> {ABOVE}", partial(_direct, read=read), "activations", (), "attribution")


NUMBERED = {"dla_heads": heads_probe, "dla_feed_forward": feed_forward_probe}
PROBES = {
    probe.name: probe
    for probe in [
        *(_embedding_probe(read, name) for read, name in (("token", "w_E(z_t)"), ("position", "p_t"))),
        *map(heads_probe, (1, 2)),
        *map(feed_forward_probe, (1, 2)),
        *(heads_probe(2, read) for read in _W_O2),
        *(feed_forward_probe(2, read) for read in _W_F),
    ]
}
