"""The fast forward and backward against the HookedTransformer's own logits, loss and autograd."""

import logging
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from induction_memory.errors import InputError
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.corpus import Corpus
from induction_memory.task.sampler import BigramBatch, sample, step_rng, with_counts
from induction_memory.training import forward
from induction_memory.training.evaluation import Clamps, Evaluation, clamped_pattern, plain_evaluate
from induction_memory.training.forward import evaluate, supported

LENGTH = 80  # two blocks of queries, the second not full
SMALL = {"d_model": 12, "n_ctx": LENGTH + 4}

ARCHITECTURES = {
    "simplified": ModelConfig.simplified(**SMALL),
    "simplified, no feed-forward": ModelConfig.simplified(feed_forward="none", **SMALL),
    "simplified, one layer": ModelConfig.simplified(n_layers=1, **SMALL),
    "simplified, three layers": ModelConfig.simplified(n_layers=3, **SMALL),
    "simplified, two wide heads": ModelConfig.simplified(n_heads=2, d_head=12, **SMALL),
    "simplified, d wider than the vocabulary": ModelConfig.simplified(d_model=80, n_ctx=LENGTH),
    "simplified, tied": ModelConfig.simplified(tied_output=True, trained=("W_E", "W_K1", "W_O2"), **SMALL),
    "simplified, ReLU": ModelConfig.simplified(feed_forward="relu", **SMALL),
    "simplified, norm": ModelConfig.simplified(layer_norm=True, **SMALL),
    "full": ModelConfig.full(**SMALL),
    "full, four heads": ModelConfig.full(n_heads=4, **SMALL),
    "full, head wider than the model": ModelConfig.full(d_head=14, scale_scores=False, **SMALL),
    "full, odd heads, norm": ModelConfig.full(n_heads=2, d_head=5, layer_norm=True, d_mlp=7, **SMALL),
    "full, parallel": ModelConfig.full(parallel_blocks=True, **SMALL),
    "full, parallel, norm": ModelConfig.full(parallel_blocks=True, layer_norm=True, n_heads=2, **SMALL),
    "full, parallel, linear": ModelConfig.full(parallel_blocks=True, feed_forward="linear", **SMALL),
    "simplified, feed-forward beside the attention": ModelConfig.simplified(parallel_blocks=True, **SMALL),
    "full, parallel in the last layer": ModelConfig.full(parallel_blocks=True, feed_forward_layers="last", **SMALL),
    "full, linear in all layers": ModelConfig.full(feed_forward="linear", n_layers=3, **SMALL),
    "full, one layer, no feed-forward": ModelConfig.full(n_layers=1, feed_forward="none", **SMALL),
    "full, tied": ModelConfig.full(tied_output=True, feed_forward="none", **SMALL),
    "full, tied, norm, three layers": ModelConfig.full(
        tied_output=True, layer_norm=True, n_layers=3, n_heads=3, positions="sinusoidal", **SMALL
    ),
}
SUBSETS = {
    "nothing": ModelConfig.full(trained=(), **SMALL),
    "positions": ModelConfig.full(trained=("W_pos",), **SMALL),
    "unembedding": ModelConfig.simplified(trained=("W_U",), **SMALL),
    "first values": ModelConfig.full(trained=("W_V1",), **SMALL),
    "first output, first queries": ModelConfig.full(trained=("W_O1", "W_Q1"), n_heads=2, **SMALL),
    "last keys": ModelConfig.simplified(trained=("W_K2",), **SMALL),
    "feed-forward": ModelConfig.simplified(trained=("W_F",), **SMALL),
    "first MLP": ModelConfig.full(trained=("W_in1",), **SMALL),
    "norms": ModelConfig.full(trained=("gamma_ff1", "beta_attn2", "gamma_out"), layer_norm=True, **SMALL),
    "last norm": ModelConfig.full(trained=("beta_out",), layer_norm=True, **SMALL),
    "tied embeddings": ModelConfig.full(trained=("W_E",), tied_output=True, feed_forward="linear", **SMALL),
}
CLAMPS = {
    "none": None,
    "previous token": Clamps(previous_token=True),
    "induction": Clamps(induction=True),
    "both": Clamps(previous_token=True, induction=True),
}


@pytest.fixture(scope="module")
def batch() -> BigramBatch:
    """Nine sequences with 0 to many trained positions each, and repeated sequences of tokens."""
    found = sample(BigramTask(length=LENGTH, k=3), 9, step_rng(0, 0))
    counts = found.counts.clone()
    counts[4] = 0
    return with_counts(found.tokens, found.targets, counts, found.triggers, found.outputs)


def oracle(model, batch: BigramBatch, loss: str, clamps: Clamps | None) -> tuple[float, dict[str, Tensor], Tensor]:
    """The whole batch through the model with hooks, F.cross_entropy and .backward(): loss, gradients, logits."""
    kinds = {i: clamps.kind(i, len(model.blocks)) for i in range(len(model.blocks))} if clamps else {}

    def hook(kind: str):
        return lambda pattern, hook: clamped_pattern(kind, batch.tokens)[:, None].expand_as(pattern)

    hooks = [(f"blocks.{i}.attn.hook_pattern", hook(kind)) for i, kind in kinds.items() if kind]
    tied = model.model_config.tied_output and model.embed.W_E.requires_grad
    if tied:
        model.unembed.W_U.requires_grad_(True)
    logits = model.run_with_hooks(batch.tokens, fwd_hooks=hooks)
    mask = torch.ones_like(batch.in_context) if loss == "all" else batch.in_context
    value = F.cross_entropy(logits[mask], batch.targets[mask])
    if value.requires_grad:
        value.backward()
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            parameter.grad = None
    if tied:
        model.unembed.W_U.requires_grad_(False)
        found["embed.W_E"] += found.pop("unembed.W_U").T
    return value.item(), found, logits.detach()


def assert_equal(found: Evaluation, model, batch: BigramBatch, loss: str, clamps: Clamps | None) -> None:
    value, gradients, logits = oracle(model, batch, loss, clamps)
    assert math.isclose(found.loss, value, rel_tol=1e-5)
    assert found.gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert found.gradients[name].shape == gradient.shape
        error = (found.gradients[name] - gradient).abs().max()
        assert error <= 1e-5 * gradient.abs().max(), name
    where = found.evaluated
    nll = F.cross_entropy(logits[where], batch.targets[where], reduction="none")
    assert (found.nll[where] - nll).abs().max() <= 1e-5 * nll.abs().max()
    assert found.nll[~where].isnan().all()
    assert (found.correct == (where & (logits.argmax(-1) == batch.targets))).all()


@pytest.mark.parametrize("loss", ["all", "trigger-output"])
@pytest.mark.parametrize("config", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_every_architecture_agrees_with_the_hooked_transformer(config, loss, batch):
    model = build(config, seed=1)
    assert supported(model) is None
    found = evaluate(model, batch, loss, micro_batch=4)
    assert_equal(found, model, batch, loss, None)
    assert (found.evaluated == (torch.ones_like(batch.in_context) if loss == "all" else batch.in_context)).all()


@pytest.mark.parametrize("loss", ["all", "trigger-output"])
@pytest.mark.parametrize("config", SUBSETS.values(), ids=SUBSETS.keys())
def test_any_subset_of_parameters_may_learn(config, loss, batch):
    model = build(config, seed=2)
    assert_equal(evaluate(model, batch, loss), model, batch, loss, None)


@pytest.mark.parametrize("clamps", CLAMPS.values(), ids=CLAMPS.keys())
@pytest.mark.parametrize("loss", ["all", "trigger-output"])
@pytest.mark.parametrize(
    "name", ["simplified", "simplified, three layers", "full", "full, odd heads, norm", "full, tied"]
)
def test_imposed_patterns_agree_with_hooks_on_the_pattern(name, loss, clamps, batch):
    model = build(ARCHITECTURES[name], seed=3)
    assert_equal(evaluate(model, batch, loss, clamps=clamps), model, batch, loss, clamps)


@pytest.mark.parametrize("name", ["simplified", "full, four heads"])
def test_full_metrics_evaluate_every_position_and_leave_the_gradients_alone(name, batch):
    model = build(ARCHITECTURES[name], seed=4)
    found = evaluate(model, batch, "trigger-output", full_metrics=True)
    assert found.evaluated.all()
    assert_equal(found, model, batch, "trigger-output", None)


@pytest.mark.parametrize("micro_batch", [1, 2, 9, 100])
@pytest.mark.parametrize("run", [evaluate, plain_evaluate])
def test_the_size_of_a_micro_batch_changes_nothing(run, micro_batch, batch):
    model = build(ARCHITECTURES["simplified"], seed=5)
    found = run(model, batch, "trigger-output", micro_batch=micro_batch)
    assert_equal(found, model, batch, "trigger-output", None)


@pytest.mark.parametrize("name", ["simplified, tied", "full, tied, norm, three layers", "full, parallel"])
@pytest.mark.parametrize("clamps", [None, Clamps(previous_token=True, induction=True)])
def test_the_plain_path_agrees_with_the_hooked_transformer(name, clamps, batch):
    model = build(ARCHITECTURES[name], seed=6)
    learnt = [parameter.requires_grad for parameter in model.parameters()]
    for loss in ("all", "trigger-output"):
        found = plain_evaluate(model, batch, loss, clamps=clamps, micro_batch=4, full_metrics=True)
        assert_equal(found, model, batch, loss, clamps)
    assert [parameter.requires_grad for parameter in model.parameters()] == learnt
    assert all(parameter.grad is None for parameter in model.parameters())


def test_large_scores_do_not_overflow(batch):
    model = build(ARCHITECTURES["simplified"], seed=7)
    with torch.no_grad():
        model.blocks[0].attn.W_K *= 200
        model.blocks[1].attn.W_K *= 200
        model.unembed.W_U *= 50
    found = evaluate(model, batch, "all")
    value = oracle(model, batch, "all", None)[0]
    assert math.isclose(found.loss, value, rel_tol=1e-4)
    assert all(gradient.isfinite().all() for gradient in found.gradients.values())


def test_frozen_while_training_means_no_gradient(batch):
    model = build(ARCHITECTURES["simplified"], seed=8)
    model.blocks[0].attn.W_K.requires_grad_(False)
    found = evaluate(model, batch, "all").gradients
    assert sorted(found) == ["blocks.1.attn.W_K", "blocks.1.attn.W_O", "blocks.1.mlp.W_F"]


@pytest.mark.parametrize("run", [evaluate, plain_evaluate])
def test_without_gradients_the_rest_is_the_same(run, batch):
    model = build(ARCHITECTURES["full"], seed=9)
    with_them, without = (run(model, batch, "trigger-output", gradients=g) for g in (True, False))
    assert without.gradients == {}
    assert without.loss == pytest.approx(with_them.loss)
    assert (without.correct == with_them.correct).all()


@pytest.mark.parametrize("run", [evaluate, plain_evaluate])
def test_a_batch_without_trained_positions_has_no_loss_and_zero_gradients(run, batch):
    model = build(ARCHITECTURES["simplified"], seed=10)
    none = batch[4:5]
    found = run(model, none, "trigger-output")
    assert math.isnan(found.loss)
    assert not found.evaluated.any()
    assert found.nll.isnan().all()
    assert all(gradient.count_nonzero() == 0 for gradient in found.gradients.values())
    assert len(found.gradients) == 4
    everywhere = run(model, none, "trigger-output", full_metrics=True)
    assert math.isnan(everywhere.loss)
    assert everywhere.nll.isfinite().all()


@pytest.mark.parametrize("loss", ["all", "trigger-output"])
def test_the_bits_do_not_depend_on_the_number_of_threads(loss, batch):
    model = build(ARCHITECTURES["simplified"], seed=11)
    before = torch.get_num_threads()
    try:
        runs = []
        for threads in (1, 1, 2, 3, 3):
            torch.set_num_threads(threads)
            runs.append(evaluate(model, batch, loss, micro_batch=1))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for run in runs[1:]:
        assert run.loss == runs[0].loss
        assert torch.equal(run.nll.nan_to_num(), runs[0].nll.nan_to_num())
        for name, gradient in run.gradients.items():
            assert torch.equal(gradient, runs[0].gradients[name])


def test_an_error_in_a_thread_reaches_the_caller(batch):
    model = build(ARCHITECTURES["simplified"], seed=12)
    wrong = replace(batch, tokens=batch.tokens + 60)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(IndexError):
            evaluate(model, wrong, "all", micro_batch=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_sequences_longer_than_the_model_are_refused(batch):
    model = build(ModelConfig.simplified(d_model=8, n_ctx=LENGTH - 1), seed=13)
    with pytest.raises(InputError, match=f"batch: expected at most {LENGTH - 1} tokens per sequence.*, got {LENGTH}"):
        evaluate(model, batch, "all")


def test_models_it_does_not_know_take_the_plain_path_and_say_so_once(batch, caplog, monkeypatch):
    monkeypatch.setattr(forward, "_said", set())
    model = build(ARCHITECTURES["simplified"], seed=14)
    expected = evaluate(model, batch, "all")
    model.add_hook("blocks.0.hook_attn_out", lambda tensor, hook: tensor)
    with caplog.at_level(logging.WARNING, logger="induction_memory"):
        evaluate(model, batch, "all")
        found = evaluate(model, batch, "all")
    assert [record.getMessage() for record in caplog.records] == [
        "evaluating by the slow path: blocks.0.hook_attn_out has hooks"
    ]
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    model.reset_hooks(including_permanent=True)
    assert supported(model) is None


def test_the_reasons_to_refuse_a_model_are_told():
    model = build(ARCHITECTURES["full"], seed=15)
    with torch.no_grad():
        model.blocks[1].attn.b_O[3] = 0.5
    assert supported(model) == "blocks.1.attn.b_O is a bias that is trained or not zero"
    model = build(ARCHITECTURES["full"], seed=15)
    model.blocks[0].mlp.b_in.requires_grad_(True)
    assert supported(model) == "blocks.0.mlp.b_in is a bias that is trained or not zero"
    assert "float64" in str(supported(build(ARCHITECTURES["full"], seed=15).to(torch.float64)))
    del model.model_config
    assert supported(model) == "the model was not made by induction_memory.model.building"


def test_a_vocabulary_of_one_token_takes_the_plain_path():
    task = BigramTask(corpus=Corpus.from_text("aaaa"), length=8, k=1)
    model = build(ModelConfig(d_model=8, n_ctx=8, d_vocab=1), seed=19)
    assert supported(model) == "the vocabulary has one token only"
    found = evaluate(model, sample(task, 3, step_rng(0, 0)), "all")
    assert found.loss == 0
    assert found.correct.all()


def test_an_untied_copy_of_a_tied_model_is_refused(batch):
    model = build(ARCHITECTURES["full, tied"], seed=16)
    model.unembed.W_U = torch.nn.Parameter(model.unembed.W_U.detach().clone(), requires_grad=False)
    with pytest.raises(InputError, match=r"model.tied_output: expected unembed.W_U to be a view"):
        evaluate(model, batch, "all")


def test_both_clamps_need_two_layers(batch):
    model = build(ARCHITECTURES["simplified, one layer"], seed=17)
    with pytest.raises(InputError, match="clamps: expected one clamp per layer"):
        evaluate(model, batch, "all", clamps=Clamps(previous_token=True, induction=True))


@pytest.mark.hard
@pytest.mark.parametrize(
    ("config", "loss"),
    [
        (ModelConfig.simplified(feed_forward="none"), "trigger-output"),
        (ModelConfig.simplified(), "all"),
        (ModelConfig.full(), "all"),
        (ModelConfig.full(n_heads=4, layer_norm=True), "trigger-output"),
    ],
    ids=["no W_F", "W_F", "full", "full, four heads, norm"],
)
def test_the_scale_of_the_paper_agrees_too(config, loss):
    model = build(config, seed=18)
    # Patterns far from uniform. Not with a ReLU: an input within rounding of its kink has two right gradients.
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_K *= 1 if config.feed_forward == "relu" else 5
    large = sample(BigramTask(), 32, step_rng(0, 1))
    assert_equal(evaluate(model, large, loss), model, large, loss, None)
