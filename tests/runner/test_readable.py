"""Memories from the weights of others' models: equal to what hooks read, or refused."""

from importlib.metadata import version

import pytest
import torch
import torch.nn.functional as F
import transformer_lens as lens

import induction_memory as im
from induction_memory.errors import UnsupportedError
from induction_memory.model.bridge import boot
from induction_memory.model.memories import Memories
from induction_memory.runner.checked import checked
from induction_memory.source.sources import model_weights, select
from tests.trajectory.series import tiny


def memories_of(model):
    return checked(model).memories


pytestmark = pytest.mark.slow
READABLE = ["gpt2", "neox", "llama", "llama-shared", "olmo", "qwen2"]
REFUSED = {
    "olmo2": "attention scores are not those of W_Q and W_K",
    "qwen3": "attention scores are not those of W_Q and W_K",
    "gemma": "embeddings are changed before they enter the stream",
}


@pytest.fixture(scope="module")
def booted(tmp_path_factory):
    """Every tiny model, with gains and biases that differ from dimension to dimension."""
    models, generator = {}, torch.Generator().manual_seed(0)
    for kind in [*READABLE, *REFUSED]:
        inner = tiny(kind)
        with torch.no_grad():
            for parameter in inner.parameters():
                if parameter.dim() == 1:
                    parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
        folder = tmp_path_factory.mktemp(kind)
        inner.save_pretrained(folder)
        models[kind] = boot(folder)
    return models


@pytest.mark.parametrize("kind", READABLE)
def test_key_query_memories_are_the_scores_that_hooks_read(booted, kind):
    """The score of a token for itself: rotary positions cancel, and biases are added by hand."""
    model = booted[kind]
    weights, tokens = model_weights(model), torch.arange(10)
    stream, kept = {}, {}
    hooks = [("blocks.1.hook_resid_pre", lambda x, hook: stream.update(x=x[0]))]
    hooks += [("blocks.1.attn.hook_attn_scores", lambda x, hook: kept.update(scores=x[0]))]
    with torch.no_grad():
        model.run_with_hooks(tokens[None], fwd_hooks=hooks)
    m = Memories(weights)
    x = m.normed("blocks.1.ln1", stream["x"][None])[0]
    raw = m.memory("W_K2", fold=False)[0]
    attn = model.blocks[1].attn
    q0, k0 = (getattr(attn, f"b_{one}", None) for one in "QK")
    for head in range(2):
        W_Q, W_K = (m.weights[f"blocks.1.attn.W_{one}"][head] for one in "QK")
        expected = torch.einsum("pd,de,pe->p", x, raw[head], x)
        if q0 is not None:
            expected = ((x @ W_Q + q0[head]) * (x @ W_K + k0[head])).sum(-1)
        found = kept["scores"][head].diagonal() * 8**0.5
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", READABLE)
def test_folded_value_output_memories_are_what_hooks_read(booted, kind):
    """Logits of what a head writes for a token, less those for an empty stream, equal up to a factor per token."""
    model, weights = booted[kind], model_weights(booted[kind])
    m, rows = Memories(weights), model.W_E.detach()[1:]  # the first one pads: it is zero in some models
    empty = im.hooks.written(model, "L1H2", torch.zeros(1, 16))
    written = im.hooks.written(model, "L1H2", rows) - empty
    logits = m.centred("ln_final", written[None])[0] @ model.W_U.detach()

    def by_weights(known):
        return rows @ known.memory("Phi_1")[0, 1].T @ m.embedding("w_U")[0, 0].T

    assert F.cosine_similarity(logits, by_weights(m), dim=-1).min() > 0.9999
    gainless = {name: torch.ones_like(w) if name.endswith("ln1.w") else w for name, w in weights.items()}
    if kind != "olmo":  # its norms have no gains
        assert F.cosine_similarity(logits, by_weights(Memories(gainless)), dim=-1).min() < 0.99


@pytest.mark.parametrize("kind", REFUSED)
def test_what_the_weights_do_not_say_is_refused(booted, kind):
    model = booted[kind]
    assert REFUSED[kind] in memories_of(model)
    with pytest.raises(UnsupportedError, match="here"):
        select(model).stack.memory("W_K2")
    table = im.probes.table(model, ["W_O2", "repeated_previous1"])
    assert set(table["probe"]) == {"repeated_previous1"}
    assert REFUSED[kind] in table.attrs["skipped"]["W_O2"]


def test_hooks_of_the_user_s_do_not_change_the_verdict(booted):
    model = booted["llama"]
    model.add_hook("blocks.0.hook_resid_pre", lambda x, hook: 3 * x)
    try:
        assert memories_of(model) is None
    finally:
        model.reset_hooks()


def test_roles_of_a_refused_model_have_no_vote_of_weights(booted):
    tokens = torch.randint(61, (4, 10), generator=torch.Generator().manual_seed(0)).repeat(1, 2)
    found = im.heads.identify(booted["olmo2"], batch=tokens)
    votes = found.votes.set_index("vote")["score"]
    assert votes["weights"].isna().all()
    assert not votes["attention"].isna().any()


@pytest.mark.parametrize("field", [{"use_qk_norm": True}, {"use_normalization_before_and_after": True}])
def test_a_hooked_transformer_is_judged_by_its_activations(field):
    if int(version("transformer-lens").split(".")[0]) >= 4:
        pytest.skip("TransformerLens 4 has no HookedTransformer")
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_head": 8, "n_ctx": 12, "d_vocab": 7, "d_mlp": 24}
    sizes |= {"act_fn": "gelu", "normalization_type": "RMS"}
    assert memories_of(lens.HookedTransformer(lens.HookedTransformerConfig(**sizes))) is None
    bent = lens.HookedTransformer(lens.HookedTransformerConfig(**sizes, **field))
    assert "largest deviation" in memories_of(bent)
    with pytest.raises(UnsupportedError, match="largest deviation"):
        select(bent).stack.memory("W_K1")
