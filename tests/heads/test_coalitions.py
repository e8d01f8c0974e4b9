from importlib.metadata import version

import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.heads.games import ROUTES, ask, edges, solve_games, value_function
from induction_memory.heads.shapley import all_coalitions
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.runner import fast as fast_runner
from induction_memory.runner.choice import runner
from induction_memory.runner.components import Graph
from induction_memory.runner.recording import Patch
from induction_memory.source.sources import batch_of_tokens
from tests.hooked_twin import hooked_logits

SMALL = {"d_model": 16, "n_ctx": 12, "d_vocab": 5}
ARCHITECTURES = {
    "simplified": ModelConfig.simplified(**SMALL),
    "attention only, wide heads": ModelConfig.simplified(**SMALL, n_heads=3, d_head=16, feed_forward="none"),
    "full, two heads": ModelConfig.full(**SMALL, n_heads=2),
    "full, LayerNorm, three layers": ModelConfig.full(**SMALL, n_heads=2, n_layers=3, layer_norm=True),
    "parallel blocks": ModelConfig.full(**SMALL, n_heads=2, layer_norm=True, parallel_blocks=True),
}


def random_batch(seed=0, batch=4):
    return batch_of_tokens(torch.randint(5, (batch, 13), generator=torch.Generator().manual_seed(seed)))


def model_of(config):
    model = build(config, seed=1)
    with torch.no_grad():  # at their small initial size nothing would be seen
        for name, weight in model.named_parameters():
            if "W_" in name:
                weight.mul_(1.5)
    return model


def value_function_of(config, kind="mean", via=None):
    return value_function(runner(model_of(config), via=via), random_batch(), kind=kind)


def hooked_sums(v, model, patches):
    logits = hooked_logits(model, v.batch.tokens, patches)
    return v.questions.sums(logits[torch.arange(len(logits))[:, None], v.questions.queries])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_coalition_equals_one_hooked_forward_with_the_absent_heads_replaced(name):
    v, model = value_function_of(ARCHITECTURES[name]), model_of(ARCHITECTURES[name])
    coalitions = all_coalitions(len(v.recording.graph.heads))
    fast = v.coalitions(coalitions)
    for row in range(0, len(coalitions), 3):
        absent = [head for head, there in zip(v.recording.graph.heads, coalitions[row], strict=True) if not there]
        patches = [Patch(head, v.absent[head]) for head in absent]
        torch.testing.assert_close(fast[row], hooked_sums(v, model, patches), atol=1e-4, rtol=1e-4)


def rotary_model():
    if int(version("transformer-lens").split(".")[0]) >= 4:
        pytest.skip("TransformerLens 4 has no HookedTransformer")
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    cfg = {"n_layers": 2, "d_model": 16, "n_heads": 2, "d_head": 8, "n_ctx": 12, "d_vocab": 5, "d_mlp": 32, "seed": 0}
    return HookedTransformer(HookedTransformerConfig(**cfg, act_fn="gelu", positional_embedding_type="rotary"))


@pytest.mark.parametrize("name", [*ARCHITECTURES, "rotary positions"])
def test_routes_that_see_different_heads_equal_one_hooked_forward_with_those_edges_cut(name):
    model = rotary_model() if name == "rotary positions" else model_of(ARCHITECTURES[name])
    v = value_function(runner(model, via="fast"), random_batch(), kind="mean")
    heads, generator = v.recording.graph.heads, torch.Generator().manual_seed(2)
    present = torch.rand(12, len(ROUTES), len(heads), generator=generator) < 0.6
    present[:6, 1:] = True  # some that differ in one route alone
    fast = v.values(present)
    for row, seen in enumerate(present):
        pairs = [(route, head) for r, route in enumerate(ROUTES) for h, head in enumerate(heads) if not seen[r, h]]
        patches = [
            Patch(edge, v.absent[head]) for route, head in pairs for edge in edges(v.recording.graph, head, route)
        ]
        torch.testing.assert_close(fast[row], hooked_sums(v, model, patches), atol=1e-4, rtol=1e-4)


def test_a_game_by_a_route_equals_one_hooked_forward_with_those_edges_cut():
    config = ARCHITECTURES["full, LayerNorm, three layers"]
    v, model = value_function_of(config), model_of(config)
    game = next(game for game in solve_games(v) if game.name == "k" and game.layer == 1)
    cut = [Patch(edge, v.absent["L1H2"]) for edge in edges(v.recording.graph, "L1H2", "k")]
    assert [patch.site for patch in cut] == ["L1H2->L2H1.k", "L1H2->L2H2.k", "L1H2->L3H1.k", "L1H2->L3H2.k"]
    difference = hooked_sums(v, model, []) - hooked_sums(v, model, cut)
    torch.testing.assert_close(game.solution.single[1], difference, atol=1e-4, rtol=1e-3)


def test_shapley_values_of_every_game_sum_to_its_total_effect():
    for name in ARCHITECTURES:
        for game in solve_games(value_function_of(ARCHITECTURES[name])):
            difference = game.solution.values.sum(0) - game.solution.total
            assert difference.abs().max() < 1e-6


def counted_attention(monkeypatch):
    calls, own = [], fast_runner.attend_from
    monkeypatch.setattr(fast_runner, "attend_from", lambda *given: calls.append(1) or own(*given))
    return calls


def test_coalitions_by_hooks_are_the_same():
    config = ARCHITECTURES["full, two heads"]
    fast, hooked = (value_function_of(config, via=via) for via in ("fast", "hooks"))
    torch.testing.assert_close(
        fast.coalitions(all_coalitions(4)), hooked.coalitions(all_coalitions(4)), atol=1e-4, rtol=1e-4
    )
    only_keys = torch.ones(16, len(ROUTES), 4, dtype=torch.bool)
    only_keys[:, ROUTES.index("k")] = all_coalitions(4)
    torch.testing.assert_close(fast.values(only_keys), hooked.values(only_keys), atol=1e-4, rtol=1e-4)


def test_coalitions_reuse_what_they_share_instead_of_starting_over(monkeypatch):
    v = value_function_of(ModelConfig.full(**SMALL, n_heads=4))
    calls, coalitions = counted_attention(monkeypatch), all_coalitions(8)
    v.coalitions(coalitions)
    assert len(calls) == 15  # 16 subsets of layer 1, one of them recorded
    v.coalitions(coalitions.flip(0))
    assert len(calls) == 15


def test_coalitions_of_the_last_layer_need_no_attention_at_all(monkeypatch):
    v = value_function_of(ModelConfig.full(**SMALL, n_heads=4))
    calls = counted_attention(monkeypatch)
    coalitions = torch.ones(16, 8, dtype=torch.bool)
    coalitions[:, 4:] = all_coalitions(4)
    assert v.coalitions(coalitions).shape == (16, 4)
    assert not calls


@pytest.mark.parametrize("kind", ["zero", "mean-position", "resample"])
def test_the_coalition_of_nobody_is_the_model_with_every_head_ablated(kind):
    v = value_function_of(ARCHITECTURES["full, two heads"], kind)
    patches = [Patch(head, v.absent[head]) for head in v.recording.graph.heads]
    logits = hooked_logits(model_of(ARCHITECTURES["full, two heads"]), v.batch.tokens, patches)
    at = logits[torch.arange(len(logits))[:, None], v.questions.queries]
    nobody = v.coalitions(torch.zeros(1, 4, dtype=torch.bool))[0]
    torch.testing.assert_close(nobody, v.questions.sums(at), atol=1e-4, rtol=1e-4)


def test_working_out_coalitions_leaves_the_model_as_it_was():
    model = model_of(ARCHITECTURES["full, two heads"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    solve_games(value_function(model, random_batch()))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(hook.fwd_hooks for hook in model.hook_dict.values())


def test_routes_of_the_last_layer_lead_to_the_output_alone():
    graph = Graph.of(build(ARCHITECTURES["full, two heads"], seed=0))
    assert edges(graph, "L2H1", "out") == ["L2H1->FF2", "L2H1->out"]
    assert edges(graph, "L1H1", "ff") == ["L1H1->FF1"]
    assert [edges(graph, "L2H1", route) for route in ("ff", "q", "k", "v")] == [[]] * 4


def test_questions_are_worth_what_the_metrics_say():
    tokens = torch.tensor([[0, 1, 2, 0, 1, 2, 0], [3, 3, 3, 4, 4, 4, 4]])
    batch = batch_of_tokens(tokens)
    assert batch.group().tolist() == [[False] * 3 + [True] * 3, [False, True, False, False, True, True]]
    logits = torch.zeros(2, 6, 5)
    logits[torch.arange(2)[:, None], torch.arange(6), batch.targets] = 5.0
    for metric, expected in (
        ("logit", 4.0),
        ("accuracy", 1.0),
        ("log-probability", -torch.tensor(1 + 4 / 148.413159).log()),
    ):
        questions = ask(batch, metric)
        at = logits[torch.arange(2)[:, None], questions.queries]
        mean, error = questions.mean(questions.sums(at))
        assert mean.item() == pytest.approx(float(expected), abs=1e-6)
        assert error.item() == pytest.approx(0, abs=1e-9)
    assert ask(batch, at_most=1).queries.shape == (2, 1)


def test_a_mean_over_the_questions_of_one_sequence_has_no_known_error():
    batch = batch_of_tokens(torch.tensor([[0, 1, 2, 0, 1, 2, 0], [3, 4, 5, 6, 7, 8, 9]]))
    questions = ask(batch)
    mean, error = questions.mean(torch.tensor([6.0, 0.0], dtype=torch.float64))
    assert mean == 2
    assert error.isnan()
    broken = torch.full((2, questions.queries.shape[1], 10), torch.nan)
    assert ask(batch, "accuracy").sums(broken).isnan().all()


def test_the_recording_is_not_repeated_for_the_games(monkeypatch):
    v = value_function_of(ARCHITECTURES["full, two heads"])
    monkeypatch.setattr(type(v.recording.runner), "record", None)
    assert len(solve_games(v)) == 1 + 2 + 5 + 1


def test_outputs_are_not_resampled_where_no_triggers_are_known():
    with pytest.raises(InputError, match="kind: expected sequences with triggers for 'resample-output'"):
        value_function_of(ARCHITECTURES["full, two heads"], "resample-output")
