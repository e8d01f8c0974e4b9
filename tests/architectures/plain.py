"""The same analyses in plain TransformerLens and transformers code, written for the test alone.

heads             zero in place of what a head writes
keys and values   zero in place of a head's keys or values
edges             the stream that an input reads, without what a writer wrote into it
patterns          the attention of every layer
attribution       (w_U(y) - mean w_U)^T N'(W_O z), N' the linear part of the last norm at its scale
recall            by how much w_U^T Phi w_E, and w_E^T W_Q W_K^T w_E behind N'_1, prefer a token itself
"""

from contextlib import ExitStack
from types import SimpleNamespace

import torch


def kl(intact, changed):
    """KL(p_intact || p_changed), averaged over all positions."""
    log_p, log_q = intact.double().log_softmax(-1), changed.double().log_softmax(-1)
    return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())


def attribution(written, stream, final, W_U, tokens, eps):
    """The mean direct effect of what heads [batch, pos, head, d] write, where the pair of tokens occurred before."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    pairs = inputs * 1000 + targets
    seen = (pairs[:, :, None] == pairs[:, None, :]).tril(-1).any(-1)
    gain, centres = final
    if centres is not None:
        x = stream - stream.mean(-1, keepdim=True) if centres else stream
        written = (written - written.mean(-1, keepdim=True) if centres else written) * gain
        written = written / (x.square().mean(-1, keepdim=True) + eps).sqrt()[:, :, None]
    directions = W_U.T[targets] - W_U.mean(1)
    return torch.einsum("bphd,bpd->bph", written, directions)[seen].mean(0).tolist()


def margins(scores):
    """By how much the score of a token's own target exceeds the best other score in its row, on average."""
    own = scores.diagonal(dim1=-2, dim2=-1)
    others = scores.masked_fill(torch.eye(scores.shape[-1], dtype=torch.bool), -torch.inf).amax(-1)
    return (own - others).mean(-1).tolist()


class Hooked:
    """A HookedTransformer, with its flags set by hand."""

    def __init__(self, model, tokens):
        self.model, self.tokens, self.cfg = model, tokens, model.cfg
        model.set_use_split_qkv_input(True)
        model.set_use_attn_result(True)
        if not model.cfg.attn_only:
            model.set_use_hook_mlp_in(True)
        with torch.no_grad():
            self.intact, self.cache = model.run_with_cache(tokens[:, :-1])
        self.n_layers, self.n_heads = model.cfg.n_layers, model.cfg.n_heads

    def run(self, hooks):
        with torch.no_grad():
            return kl(self.intact, self.model.run_with_hooks(self.tokens[:, :-1], fwd_hooks=hooks))

    def head(self, layer, head):
        return self.run([(f"blocks.{layer}.attn.hook_result", _without(head))])

    def part(self, layer, head, letter):
        return self.run([(f"blocks.{layer}.attn.hook_{letter}", _without(head))])

    def writes(self, writer):
        if writer in ("embed", "pos"):
            return self.cache["hook_embed" if writer == "embed" else "hook_pos_embed"].expand_as(
                self.cache["hook_embed"]
            )
        layer = int(writer[1 if writer[0] == "L" else 2]) - 1
        if writer.startswith("FF"):
            return self.cache[f"blocks.{layer}.hook_mlp_out"]
        return self.cache[f"blocks.{layer}.attn.hook_result"][:, :, int(writer[3]) - 1]

    def edge(self, writer, reader):
        own = self.writes(writer)
        if reader == "out":
            return self.run([(f"blocks.{self.n_layers - 1}.hook_resid_post", lambda x, hook: x - own)])
        if reader.startswith("FF"):
            return self.run([(f"blocks.{int(reader[2]) - 1}.hook_mlp_in", lambda x, hook: x - own)])
        layer, head, letter = int(reader[1]) - 1, int(reader[3]) - 1, reader[-1]

        def less(x, hook):
            x = x.clone()
            x[:, :, head] = x[:, :, head] - own
            return x

        return self.run([(f"blocks.{layer}.hook_{letter}_input", less)])

    def patterns(self):
        return [self.cache[f"blocks.{layer}.attn.hook_pattern"] for layer in range(self.n_layers)]

    def norm(self, module):
        """(gain, whether it centres; None without a norm)."""
        kind = type(module).__name__
        return getattr(module, "w", 1.0), None if kind in ("Identity", "NoneType") else kind.startswith("LayerNorm")

    def attribution(self, layer):
        final, eps = self.norm(getattr(self.model, "ln_final", None)), self.cfg.eps
        stream = self.cache[f"blocks.{self.n_layers - 1}.hook_resid_post"]
        written = self.cache[f"blocks.{layer}.attn.hook_result"]
        return attribution(written, stream, final, self.model.W_U, self.tokens, eps)

    def recall(self, layer, rows):
        attn, ln1 = self.model.blocks[layer].attn, self.norm(self.model.blocks[layer].ln1)
        final = self.norm(getattr(self.model, "ln_final", None))
        return recall(self.model.W_E[rows], self.model.W_U[:, rows], attn, ln1, final)


def linear(norm, x):
    gain, centres = norm
    if centres is None:
        return x
    return (x - x.mean(-1, keepdim=True) if centres else x) * gain


@torch.no_grad()
def recall(w_E, W_U, attn, ln1, final):
    """The margins of OV and QK of each head."""
    read = linear(ln1, w_E)
    written = torch.einsum("id,hde,hef->hif", read, attn.W_V, attn.W_O)
    OV = linear(final, written) @ W_U
    QK = torch.einsum("jd,hde,hke,ik->hji", read, attn.W_Q, attn.W_K, read)
    return margins(OV), margins(QK)


def _without(head):
    def hook(value, hook):
        value = value.clone()
        value[:, :, head] = 0
        return value

    return hook


NAMES = {
    "blocks": "model.layers",
    "embed": "model.embed_tokens",
    "final": "model.norm",
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
    "mlp": "mlp",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
}
_GPT = {
    "blocks": "transformer.h",
    "embed": "transformer.wte",
    "final": "transformer.ln_f",
    "ln1": "ln_1",
    "ln2": "ln_2",
}
_JOINT = dict.fromkeys("qkv", "attn.c_attn")
_BLOOM = {"blocks": "transformer.h", "embed": "transformer.word_embeddings", "final": "transformer.ln_f"}
_BLOOM |= {"o": "self_attention.dense"} | dict.fromkeys("qkv", "self_attention.query_key_value")
_SPLIT = {letter: f"attn.{letter}_proj" for letter in "qkv"}
_GEMMA = {"ln2": "pre_feedforward_layernorm", "written": "post_feedforward_layernorm"}
OTHER_NAMES = {
    "gpt2": _GPT | {"pos": "transformer.wpe", "o": "attn.c_proj"} | _JOINT,
    "gptj": _GPT | {"ln2": "ln_1", "o": "attn.out_proj"} | _SPLIT,
    "gpt_neo": _GPT
    | {"pos": "transformer.wpe", "o": "attn.attention.out_proj"}
    | {letter: f"attn.attention.{letter}_proj" for letter in "qkv"},
    "gpt_neox": {"blocks": "gpt_neox.layers", "embed": "gpt_neox.embed_in", "final": "gpt_neox.final_layer_norm"}
    | {"o": "attention.dense"}
    | dict.fromkeys("qkv", "attention.query_key_value"),
    "bloom": _BLOOM | {"written": "mlp.dense_4h_to_h"},
    "falcon": _BLOOM | {"ln2": "input_layernorm"},
    "mpt": {"blocks": "transformer.blocks", "embed": "transformer.wte", "final": "transformer.norm_f"}
    | {"ln1": "norm_1", "ln2": "norm_2", "mlp": "ffn", "written": "ffn.down_proj", "o": "attn.out_proj"}
    | dict.fromkeys("qkv", "attn.Wqkv"),
    "codegen": _GPT | {"ln2": "ln_1", "o": "attn.out_proj"} | dict.fromkeys("qkv", "attn.qkv_proj"),
    "phi3": dict.fromkeys("qkv", "self_attn.qkv_proj"),
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "olmo2": {"ln1": "self_attn.q_proj", "ln2": "mlp", "written": "post_feedforward_layernorm"},
    "opt": {
        "blocks": "model.decoder.layers",
        "embed": "model.decoder.embed_tokens",
        "pos": "model.decoder.embed_positions",
    }
    | {"final": "model.decoder.final_layer_norm", "ln1": "self_attn_layer_norm", "ln2": "final_layer_norm"}
    | {"o": "self_attn.out_proj", "mlp": "fc1", "written": "fc2"},
    "phi": {"final": "model.final_layernorm", "ln2": "input_layernorm", "o": "self_attn.dense"},
    "cohere": {"ln2": "input_layernorm"},
}
"""Where the modules of a family differ from Llama's."""


class Transformers:
    """A model of transformers with hooks of torch at its modules."""

    n_layers, n_heads, d_head = 2, 4, 8

    def __init__(self, family, model, tokens):
        self.family, self.model, self.tokens = family.partition(",")[0], model, tokens
        self.names = NAMES | OTHER_NAMES.get(self.family, {})
        self.blocks = model.get_submodule(self.names["blocks"])
        self.kept = {}
        with ExitStack() as stack:
            for layer, block in enumerate(self.blocks):
                for name in ("o", "ln1", "ln2", "mlp"):
                    self.enter(stack, block, name, (layer, name))
                written = block.get_submodule(self.names.get("written", self.names["mlp"]))
                stack.enter_context(_removed(written.register_forward_hook(self.note_output((layer, "written")))))
            for name in ("embed", "pos"):
                if name in self.names:
                    module = model.get_submodule(self.names[name])
                    stack.enter_context(_removed(module.register_forward_hook(self.note_output(name))))
            self.enter(stack, model, "final", "final")
            with torch.no_grad():
                found = model(tokens[:, :-1], output_attentions=True)
        self.intact, self.attentions = found.logits, found.attentions

    def enter(self, stack, owner, name, key):
        def note(module, args, kwargs):
            self.kept[key] = (args[0] if args else kwargs["hidden_states"]).detach()

        module = owner.get_submodule(self.names[name])
        stack.enter_context(_removed(module.register_forward_pre_hook(note, with_kwargs=True)))

    def note_output(self, key):
        def note(module, args, output):
            output = output[0] if isinstance(output, tuple) else output
            self.kept[key] = output.detach().clone()  # Falcon adds to it in place

        return note

    def run(self, handles):
        with ExitStack() as stack, torch.no_grad():
            for handle in handles:
                stack.enter_context(_removed(handle))
            return kl(self.intact, self.model(self.tokens[:, :-1]).logits)

    def columns(self, letter, head):
        """The columns of a projection that are a head's queries, keys or values."""
        d, place = self.d_head, ("qvk" if self.family == "codegen" else "qkv").index(letter)
        if self.family in ("gpt2", "mpt", "phi3"):
            start = place * self.n_heads * d + head * d
        elif self.family in ("gpt_neox", "bloom", "codegen", "falcon"):
            start = head * 3 * d + place * d
        else:
            start = head * d
        return slice(start, start + d)

    def head(self, layer, head):
        def hook(module, args):
            x = args[0].clone()
            x[..., head * self.d_head : (head + 1) * self.d_head] = 0
            return (x, *args[1:])

        return self.run([self.blocks[layer].get_submodule(self.names["o"]).register_forward_pre_hook(hook)])

    def part(self, layer, head, letter, value=lambda module: 0):
        columns = self.columns(letter, head)

        def hook(module, args, output):
            output = output.clone()
            found = value(module)
            output[..., columns] = found if isinstance(found, int) else found[..., columns]
            return output

        return self.run([self.blocks[layer].get_submodule(self.names[letter]).register_forward_hook(hook)])

    def writes(self, writer):
        if writer in ("embed", "pos"):
            return self.kept[writer]
        layer = int(writer[1 if writer[0] == "L" else 2]) - 1
        scale = getattr(self.model.config, "residual_multiplier", 1.0)
        if writer.startswith("FF"):
            return scale * self.kept[layer, "written"].view(len(self.tokens), -1, 32)
        return scale * self.written(layer)[:, :, int(writer[3]) - 1]

    def written(self, layer):
        """What each head writes [batch, pos, head, d_model]."""
        z = self.kept[layer, "o"].unflatten(-1, (self.n_heads, self.d_head))
        weight = self.blocks[layer].get_submodule(self.names["o"]).weight.detach()
        W_O = (weight if self.family == "gpt2" else weight.T).unflatten(0, (self.n_heads, self.d_head))
        return torch.einsum("bphe,hed->bphd", z, W_O)

    def edge(self, writer, reader):
        own = self.writes(writer)
        if reader == "out":
            final = self.model.get_submodule(self.names["final"])
            return self.run([final.register_forward_pre_hook(lambda module, args: (args[0] - own,))])
        layer = int(reader[2 if reader.startswith("FF") else 1]) - 1
        block = self.blocks[layer]
        name = "ln2" if reader.startswith("FF") else "ln1"
        norm, x = block.get_submodule(self.names[name]), self.kept[layer, name]
        norm = torch.nn.Identity() if self.family == "olmo2" else norm  # which has norms after its parts only
        if reader.startswith("FF"):
            changed = norm.forward(x.view(len(self.tokens), -1, 32) - own)

            def hook(module, args):
                return (changed.view_as(args[0]), *args[1:])

            return self.run([block.get_submodule(self.names["mlp"]).register_forward_pre_hook(hook)])
        return self.part(layer, int(reader[3]) - 1, reader[-1], lambda module: module.forward(norm.forward(x - own)))

    def patterns(self):
        return list(self.attentions)

    def norm(self, module):
        """(gain, whether it centres)."""
        gain = getattr(module, "weight", None)
        gain = 1.0 if gain is None else gain.detach() + (self.family.startswith("gemma"))
        return gain, "LayerNorm" in type(module).__name__

    def attribution(self, layer):
        module = self.model.get_submodule(self.names["final"])
        eps = next((getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name)), 1e-5)
        W_U = self.model.get_output_embeddings().weight.detach().T
        return attribution(self.written(layer), self.kept["final"], self.norm(module), W_U, self.tokens, eps)

    @torch.no_grad()
    def recall(self, layer, rows):
        block, attn = self.blocks[layer], SimpleNamespace()
        for letter in "qkv":
            weight = block.get_submodule(self.names[letter]).weight
            weight = weight if self.family == "gpt2" else weight.T
            each = [weight[:, self.columns(letter, head)] for head in range(self.n_heads)]
            setattr(attn, f"W_{letter.upper()}", torch.stack(each))
        weight = block.get_submodule(self.names["o"]).weight
        attn.W_O = (weight if self.family == "gpt2" else weight.T).unflatten(0, (self.n_heads, self.d_head))
        ln1, final = block.get_submodule(self.names["ln1"]), self.model.get_submodule(self.names["final"])
        w_E = self.model.get_submodule(self.names["embed"]).weight[rows]
        W_U = self.model.get_output_embeddings().weight.T[:, rows]
        return recall(w_E, W_U, attn, self.norm(ln1), self.norm(final))


class _removed:
    def __init__(self, handle):
        self.handle = handle

    def __enter__(self):
        return self.handle

    def __exit__(self, *_):
        self.handle.remove()
