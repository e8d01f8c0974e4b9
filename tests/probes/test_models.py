"""Models that others bring: a plain HookedTransformer and a TransformerBridge."""

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

from induction_memory import BigramTask, probes
from induction_memory.errors import InputError
from induction_memory.model.memories import matrix
from induction_memory.probes.why import Streams
from induction_memory.source.sources import model_weights
from induction_memory.task import Corpus
from induction_memory.task.sampler import make_batch, sample, step_rng

SIZES = {"d_model": 32, "n_layers": 2, "n_heads": 2, "d_head": 16, "n_ctx": 24, "d_vocab": 11, "d_mlp": 64, "seed": 0}

CORPUS = Corpus.from_text(
    "".join(chr(97 + int(i)) for i in torch.randint(11, (2000,), generator=torch.Generator().manual_seed(1)).tolist())
)
TASK = BigramTask(corpus=CORPUS, length=20, k=2)


def hooked():
    return HookedTransformer(HookedTransformerConfig(**SIZES, act_fn="gelu", normalization_type="LN"))


def bridge():
    return TransformerBridge.boot_native(TransformerBridgeConfig(**SIZES, act_fn="gelu", normalization_type="LN"))


MODELS = {"HookedTransformer": hooked, "TransformerBridge": bridge}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


def test_weights_explain_the_attention_of_the_model_itself(model):
    weights = model_weights(model)
    tokens = torch.randint(11, (2, 20), generator=torch.Generator().manual_seed(0))
    _, cache = model.run_with_cache(tokens)
    x = weights["embed.W_E"][tokens] + weights["pos_embed.W_pos"][:20]
    x = torch.nn.functional.layer_norm(x, (32,), weights["blocks.0.ln1.w"], weights["blocks.0.ln1.b"], 1e-5)
    q, k = (torch.einsum("bpd,hde->bhpe", x, weights[f"blocks.0.attn.{W}"]) for W in ("W_Q", "W_K"))
    hidden = torch.ones(20, 20, dtype=torch.bool).triu(1)
    pattern = (q @ k.mT / 4).masked_fill(hidden, -torch.inf).softmax(-1)
    torch.testing.assert_close(pattern, cache["blocks.0.attn.hook_pattern"], rtol=1e-3, atol=1e-5)


def test_the_logit_lens_applies_the_last_norm_and_the_unembedding_to_each_layer(model):
    batch = sample(TASK, 3, step_rng(0, 0))
    lens = probes.logit_lens(model, batch=batch)
    weights, group = model_weights(model), batch.group("global")
    _, cache = model.run_with_cache(batch.tokens)
    streams = [cache["blocks.0.hook_resid_pre"], *(cache[f"blocks.{i}.hook_resid_post"] for i in range(2))]
    for layer, x in enumerate(streams):
        x = torch.nn.functional.layer_norm(x, (32,), weights["ln_final.w"], weights["ln_final.b"], 1e-5)
        logits = (x @ weights["unembed.W_U"] + weights.get("unembed.b_U", 0))[group].double()
        targets = batch.targets[group]
        loss = torch.nn.functional.cross_entropy(logits, targets)
        above = (logits.gather(-1, targets[:, None]).squeeze(-1) - logits.mean(-1)).mean()
        found = lens.iloc[layer][["layer", "global_loss", "global_logit", "global_accuracy"]].tolist()
        right = (logits.argmax(-1) == targets).double().mean()
        wanted = [layer, *(float(value) for value in (loss, above, right))]
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_recall_between_chosen_sets_equals_a_loop(model):
    weights = model_weights(model)
    W_E, W_U = weights["embed.W_E"], weights["unembed.W_U"]
    targets = torch.tensor([3, -1, 0, 0, 1, 2, -1, 9, 10, 4, 5])
    found = probes.recall(model, "Phi_1", inputs="w_E", outputs="w_U", targets=targets)
    for head in range(2):
        gain = weights["blocks.0.ln1.w"][:, None] * weights["blocks.0.attn.W_V"][head]
        OV = (gain - gain.mean(0)) @ weights["blocks.0.attn.W_O"][head]
        out = weights["ln_final.w"][:, None] * W_U
        scores = W_E @ OV @ (out - out.mean(0))
        hits = [scores[i].argmax() == t for i, t in enumerate(targets) if t >= 0]
        assert found.loc[head, "recall"] == pytest.approx(sum(map(float, hits)) / len(hits))


def test_stored_pairs_of_the_user_s_own_sets_are_recalled(model):
    u, v = torch.eye(32)[:6], torch.eye(32).flip(0)[:6]
    found = probes.recall(model, v.T @ u, inputs=u, outputs=v)
    assert found[["recall", "rank"]].to_numpy().tolist() == [[1, 1]]
    with pytest.raises(InputError, match="inputs: expected rows of the matrix's dimension 32, got 11"):
        probes.recall(model, "Phi_1", inputs=torch.eye(11), outputs="w_U")


def test_recall_takes_one_form_at_a_time(model):
    W, rows = torch.eye(32), torch.eye(32)
    for wrong in (
        {"names": W},
        {"names": "Phi_1", "inputs": rows},
        {"inputs": rows, "outputs": rows},
        {"names": ["Phi_1"], "inputs": rows, "outputs": rows},
        {"names": "Phi_1", "inputs": rows, "outputs": rows, "targets": [0, 1]},
        {"tokens": [1, 2], "inputs": rows},
        {"targets": [1, 2]},
        {"tokens": "ab"},
    ):
        with pytest.raises(InputError, match=r"^(inputs|targets|tokens): expected"):
            probes.recall(model, **wrong)


def test_pairs_of_heads_are_named(model):
    found = probes.recall(model, "W_K2^T", inputs="w_E", outputs="Phi_1 w_E")
    assert found["head"].tolist() == ["L1H1>L2H1", "L1H1>L2H2", "L1H2>L2H1", "L1H2>L2H2"]
    named = probes.table(model, ["W_K2", "W_K2_margin"]).set_index(["probe", "head"])["value"]
    for _, row in found.iterrows():
        assert row["recall"] == named["W_K2", row["head"]]
        assert row["margin"] == pytest.approx(named["W_K2_margin", row["head"]], rel=1e-4)


def test_attention_scores_work_and_are_those_of_the_patterns(model):
    scores = probes.head_scores(model, length=10)
    assert scores["head"].tolist() == ["L1H1", "L1H2", "L2H1", "L2H2"]
    assert scores[["previous_token", "induction"]].to_numpy().max() < 0.5
    standard = probes.table(model, ["repeated_previous1", "entropy1"])
    assert standard["probe"].tolist() == ["repeated_previous1"] * 2 + ["entropy1"] * 2
    with pytest.raises(InputError, match="length: expected 2 to 12"):
        probes.head_scores(model, length=13)


def test_a_feed_forward_that_is_no_memory_is_skipped_but_attributed(model):
    table = probes.table(model, ["W_F_kl"], task=TASK)
    assert "linear or ReLU feed-forward" in table.attrs["skipped"]["W_F_kl"]
    batch = sample(TASK, 8, step_rng(0, 0))
    found = probes.table(model, "attribution", task=TASK, batch=batch).groupby("probe")["value"].sum()
    logits = model(batch.tokens)[batch.in_context]
    whole = (logits.gather(-1, batch.targets[batch.in_context][:, None]).squeeze(-1) - logits.mean(-1)).mean().item()
    parts = [n for n in found.index if n in ("dla_token", "dla_position") or n.startswith(("dla_heads", "dla_feed"))]
    assert len(parts) == 6
    assert found[parts].sum() == pytest.approx(whole, abs=1e-4)


def test_attributions_whose_sum_misses_a_part_of_the_logits_are_refused(model, monkeypatch):
    own = Streams.part
    monkeypatch.setattr(Streams, "part", lambda self, writer: own(self, writer) * (writer != "FF2"))
    table = probes.table(model, ["dla_heads1"], task=TASK, batch=sample(TASK, 8, step_rng(0, 0)))
    assert "of the logits, a sum misses" in table.attrs["skipped"]["dla_heads1"]


def test_a_feed_forward_whose_activation_was_replaced_is_no_memory():
    model = HookedTransformer(HookedTransformerConfig(**SIZES, act_fn="relu", normalization_type=None))
    assert "blocks.1.mlp.W_in" in model_weights(model)
    assert not probes.table(model, ["W_F_kl"], task=TASK).empty
    model.blocks[1].mlp.act_fn = torch.tanh
    assert not any(".mlp." in name for name in model_weights(model))
    table = probes.table(model, ["W_F_kl"], task=TASK)
    assert table.empty
    assert "W_F_kl" in table.attrs["skipped"]


def test_attention_probes_run_on_the_user_s_own_sequences(model):
    tokens = torch.randint(11, (4, 21), generator=torch.Generator().manual_seed(0))
    none = torch.zeros(4, 0, dtype=torch.int64)
    batch = make_batch(TASK, tokens, none, none)
    _, cache = model.run_with_cache(batch.tokens)
    found = probes.table(model, ["previous_token_mass2", "induction_repeated_mass2"], batch=batch)
    assert len(found) == 4
    assert not found.attrs["skipped"]
    raw = cache["blocks.1.attn.hook_pattern"].diagonal(-1, dim1=-2, dim2=-1).mean((0, 2))
    chance = (1 / torch.arange(2, 21)).mean()
    expected = ((raw - chance) / (1 - chance)).tolist()
    assert found["value"].tolist()[:2] == pytest.approx(expected, abs=1e-5)


def test_both_kinds_of_model_give_the_same_numbers_from_the_same_weights():
    ours, theirs = hooked(), bridge()
    with torch.no_grad():
        for name, weight in model_weights(theirs).items():
            dict(ours.named_parameters())[name].copy_(weight)
        for mine, other in zip(ours.blocks, theirs.blocks, strict=True):
            for W in ("W_in", "W_out"):
                getattr(mine.mlp, W).copy_(getattr(other.mlp, W))
    names = ["W_K1_margin", "W_K2_margin", "W_O2_margin", "K_composition", "copying2", "norm_W_K1"]
    mine, other = probes.table(ours, names), probes.table(theirs, names)
    assert mine["value"].tolist() == pytest.approx(other["value"].tolist(), rel=1e-4)
    a, b = (probes.head_scores(m, length=10)[["previous_token", "induction"]].to_numpy() for m in (ours, theirs))
    assert a == pytest.approx(b, abs=1e-5)


def test_a_users_own_matrix_may_still_ask_for_gradients():
    model = hooked()
    W, rows = torch.eye(4, requires_grad=True), torch.eye(4, requires_grad=True)
    assert probes.recall(model, W, inputs=rows, outputs=rows)["recall"].tolist() == [1.0]


def test_memories_of_a_model_with_other_names_are_refused_in_one_line():
    with pytest.raises(InputError, match=r"^source: expected a TransformerLens model or its weights by name, got"):
        matrix(bridge(), "W_O2")
