"""Any HookedTransformer as a configuration: written down, made again and trained, or refused."""

import json
import re
from dataclasses import replace

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

import induction_memory as im
from induction_memory.errors import DamagedError, InputError
from induction_memory.model.building import build
from induction_memory.model.config import Architecture, freeze, model_from_dict
from induction_memory.model.memories import Memories, matrix, weights_of
from induction_memory.trajectory.manifest import Manifest

TASK = im.BigramTask(length=10, k=2)
SIZES = {"n_layers": 2, "d_model": 16, "d_head": 4, "n_heads": 4, "n_ctx": 12, "d_vocab": TASK.n_inputs}
KINDS = {
    "gelu, rotary": {"act_fn": "gelu", "positional_embedding_type": "rotary", "rotary_dim": 4},
    "grouped heads": {"act_fn": "gelu", "n_key_value_heads": 2},
    "RMS, gated": {"act_fn": "silu", "normalization_type": "RMS", "gated_mlp": True},
    "attention only": {"attn_only": True, "normalization_type": None},
    "parallel, ALiBi": {"act_fn": "gelu_new", "parallel_attn_mlp": True, "positional_embedding_type": "alibi"},
    "local attention": {"act_fn": "relu", "use_local_attn": True, "window_size": 4, "attn_types": ["local", "global"]},
    "experts": {"act_fn": "silu", "gated_mlp": True, "num_experts": 2, "experts_per_token": 1},
    "norms of queries": {"act_fn": "gelu", "use_qk_norm": True, "normalization_type": "RMS"},
}
TRAIN = {"steps": 3, "batch_size": 4, "threads": 1, "progress": False, "loss": "all"}


def config(**changes):
    return HookedTransformerConfig(**SIZES | changes, device="cpu")


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_a_model_comes_back_from_plain_json_and_computes_the_same(changes):
    model = HookedTransformer(config(**changes, seed=3))
    architecture = Architecture.of(model)
    again = model_from_dict(json.loads(json.dumps(architecture.to_dict())))
    assert again == architecture
    assert hash(again) == hash(architecture)
    copy = build(again)
    copy.load_state_dict(model.state_dict())
    tokens = torch.randint(TASK.n_inputs, (3, 10), generator=torch.Generator().manual_seed(0))
    assert torch.equal(copy(tokens), model(tokens))
    assert architecture.shapes == {name: tuple(p.shape) for name, p in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_it_trains_and_a_resumed_run_ends_with_the_same_bits(changes, tmp_path):
    whole = im.train(TASK, config(**changes), out=tmp_path / "whole", **TRAIN)
    assert whole.metrics["loss"].notna().all()
    im.train(TASK, config(**changes), out=tmp_path / "longer", **TRAIN | {"steps": 1})
    longer = im.train(TASK, config(**changes), out=tmp_path / "longer", resume=True, **TRAIN)
    for name, value in whole.state(3).items():
        assert torch.equal(value, longer.state(3)[name]), name
    moved = [name for name, value in whole.state(3).items() if not torch.equal(whole.state(0)[name], value)]
    assert len(moved) > 5
    initial = im.thin(whole, out=tmp_path / "thin", step=[3]).initial()
    assert initial is not None
    assert all(torch.equal(value, initial[name]) for name, value in whole.state(0).items())


def test_a_model_begins_with_its_own_weights_and_is_left_alone(tmp_path):
    model = HookedTransformer(config(act_fn="gelu"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.embed.W_E.requires_grad_(False)
    run = im.train(TASK, model, out=tmp_path / "run", frozen=["blocks.0.attn", "unembed.b_U"], **TRAIN)
    frozen = run.config.model.frozen
    assert {"embed.W_E", "blocks.0.attn.W_K", "unembed.b_U"} < set(frozen)
    assert "blocks.1.attn.W_K" not in frozen
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    for name, _ in model.named_parameters():
        assert torch.equal(run.state(0)[name], before[name])
        assert torch.equal(run.state(3)[name], before[name]) == (name in frozen), name
    other = HookedTransformer(config(act_fn="gelu"))
    other.embed.W_E.requires_grad_(False)
    with pytest.raises(InputError, match="model: expected the initial weights of the run"):
        im.train(TASK, other, out=tmp_path / "run", frozen=["blocks.0.attn", "unembed.b_U"], resume=True, **TRAIN)


def test_a_model_with_alibi_that_has_run_is_trained(tmp_path):
    model = HookedTransformer(config(act_fn="gelu", positional_embedding_type="alibi"))
    model(torch.zeros(1, 10, dtype=torch.long))  # keeps its slopes
    assert im.train(TASK, model, out=tmp_path / "run", **TRAIN).finished


@pytest.mark.parametrize("norm", ["LN", "LNPre", "RMS"])
def test_a_run_keeps_the_epsilon_of_its_norms(norm, tmp_path):
    model = HookedTransformer(config(act_fn="gelu", normalization_type=norm, eps=0.01, seed=0))
    run = im.train(TASK, model, out=tmp_path / "run", **TRAIN)
    tokens = torch.randint(TASK.n_inputs, (3, 10), generator=torch.Generator().manual_seed(0))
    assert torch.equal(run.model(0)(tokens), model(tokens))
    probes = ["W_F_kl", "W_K2_normed"]
    found, expected = (im.probes.table(of, probes, task=TASK, step=step) for of, step in ((run, 0), (model, None)))
    assert found["value"].to_numpy() == pytest.approx(expected["value"].to_numpy(), rel=1e-6)


def tie_output(model):
    model.unembed.W_U = torch.nn.Parameter(model.embed.W_E.data.T)


def share_queries(model):
    model.blocks[0].attn.W_K = model.blocks[0].attn.W_Q


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (tie_output, "model: expected no tied parameters, got embed.W_E and unembed.W_U"),
        (share_queries, "model: expected no tied parameters, got blocks.0.attn.W_K and blocks.0.attn.W_Q"),
        (lambda model: model.half(), "model.embed.W_E: expected float32, got float16"),
        (lambda model: setattr(model.unembed, "b_U", None), "model: expected a parameter unembed.b_U, got none"),
    ],
)
def test_what_training_would_not_keep_of_a_model_is_refused(change, says, tmp_path):
    model = HookedTransformer(config(act_fn="gelu"))
    change(model)
    with pytest.raises(InputError, match=re.escape(says)):
        im.train(TASK, model, out=tmp_path / "run", **TRAIN)
    assert not (tmp_path / "run").exists()


def test_a_tied_output_must_be_tied_if_the_configuration_says_so(tmp_path):
    tied = im.ModelConfig.full(d_model=8, n_ctx=10, d_vocab=TASK.n_inputs, n_heads=1, tied_output=True)
    run = im.train(TASK, im.build(tied), out=tmp_path / "run", **TRAIN)
    assert torch.equal(run.state(3)["unembed.W_U"], run.state(3)["embed.W_E"].T)
    untied = im.build(tied)
    untied.unembed.W_U = torch.nn.Parameter(untied.unembed.W_U.data.clone())
    with pytest.raises(InputError, match=r"model: expected only embed\.W_E and unembed\.W_U tied, got none"):
        im.train(TASK, untied, out=tmp_path / "other", **TRAIN)


def test_parts_of_the_paper_s_models_are_frozen_by_parameter_too(tmp_path):
    run = im.train(TASK, im.ModelConfig(d_model=8), out=tmp_path / "run", frozen=["blocks.1.attn.W_K", "W_F"], **TRAIN)
    assert run.config.model.trained_names == ("W_K1", "W_O2")
    built = im.build(im.ModelConfig(d_model=8, n_ctx=10, d_vocab=TASK.n_inputs), seed=7)
    begun = im.train(TASK, built, out=tmp_path / "built", **TRAIN)
    assert torch.equal(begun.state(0)["blocks.0.attn.W_K"], built.blocks[0].attn.W_K)
    with pytest.raises(InputError, match=r"frozen: expected parameters or modules out of .*, got 'W_X'"):
        freeze(im.ModelConfig(d_model=8), ["W_X"])


def hook(model):
    model.blocks[0].hook_attn_out.add_hook(lambda value, hook: value)


def module(model):
    model.blocks[1].mlp = torch.nn.Identity()


def scale(model):
    model.blocks[0].attn.attn_scale = 3.0


@pytest.mark.parametrize(
    ("change", "reason"), [(hook, "has hooks"), (module, "is a Identity|taken away"), (scale, "has another attn_scale")]
)
def test_what_a_configuration_cannot_say_is_refused(change, reason):
    model = HookedTransformer(config(act_fn="gelu"))
    change(model)
    with pytest.raises(InputError, match=f"model: expected a HookedTransformer as its configuration .*{reason}"):
        Architecture.of(model)


def test_other_things_are_refused_in_one_line(tmp_path):
    for given in (None, "gpt2", torch.nn.Linear(2, 2)):
        with pytest.raises(InputError, match="model: expected a ModelConfig, a HookedTransformer or its Hooked"):
            Architecture.of(given)
    with pytest.raises(InputError, match=r"model\.dtype: expected float32, got float64"):
        Architecture.of(config(act_fn="gelu", dtype=torch.float64))
    with pytest.raises(InputError, match=r"model\.d_vocab: expected the vocabulary's size"):
        im.train(TASK, config(act_fn="gelu", d_vocab=7), out=tmp_path / "run", **TRAIN)
    assert not (tmp_path / "run").exists()


def test_fields_that_transformer_lens_does_not_have_are_refused(tmp_path):
    run = im.train(TASK, config(act_fn="gelu"), out=tmp_path / "run", **TRAIN)
    values = run.config.model.to_dict()
    values["hooked_transformer"]["telepathy"] = True
    with pytest.raises(InputError, match=r"model\.hooked_transformer\.telepathy: expected fields of TransformerLens"):
        build(Architecture.from_dict(values))
    for name, wrong in (("n_layers", "two"), ("dtype", "bfloat16"), ("act_fn", {"run": "me"})):
        changed = run.config.model.to_dict()
        changed["hooked_transformer"][name] = wrong
        manifest = Manifest.read(run.path)
        replace(manifest, config={**manifest.config, "model": changed}).write(run.path)
        with pytest.raises(DamagedError, match=name):
            im.load(run.path)


def test_grouped_heads_are_read_with_one_matrix_per_head():
    model = HookedTransformer(config(act_fn="gelu", n_key_value_heads=2))
    weights = weights_of(model)
    assert torch.equal(weights["blocks.1.attn.W_V"], model.blocks[1].attn.W_V)
    expected = model.blocks[0].attn.W_Q[3] @ model.blocks[0].attn.W_K[3].T
    torch.testing.assert_close(matrix(model, "W_K1", fold=False)[3], expected)
    assert Memories(weights).n_heads == 4


def test_an_rms_norm_is_folded_without_centring():
    model = HookedTransformer(config(act_fn="gelu", normalization_type="RMS"))
    with torch.no_grad():
        model.blocks[0].ln1.w.uniform_(0.5, 2)
    attn, gain = model.blocks[0].attn, model.blocks[0].ln1.w
    expected = (gain[:, None] * attn.W_V[1]) @ attn.W_O[1]
    torch.testing.assert_close(matrix(model, "Phi_1")[1], expected.T)
    m = Memories(weights_of(model))
    rows = torch.randn(1, 5, 16)
    torch.testing.assert_close(m.normed("blocks.0.ln1", rows), model.blocks[0].ln1(rows))
