"""What the check of a model's own activations finds, and that nothing is computed on what it does not confirm."""

import dataclasses

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.components.unembed import Unembed

import induction_memory as im
from induction_memory.errors import InputError, UnsupportedError
from induction_memory.runner.checked import checked
from induction_memory.runner.choice import record, runner
from tests.architectures.models import hooked, tokens_of
from tests.architectures.plain import kl

SIZES = {"n_layers": 2, "d_model": 16, "n_ctx": 24, "d_head": 8, "n_heads": 2, "d_mlp": 32, "d_vocab": 29, "seed": 0}


def model_of(**changes):
    model = HookedTransformer(
        HookedTransformerConfig(**SIZES | {"act_fn": "gelu", "normalization_type": "LN"} | changes)
    )
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.3)
    return model


def test_a_method_replaced_in_a_class_counts(monkeypatch):
    model, tokens, own = model_of(), tokens_of(), Unembed.forward
    before = im.ablate(model, tokens, heads=["L1H1"])["kl"][1]
    monkeypatch.setattr(Unembed, "forward", lambda self, x: own(self, x) * 0.1)
    found, by_hooks = (im.ablate(model, tokens, heads=["L1H1"], via=via)["kl"][1] for via in (None, "hooks"))
    assert found == pytest.approx(by_hooks, rel=1e-4)
    assert found < before / 5


@pytest.mark.parametrize("way", ["hook", "forward"])
def test_what_is_added_after_a_runner_was_made_counts(way):
    model, tokens = model_of(), tokens_of()[:, :-1]
    ready, attention = runner(model), model.blocks[0].attn
    assert ready.via == "fast"
    if way == "hook":
        model.add_hook("blocks.0.hook_attn_out", lambda out, hook: 0 * out)
    else:
        own = attention.forward
        attention.forward = lambda *given, **named: 0.5 * own(*given, **named)
    torch.testing.assert_close(ready.record(tokens).logits, model(tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("way", ["hook", "forward"])
def test_a_change_between_two_recordings_is_checked_again(way):
    model, tokens = model_of(use_qk_norm=True, normalization_type="RMS"), tokens_of()[:, :-1]
    assert record(model, tokens).graph.allows("L1H1->L2H1.k")
    attention, own = model.blocks[0].attn, model.blocks[0].attn.forward
    if way == "hook":
        model.add_hook("blocks.0.hook_attn_out", lambda out, hook: 0.5 * out)
    else:
        attention.forward = lambda *given, **named: 0.5 * own(*given, **named)
    changed = record(model, tokens)
    assert not changed.graph.allows("L1H1->L2H1.k")
    with pytest.raises(UnsupportedError, match=r"layer 1's heads write changes .* \(largest deviation"):
        changed.graph.resolve("L1H1->L2H1.k")
    model.reset_hooks()
    vars(attention).pop("forward", None)
    assert record(model, tokens).graph.allows("L1H1->L2H1.k")


def test_edges_need_a_stream_that_is_the_sum_of_what_is_written():
    model, tokens = model_of(use_qk_norm=True, normalization_type="RMS"), tokens_of()[:, :-1]
    assert record(model, tokens).graph.allows("pos->L2H1.k")
    model.add_hook("blocks.0.hook_resid_mid", lambda stream, hook: 2 * stream)
    graph = record(model, tokens).graph
    for edge in ("pos->L2H1.k", "embed->out", "L1H1->L2H1.k"):
        with pytest.raises(UnsupportedError, match=r"written up to layer 1 changes .* \(largest deviation"):
            graph.resolve(edge)
    assert graph.allows("L2H1->out")


@pytest.mark.parametrize("kind", ["inputs together", "shared keys", "chance"])
def test_hooks_that_the_flags_of_a_recording_would_change_are_refused(kind):
    model, tokens = model_of(**{"n_key_value_heads": 1} if kind == "shared keys" else {}), tokens_of()
    model.cfg.use_attn_in = kind == "inputs together"
    point = {"inputs together": "hook_attn_in", "shared keys": "attn.hook_k", "chance": "hook_resid_mid"}[kind]
    change = {"shared keys": lambda k, hook: k * k.shape[2], "chance": lambda x, hook: x + torch.randn_like(x)}
    model.add_hook(f"blocks.0.{point}", change.get(kind, lambda x, hook: x.flip(-1)))
    with pytest.raises(InputError, match=r"model: expected equal logits in two forwards, .* got others \(largest"):
        im.ablate(model, tokens, heads=["L1H1"])


class Doubled(torch.nn.Module):
    """A module behind another; hook points and weights in it have other names."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *given, **named):
        return 2 * self.inner(*given, **named)


@pytest.mark.parametrize("place", ["blocks.0.mlp", "blocks.0.ln1", "ln_final", "unembed"])
def test_a_wrapped_module_counts(place):
    model, tokens = model_of(), tokens_of()
    parent, _, name = place.rpartition(".")
    setattr(model.get_submodule(parent), name, Doubled(model.get_submodule(place)))
    model.setup()
    found = im.ablate(model, tokens, components=["L1H2", "L2H1.k"], kind="zero")["kl"][1:]

    def without(head):
        return lambda value, hook: torch.stack([v * (h != head) for h, v in enumerate(value.unbind(2))], 2)

    with torch.no_grad():
        intact, points = model(tokens[:, :-1]), [("blocks.0.attn.hook_z", 1), ("blocks.1.attn.hook_k", 0)]
        each = [model.run_with_hooks(tokens[:, :-1], fwd_hooks=[(point, without(head))]) for point, head in points]
    assert found.tolist() == pytest.approx([kl(intact, one) for one in each], rel=1e-4)
    if place == "blocks.0.mlp":  # no memory reads it
        return
    with pytest.raises(UnsupportedError, match=r"largest deviation|unembed.W_U is missing"):
        im.source.select(model).stack.memory("W_K1")


@pytest.mark.parametrize("place", ["blocks.0", "blocks.0.attn"])
def test_a_model_without_hook_points_is_refused_in_one_line(place):
    model = model_of()
    parent, _, name = place.rpartition(".")
    setattr(model.get_submodule(parent), name, Doubled(model.get_submodule(place)))
    model.setup()
    with pytest.raises(InputError, match=r"^model: expected one with the hook points of a HookedTransformer, got none"):
        im.ablate(model, tokens_of(), heads="all")


def test_the_models_of_this_package_are_not_checked(monkeypatch):
    monkeypatch.setattr("induction_memory.runner.checked._check", lambda *_: 1 / 0)
    model = im.build(im.ModelConfig(d_model=16, n_ctx=24, d_vocab=29))
    assert len(im.ablate(model, tokens_of(), heads="all")) == 3
    with pytest.raises(ZeroDivisionError):
        im.ablate(model_of(use_qk_norm=True, normalization_type="RMS"), tokens_of(), heads="all")


def test_two_forwards_check_a_model_once():
    model, seen = model_of(use_qk_norm=True, normalization_type="RMS"), []
    model.blocks[0].register_forward_hook(lambda *_: seen.append(1))
    checked(model)
    assert len(seen) == 2
    checked(model)
    assert len(seen) == 2


def test_a_model_with_dropout_is_refused_while_it_trains():
    model, tokens = model_of(), tokens_of()
    model.blocks[0].mlp = torch.nn.Sequential(model.blocks[0].mlp, torch.nn.Dropout(0.5))
    model.setup()
    assert len(im.ablate(model.eval(), tokens, heads=["L1H1"])) == 2
    model.train()
    with pytest.raises(InputError, match=r"model: expected equal logits in two forwards, .* eval\(\) .* others \(la"):
        im.ablate(model, tokens, heads=["L1H1"])


def test_a_head_of_shared_keys_is_changed_alone_and_the_highest_has_a_name():
    model, twin = hooked("shared keys")
    found = im.ablate(model, tokens_of(), components=["L2H2.k", "L2H4.v"], kind="zero")
    expected = im.ablate(twin, tokens_of(), components=["L2H2.k", "L2H4.v"], kind="zero")
    assert found["kl"].to_numpy() == pytest.approx(expected["kl"].to_numpy(), rel=1e-4)
    with pytest.raises(InputError, match=r"set_ungroup_grouped_query_attention\(True\) for hooks at L2H2.k"):
        im.hooks.clamp(model, "L2H2.k", 0.0)


def test_a_padding_mask_counts():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate("_^abcdefgh")}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="_", bos_token="^", padding_side="left")
    model = model_of()
    model.tokenizer = tokenizer
    tokens = torch.tensor([[0, 0, 0, 1, 2, 3, 4, 2, 3, 4], [1, 5, 6, 7, 5, 6, 7, 8, 5, 6]])
    expected = model(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    groups = im.source.batch_of_tokens(tokens).groups
    found = im.ablate(model, tokens, heads=["L1H1"])
    assert found["global_loss"][0] == pytest.approx(-expected[groups["global"]].mean().item(), rel=1e-5)


def test_norms_that_were_folded_are_norms():
    """The same function as a LayerNorm with gain 1 has the same memories."""
    folded, plain = (model_of(normalization_type=kind) for kind in ("LNPre", "LN"))
    shared = dict(folded.named_parameters())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(shared[name] if name in shared else torch.full_like(parameter, float(name.endswith(".w"))))
    tokens = tokens_of()
    torch.testing.assert_close(folded(tokens), plain(tokens))
    one, other = (im.probes.recall(model, tokens=[3, 4, 5, 6]) for model in (folded, plain))
    assert one["margin"].to_numpy() == pytest.approx(other["margin"].to_numpy(), rel=1e-4)


@pytest.mark.parametrize("name", ["shortformer", "cap of logits", "norm after embeddings"])
def test_embeddings_that_do_not_enter_the_stream_as_they_are_have_no_attribution(name):
    table = im.probes.table(hooked(name)[0], ["dla_position", "dla_token"], batch=tokens_of())
    assert table.empty
    assert all("largest deviation" in table.attrs["skipped"][probe] for probe in ("dla_position", "dla_token"))


def test_tokens_that_a_model_does_not_know_are_refused():
    model = model_of(use_qk_norm=True, normalization_type="RMS")
    for wrong in (-1, 29):
        tokens = tokens_of()[:, :-1].clone()
        tokens[0, 3] = wrong
        for via in ("hooks", None):
            with pytest.raises(InputError, match="tokens: expected tokens from 0 to 28"):
                runner(model, via=via).record(tokens)
        with pytest.raises(InputError, match="expected tokens from 0 to 28"):
            im.probes.table(
                model, ["entropy1"], batch=dataclasses.replace(im.source.batch_of_tokens(tokens_of()), tokens=tokens)
            )


def test_losses_of_half_precision_are_averaged_in_single_precision():
    from induction_memory.interventions.scores import Scorer

    batch = im.source.batch_of_tokens(tokens_of(64))
    logits = (torch.randn(64, 14, 29, generator=torch.Generator().manual_seed(0)) * 4).bfloat16()
    single = Scorer(logits.float(), batch)(logits.float())
    half = Scorer(logits, batch)(logits)
    assert half["global_loss"].item() == pytest.approx(single["global_loss"].item(), rel=1e-6)


def test_a_small_change_beside_a_large_coordinate_is_measured():
    model = model_of(normalization_type=None)
    with torch.no_grad():
        model.embed.W_E[:, 0] = 1e7
        for name, parameter in model.named_parameters():
            if name.endswith(("W_Q", "W_K", "W_V", "W_in")):
                parameter[..., 0, :] = 0
        model.unembed.W_U[0] = 0
    tokens = tokens_of()
    (row,) = im.ablate(model, tokens, components=["embed"], kind="resample")["kl"][1:]
    with torch.no_grad():
        intact, other = model(tokens[:, :-1]), [("hook_embed", lambda x, hook: x.roll(1, 0))]
        expected = kl(intact, model.run_with_hooks(tokens[:, :-1], fwd_hooks=other))
    assert row == pytest.approx(expected, rel=1e-3)
    assert row > 0.01


def test_surgery_refuses_what_recall_refuses():
    task = im.BigramTask(length=12)
    sizes = {"d_vocab": 65, "act_fn": "relu"}
    for model in (
        model_of(**sizes, use_qk_norm=True, normalization_type="RMS"),
        model_of(**sizes, n_key_value_heads=1),
    ):
        with pytest.raises(InputError, match=r"largest deviation|one that shares them"):
            im.surgery(model, task.sample(4, im.task.step_rng(0, 0)), memory="W_K2", erase="e", task=task, head="L2H2")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda h, m, t: h.patch(m, "L1H1", tokens=t, where="nosuch"), "where: expected true or false"),
        (lambda h, m, t: h.patch(m, "L1H1", tokens=t[0]), "tokens: expected whole numbers"),
        (lambda h, m, t: h.edit(m, "L1H1", float("nan")), "function: expected a function"),
        (lambda h, m, t: h.ablate(m, "L1H1", batch=t, seed="last"), "seed: expected"),
        (lambda h, m, t: h.written(m, "L1H1", "x"), "inputs: expected a tensor"),
        (lambda h, m, t: h.written(3, "L1H1", m.W_E), "model: expected"),
        (lambda h, m, t: h.attention_scores(m, "L1H1", m.W_E, m.W_E, distance=1.5), "distance: expected"),
        (lambda h, m, t: im.probes.head_scores(m, length="x"), "length: expected"),
        (lambda h, m, t: im.revisions("somewhere", keep=3), "keep: expected"),
        (lambda h, m, t: im.construct(im.BigramTask(length=8), scales=3), "scales: expected Scales"),
    ],
)
def test_mistakes_are_told_in_one_line(unchecked, call, says):
    with pytest.raises(InputError, match=says):
        call(im.hooks, im.build(im.ModelConfig(d_model=16, n_ctx=24, d_vocab=29)), tokens_of())
