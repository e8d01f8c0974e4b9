"""The slow, obvious twin of the patching engine: one HookedTransformer forward a variant, everything through hooks."""

from contextlib import contextmanager

import torch

from induction_memory.runner.components import ARROW, Graph, head_of


@contextmanager
def split_inputs(model):
    """Give every head inputs of its own, and separate outputs, as TransformerLens offers."""
    flags = ("use_split_qkv_input", "use_attn_result", "use_hook_mlp_in")
    before = {flag: getattr(model.cfg, flag) for flag in flags}
    try:
        for flag in flags:
            setattr(model.cfg, flag, True)
        yield model
    finally:
        for flag, value in before.items():
            setattr(model.cfg, flag, value)


def blend(own, patch):
    new = own + patch.amount * (patch.value - own)
    return new if patch.where is None else torch.where(patch.where.unsqueeze(-1), new, own)


def hooked_logits(model, tokens, variant):
    graph, written = Graph.of(model), {}
    nodes = [patch for patch in variant if ARROW not in patch.site]
    edges = [(*patch.site.split(ARROW), patch) for patch in variant if ARROW in patch.site]

    def write(name, value):
        for patch in nodes:
            if patch.site == name:
                value = blend(value, patch)
        written[name] = value
        return value

    def read(name, stream):
        for source, target, patch in edges:
            if target == name:
                stream = stream + blend(written[source], patch) - written[source]
        return stream

    def per_head(function, layer, suffix=""):
        def hook(value, hook):
            heads = graph.heads_of(layer)
            return torch.stack([function(h + suffix, value[:, :, head_of(h)[1] - 1]) for h in heads], dim=2)

        return hook

    def whole(function, name):
        return lambda value, hook: function(name, value)

    hooks = [("hook_embed", whole(write, "embed"))]
    if graph.positions:
        hooks.append(("hook_pos_embed", lambda v, hook: write("pos", v.expand(*tokens.shape, -1))))
    for layer in range(1, graph.n_layers + 1):
        block = f"blocks.{layer - 1}"
        for letter in "qkv":
            hooks.append((f"{block}.hook_{letter}_input", per_head(read, layer, f".{letter}")))
            hooks.append((f"{block}.attn.hook_{letter}", per_head(write, layer, f".{letter}")))
        hooks.append((f"{block}.attn.hook_result", per_head(write, layer)))
        if layer in graph.feed_forwards:
            hooks.append((f"{block}.hook_mlp_in", whole(read, f"FF{layer}")))
            hooks.append((f"{block}.hook_mlp_out", whole(write, f"FF{layer}")))
    hooks.append((f"blocks.{graph.n_layers - 1}.hook_resid_post", whole(read, "out")))
    with split_inputs(model), torch.no_grad():
        return model.run_with_hooks(tokens, fwd_hooks=hooks)
