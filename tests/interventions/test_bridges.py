"""A TransformerBridge gets what a HookedTransformer with the same weights gets, with and without a tokenizer."""

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

import induction_memory as im
from induction_memory.model.bridge import boot
from induction_memory.source.sources import model_weights
from tests.trajectory.series import tiny

TASK = im.BigramTask(length=12, k=2)
SIZES = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_head": 8, "n_ctx": 12, "d_vocab": TASK.n_inputs, "d_mlp": 24}
COLUMNS = ["kl", "in_context_loss", "in_context_accuracy"]


@pytest.fixture(scope="module")
def pair():
    settings = SIZES | {"act_fn": "gelu", "normalization_type": "LN", "seed": 0}
    bridge = TransformerBridge.boot_native(TransformerBridgeConfig(**settings))
    hooked = HookedTransformer(HookedTransformerConfig(**settings))
    with torch.no_grad():
        for name, weight in model_weights(bridge).items():
            hooked.get_parameter(name).copy_(weight)
        for mine, other in zip(hooked.blocks, bridge.blocks, strict=True):
            for W in ("W_in", "W_out", "b_in", "b_out"):
                getattr(mine.mlp, W).copy_(getattr(other.mlp, W))
            for b in ("b_Q", "b_K", "b_V", "b_O"):
                getattr(mine.attn, b).copy_(getattr(other.attn, b))
    tokens = torch.arange(12)[None] % TASK.n_inputs
    torch.testing.assert_close(hooked(tokens), bridge(tokens), atol=1e-5, rtol=1e-5)
    return hooked, bridge


@pytest.fixture(scope="module")
def batch():
    return im.sample(TASK, 6, im.task.step_rng(3, 0))


def test_it_has_no_tokenizer(pair):
    assert pair[1].tokenizer is None


@pytest.mark.parametrize("components", ["heads", "matrices", "parts", "paths"])
@pytest.mark.parametrize("via", ["fast", "hooks"])
def test_ablations_are_the_same(pair, batch, components, via):
    ours = im.ablate(pair[0], batch, components=[components], kind="mean")
    theirs = im.ablate(pair[1], batch, components=[components], kind="mean", via=via)
    assert len(theirs) > 4
    assert ours["component"].tolist() == theirs["component"].tolist()
    for name in COLUMNS:
        assert theirs[name].to_numpy() == pytest.approx(ours[name].to_numpy(), abs=1e-5), name


@pytest.mark.slow
def test_patching_and_roles_are_the_same(pair, batch):
    ours, theirs = (im.patch(model, task=TASK) for model in pair)
    assert theirs["effect"].to_numpy() == pytest.approx(ours["effect"].to_numpy(), abs=1e-3)
    mine, other = (im.heads.identify(model, batch=batch) for model in pair)
    assert other.roles["role"].tolist() == mine.roles["role"].tolist()
    assert other.shares["shapley"].to_numpy() == pytest.approx(mine.shares["shapley"].to_numpy(), abs=1e-4, nan_ok=True)


def test_maps_and_scores_are_the_same(pair, batch):
    ours, theirs = (im.attention(model, batch=batch) for model in pair)
    assert theirs.patterns == pytest.approx(ours.patterns, abs=1e-5)
    ours, theirs = (im.probes.head_scores(model)[["previous_token", "induction"]].to_numpy() for model in pair)
    assert theirs == pytest.approx(ours, abs=1e-5)


@pytest.mark.parametrize("component", ["L1H2", "L2", "W_K2", "FF1", "embed", "L1H1->L2H1.k", "pos->L2.q"])
def test_hooks_to_take_away_are_the_engine_s(pair, batch, component):
    hooked, bridge = pair
    engine = im.ablate(hooked, batch, components=[component], kind="mean", via="fast").set_index("component")
    with torch.no_grad():
        logits = bridge.run_with_hooks(
            batch.tokens, fwd_hooks=im.hooks.ablate(bridge, component, kind="mean", batch=batch)
        )
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none")
    expected = engine.loc[component, "in_context_loss"]
    assert losses[batch.in_context].mean().item() == pytest.approx(expected, abs=1e-5)


def test_patch_clamp_edit_and_record_are_the_same(pair, batch):
    others = batch.tokens.flip(0)
    calls = [
        lambda model: im.hooks.patch(model, "L1H1", tokens=others),
        lambda model: im.hooks.clamp(model, "L2H2", torch.arange(16.0)),
        lambda model: im.hooks.edit(model, "L2H1.v", lambda v: 2 * v),
    ]
    for call in calls:
        ours, theirs = (model.run_with_hooks(batch.tokens, fwd_hooks=call(model)) for model in pair)
        torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
    kept = []
    for model in pair:
        hooks, found = im.hooks.record(model, ["L1H2", "L2H1.k", "FF2"])
        model.run_with_hooks(batch.tokens, fwd_hooks=hooks)
        kept.append(found)
    for site, value in kept[0].items():
        torch.testing.assert_close(kept[1][site], value, atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def with_and_without_tokenizer(tmp_path_factory):
    """One Llama in two folders; one of them brings a tokenizer of 61 words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner, folders = tiny("llama"), [tmp_path_factory.mktemp(name) for name in ("with", "without")]
    for folder in folders:
        inner.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(61)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folders[0])
    return [boot(folder) for folder in folders]


@pytest.mark.slow
def test_a_tokenizer_changes_no_number(with_and_without_tokenizer):
    """Maps, head scores, ablation, patching and roles, on tokens."""
    assert [model.tokenizer is None for model in with_and_without_tokenizer] == [False, True]
    task = im.BigramTask(length=12, k=2)
    tokens = torch.randint(61, (4, 8), generator=torch.Generator().manual_seed(0)).repeat(1, 2)
    calls = {
        "maps": lambda model: im.attention(model, batch=tokens).patterns,
        "scores": lambda model: im.probes.head_scores(model, length=8),
        "ablation": lambda model: im.ablate(model, tokens, components=["heads"], kind="mean"),
        "patching": lambda model: im.patch(model, batch=fitting(task)),
        "roles": lambda model: im.heads.identify(model, batch=tokens).roles,
    }
    for name, call in calls.items():
        first, second = map(call, with_and_without_tokenizer)
        assert len(first) > 0, name
        assert str(first) == str(second), name


def fitting(task):
    """Sequences whose tokens the model of 61 words has."""
    batch = im.sample(task, 24, im.task.step_rng(0, 0))
    known = (batch.tokens < 61).all(1) & (batch.targets < 61).all(1)
    return batch[known]


def test_a_text_is_read_by_the_model_s_own_tokenizer(with_and_without_tokenizer):
    model, bare = with_and_without_tokenizer
    view = im.attention(model, text="w3 w5 w3 w5 w7")
    assert view.tokens == ("w3", "w5", "w3", "w5", "w7")
    with torch.no_grad():
        _, cache = model.run_with_cache(torch.tensor([[3, 5, 3, 5, 7]]))
    expected = torch.cat([cache[f"blocks.{layer}.attn.hook_pattern"][0] for layer in range(2)])
    torch.testing.assert_close(torch.as_tensor(view.patterns[0]), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(im.errors.InputError, match="expected a model with a tokenizer, or the task"):
        im.attention(bare, text="w3 w5")
