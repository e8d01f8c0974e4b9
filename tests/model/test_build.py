import pytest
import torch

from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from tests import paper_model

SMALL = {"d_model": 16, "n_ctx": 9, "d_vocab": 7}
ARCHITECTURES = {
    "simplified": ModelConfig.simplified(**SMALL),
    "simplified without W_F": ModelConfig.simplified(**SMALL, feed_forward="none"),
    "unscaled, as in the text, sinusoidal": ModelConfig.simplified(
        **SMALL, scale_scores=False, parametrisation="text", positions="sinusoidal"
    ),
    "one layer": ModelConfig.simplified(**SMALL, n_layers=1),
    "three layers": ModelConfig.simplified(**SMALL, n_layers=3, feed_forward_layers="all"),
    "wide heads": ModelConfig.simplified(**SMALL, n_heads=2, d_head=16),
    "full": ModelConfig.full(**SMALL),
    "full, four heads": ModelConfig.full(**SMALL, n_heads=4),
    "LayerNorm": ModelConfig.full(**SMALL, layer_norm=True),
    "LayerNorm, four heads": ModelConfig.full(**SMALL, n_heads=4, layer_norm=True),
    "LayerNorm, ReLU in the last layer": ModelConfig.full(**SMALL, feed_forward_layers="last", layer_norm=True),
    "LayerNorm, attention only": ModelConfig.full(**SMALL, feed_forward="none", layer_norm=True),
    "parallel": ModelConfig.full(**SMALL, parallel_blocks=True, layer_norm=True),
    "tied": ModelConfig.full(**SMALL, tied_output=True),
}


def randomised(config: ModelConfig, seed: int = 0):
    """A built model whose LayerNorm parameters are not at their trivial start."""
    model = build(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".ln" in name or name.startswith("ln"):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_the_papers_equations(name):
    config = ARCHITECTURES[name]
    model = randomised(config)
    tokens = torch.randint(0, 7, (2, 9), generator=torch.Generator().manual_seed(1))
    ours = model(tokens).double()
    theirs = paper_model.logits(paper_model.paper_weights(model), config, tokens)
    assert (ours - theirs).abs().max() / theirs.abs().max() < 1e-5


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_parameter_has_a_paper_name_or_is_a_zero_frozen_bias(name):
    config = ARCHITECTURES[name]
    model = build(config)
    named = set(config.parameters.values())
    for parameter_name, parameter in model.named_parameters():
        if parameter_name not in named:
            assert parameter_name.rsplit(".", 1)[1].startswith("b_")
            assert not parameter.requires_grad
            assert not parameter.any()
    assert named <= {n for n, _ in model.named_parameters()}


def test_the_simplified_model_trains_keys_output_and_feed_forward_alone():
    model = build(ModelConfig.simplified(**SMALL))
    learns = {n for n, p in model.named_parameters() if p.requires_grad}
    assert learns == {"blocks.0.attn.W_K", "blocks.1.attn.W_K", "blocks.1.attn.W_O", "blocks.1.mlp.W_F"}
    assert set(model.trainable) == learns


def test_any_mix_can_be_frozen_by_name():
    model = build(ModelConfig.simplified(**SMALL, trained=("W_O2", "W_E")))
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {"blocks.1.attn.W_O", "embed.W_E"}


def test_queries_are_the_identity():
    model = build(ModelConfig.simplified(**SMALL))
    assert torch.equal(model.W_Q, torch.eye(16).expand(2, 1, 16, 16))


def test_initialisation_has_the_papers_variances():
    model = build(ModelConfig.full(d_model=128, n_ctx=256))
    assert model.W_E.var().item() == pytest.approx(1, rel=0.05)
    assert model.W_pos.var().item() == pytest.approx(1, rel=0.05)
    for W in (model.W_Q, model.W_K, model.W_V, model.W_O, model.W_U):
        assert W.var().item() == pytest.approx(1 / (3 * 128), rel=0.05)
        assert W.abs().max() <= 128**-0.5
    assert model.W_out.var().item() == pytest.approx(1 / (3 * 512), rel=0.05)


def test_embeddings_may_have_unit_norm():
    for parametrisation in ("text", "unit-embeddings"):
        config = ModelConfig.simplified(d_model=256, parametrisation=parametrisation)
        assert build(config).W_E.norm(dim=-1).mean().item() == pytest.approx(1, rel=0.05)
        sinusoidal = build(config.replace(positions="sinusoidal"))
        assert sinusoidal.W_pos.norm(dim=-1) == pytest.approx(torch.ones(256), rel=1e-5)


def test_every_embedding_of_the_text_has_unit_norm_and_gaussian_entries():
    config = ModelConfig.simplified(d_model=256, parametrisation="text", d_vocab=200)
    model, attention = build(config), [block.attn for block in build(config).blocks]
    remapped = model.W_E @ attention[0].W_V[0] @ attention[0].W_O[0]  # Phi_1 w_E
    for rows in (model.W_E, model.W_pos, model.W_U.mT, remapped, model.W_E @ attention[1].W_V[0]):
        assert rows.norm(dim=-1).mean().item() == pytest.approx(1, rel=0.05)
    for W in (model.W_E, model.W_U, model.W_K, model.W_V, model.W_O, model.blocks[1].mlp.W_F):
        kurtosis = (W**4).mean() / (W**2).mean() ** 2
        assert kurtosis.item() == pytest.approx(3, rel=0.06)  # 1.8 if the entries were uniform


def test_parametrisations_share_what_they_do_not_change():
    code, mixed, text = (
        build(ModelConfig.simplified(**SMALL, parametrisation=name), 3) for name in ("code", "unit-embeddings", "text")
    )
    assert torch.equal(mixed.W_E, code.W_E / 4)
    assert torch.equal(mixed.W_E, text.W_E)
    for name, parameter in code.named_parameters():
        if "embed.W_E" not in name and "W_pos" not in name:
            assert torch.equal(mixed.get_parameter(name), parameter)


def test_models_that_differ_in_one_part_share_the_others():
    with_ff, without = (
        build(ModelConfig.simplified(**SMALL), 3),
        build(ModelConfig.simplified(**SMALL, feed_forward="none"), 3),
    )
    for name, parameter in without.named_parameters():
        assert torch.equal(parameter, dict(with_ff.named_parameters())[name])
    other = build(ModelConfig.simplified(**SMALL), 4)
    assert not torch.equal(other.W_E, with_ff.W_E)


def test_the_usual_tools_work_on_a_block_with_a_linear_feed_forward():
    model = build(ModelConfig.simplified(**SMALL))
    tokens = torch.randint(0, 7, (2, 9))
    logits, cache = model.run_with_cache(tokens)
    parts = cache.decompose_resid(layer=-1)
    assert torch.allclose(parts.sum(0) @ model.W_U, logits, atol=1e-4)
    assert torch.equal(cache["blocks.1.mlp.hook_post"], cache["blocks.1.hook_mlp_out"])
    assert not cache["blocks.0.hook_mlp_out"].any()
    silenced = model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.hook_mlp_out", lambda x, hook: x * 0)])
    assert torch.allclose(silenced, logits - cache["blocks.1.hook_mlp_out"] @ model.W_U, atol=1e-4)


def test_a_tied_output_follows_the_embedding():
    model = build(ModelConfig.full(**SMALL, tied_output=True))
    with torch.no_grad():
        model.embed.W_E[2] += 1
    assert torch.equal(model.W_U, model.W_E.T)
