import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import embedding, matrix, set_matrix
from tests.model.test_build import ARCHITECTURES, SMALL, randomised

TOKENS = torch.randint(0, 7, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["simplified", "full", "full, four heads", "unscaled, as in the text, sinusoidal"])
@pytest.mark.parametrize("layer", [1, 2])
def test_key_query_memories_give_the_attention_scores(name, layer):
    model = randomised(ARCHITECTURES[name])
    _, cache = model.run_with_cache(TOKENS)
    x = cache[f"blocks.{layer - 1}.hook_resid_pre"]
    W = matrix(model, f"W_K{layer}")
    W = W if W.dim() == 3 else W[None]
    scores = torch.einsum("bqi,hij,bkj->bhqk", x, W, x) / model.blocks[0].attn.attn_scale
    kept = torch.ones(9, 9, dtype=torch.bool).tril()
    assert torch.allclose(scores[..., kept], cache[f"blocks.{layer - 1}.attn.hook_attn_scores"][..., kept], atol=1e-4)


def test_folded_memories_give_layer_norms_scores_up_to_the_norms_of_query_and_key():
    config = ModelConfig.full(**SMALL, layer_norm=True)
    model = build(config)
    with torch.no_grad():
        model.blocks[0].ln1.w.copy_(torch.rand(16) + 0.5)
    _, cache = model.run_with_cache(TOKENS)
    x = cache["blocks.0.hook_resid_pre"]
    std = (x.var(-1, unbiased=False) + 1e-5).sqrt()
    scores = torch.einsum("bqi,ij,bkj->bqk", x, matrix(model, "W_K1"), x) / std[:, :, None] / std[:, None, :] / 4
    kept = torch.ones(9, 9, dtype=torch.bool).tril()
    assert torch.allclose(scores[:, kept], cache["blocks.0.attn.hook_attn_scores"][:, 0][:, kept], atol=1e-4)
    assert not torch.allclose(matrix(model, "W_K1"), matrix(model, "W_K1", fold=False))


@pytest.mark.parametrize("name", ["simplified", "full, four heads"])
def test_value_output_memories_give_what_attending_to_one_token_adds(name):
    model = build(ARCHITECTURES[name])
    _, cache = model.run_with_cache(TOKENS[:, :1])  # a single position attends to itself
    x = cache["blocks.0.hook_resid_pre"][:, 0]
    Phi = matrix(model, "Phi_1")
    added = torch.einsum("...ij,bj->...bi", Phi, x)
    added = added.sum(0) if Phi.dim() == 3 else added
    assert torch.allclose(added, cache["blocks.0.hook_attn_out"][:, 0], atol=1e-5)
    assert torch.allclose(Phi, matrix(model, "W_O1") @ matrix(model, "W_V1"), atol=1e-6)


def test_the_feed_forward_memory_maps_columns():
    model = build(ModelConfig.simplified(**SMALL))
    _, cache = model.run_with_cache(TOKENS)
    x = cache["blocks.1.hook_resid_mid"][0, 3]
    assert torch.allclose(matrix(model, "W_F") @ x, cache["blocks.1.hook_mlp_out"][0, 3], atol=1e-5)


def test_remapped_embeddings_are_products_and_follow_heads_and_steps():
    one = build(ModelConfig.simplified(**SMALL))
    assert torch.allclose(embedding(one, "Phi_1 w_E")[3], matrix(one, "Phi_1") @ embedding(one, "w_E")[3], atol=1e-6)
    assert embedding(one, "w_U").shape == (7, 16)
    four = build(ModelConfig.full(**SMALL, n_heads=4))
    assert embedding(four, "W_V2 w_E").shape == (4, 7, 4)
    assert torch.allclose(
        embedding(four, "Phi_1 p")[2, 5], matrix(four, "Phi_1")[2] @ embedding(four, "p")[5], atol=1e-6
    )


@pytest.mark.parametrize("name", ["simplified", "LayerNorm, four heads"])
def test_a_stack_of_states_gives_a_stack_of_memories(name):
    models = [randomised(ARCHITECTURES[name], seed) for seed in range(3)]
    states = [dict(m.named_parameters()) for m in models]
    stack = {n: torch.stack([s[n].detach() for s in states]) for n in states[0]}
    for what in ("W_K1", "W_K2", "W_O2", "Phi_1"):
        assert torch.allclose(matrix(stack, what), torch.stack([matrix(m, what) for m in models]), atol=1e-6)
    for what in ("w_E", "p", "w_U", "Phi_1 w_E", "W_V2 w_E"):
        assert torch.allclose(embedding(stack, what), torch.stack([embedding(m, what) for m in models]), atol=1e-6)


@pytest.mark.parametrize("name", ["W_K1", "W_K2", "W_O2", "W_V1", "W_F"])
def test_what_is_written_is_read_back(name):
    model = build(ModelConfig.simplified(**SMALL))
    W = torch.randn(16, 16)
    set_matrix(model, name, W)
    assert torch.equal(matrix(model, name), W)


def test_key_query_memories_are_written_through_trained_queries():
    model = build(ModelConfig.full(**SMALL))
    W = torch.randn(16, 16)
    set_matrix(model, "W_K2", W)
    assert torch.allclose(matrix(model, "W_K2"), W, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: matrix(m, "W_X1"), "memory: expected W_K, W_V, W_O or Phi_"),
        (lambda m: matrix(m, "W_K7"), "memory: expected a layer from 1 to 2, got 'W_K7'"),
        (lambda m: matrix(m, "W_K"), "memory: expected W_K, W_V, W_O or Phi_ with a layer's number"),
        (lambda m: matrix(m, "W_F"), "memory: expected a model with a linear feed-forward"),
        (lambda m: embedding(m, "w_X"), "embedding: expected w_E, p or w_U"),
        (lambda m: set_matrix(m, "Phi_1", torch.zeros(16, 16)), "memory: expected W_K, W_V or W_O"),
        (lambda m: set_matrix(m, "W_K", torch.zeros(16, 16)), "memory: expected W_K, W_V or W_O"),
    ],
)
def test_unknown_names_are_refused(call, message):
    with pytest.raises(InputError) as error:
        call(build(ModelConfig.simplified(**SMALL, feed_forward="none")))
    assert str(error.value).startswith(message)


def test_remapped_embeddings_follow_steps_and_heads_when_only_the_tokens_train():
    model = build(ModelConfig.full(**SMALL, n_heads=2))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    steps = [weights | {"embed.W_E": torch.randn(7, 16)} for _ in range(2)]  # as many steps as heads
    stack = weights | {"embed.W_E": torch.stack([state["embed.W_E"] for state in steps])}
    for what in ("W_V2 w_E", "Phi_1 w_E"):
        each = torch.stack([embedding(state, what) for state in steps])
        assert embedding(stack, what).shape == each.shape
        assert torch.allclose(embedding(stack, what), each, atol=1e-6)


def test_the_package_offers_the_matrices_of_a_model_beside_the_mathematics_of_memories():
    import induction_memory as im
    import induction_memory.memory as mathematics

    assert im.memory is mathematics
    assert im.model.matrix is matrix
    assert im.model.embedding is embedding
