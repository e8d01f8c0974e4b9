import pytest
import torch

from induction_memory import probes
from induction_memory.probes import attention
from induction_memory.probes.activations import largest
from induction_memory.probes.attention import repeated_induction
from induction_memory.task.batch import repeated_tokens
from induction_memory.task.ideals import after_same_context
from induction_memory.task.sampler import make_batch, sample, step_rng
from tests.probe_sources import FIXED, RANDOM, TINY, constructed, untrained


def one_hot_pattern(attended: list[list[int]]) -> torch.Tensor:
    """A pattern of one head in which each query attends to one key."""
    return torch.nn.functional.one_hot(torch.tensor(attended), len(attended[0])).float()[:, None]


def uniform_pattern(batch: int, n: int) -> torch.Tensor:
    seen = torch.ones(n, n).tril()
    return (seen / seen.sum(-1, keepdim=True)).expand(batch, 1, n, n)


def test_keys_after_earlier_occurrences_are_found_one_by_one():
    tokens = torch.randint(4, (3, 9), generator=torch.Generator().manual_seed(0))
    sought = after_same_context(tokens)
    for b in range(3):
        for t in range(9):
            for s in range(9):
                expected = 1 <= s <= t and tokens[b, s - 1] == tokens[b, t]
                assert sought[b, t, s] == expected


def test_perfect_heads_score_one_and_uniform_ones_zero():
    tokens = torch.tensor([[0, 1, 2, 0, 1, 2]])
    sought = after_same_context(tokens)
    queries = sought.any(-1)
    previous = one_hot_pattern([[0, 0, 1, 2, 3, 4]])
    assert attention.previous_token(previous) == 1
    assert attention.previous_token_argmax(previous.argmax(-1)) == 1
    induction = one_hot_pattern([[0, 0, 0, 1, 2, 3]])
    assert attention.induction(induction, sought, queries) == 1
    assert attention.induction_argmax(induction.argmax(-1), sought, queries) == 1
    uniform = uniform_pattern(1, 6)
    assert attention.previous_token(uniform).item() == pytest.approx(0, abs=1e-7)
    assert attention.induction(uniform, sought, queries).item() == pytest.approx(0, abs=1e-7)


def test_mass_is_worked_out_by_hand():
    tokens = torch.tensor([[5, 5, 7, 5]])
    pattern = uniform_pattern(1, 4).clone()
    pattern[0, 0, 3] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    sought = after_same_context(tokens)  # query 3: keys 1 and 2; query 1: key 1
    queries = torch.tensor([[False, True, False, True]])
    mass, chance = (0.5 + 0.5) / 2, (1 / 2 + 2 / 4) / 2
    expected = (mass - chance) / (1 - chance)
    assert attention.induction(pattern, sought, queries).item() == pytest.approx(expected)


def test_entropy_of_uniform_attention_is_the_greatest():
    uniform, certain = uniform_pattern(2, 5), one_hot_pattern([[0, 0, 1, 2, 3]])
    assert attention.entropy(uniform).item() == pytest.approx(torch.arange(2, 6).log().mean().item())
    assert attention.entropy(uniform, share=True).item() == pytest.approx(1)
    assert attention.entropy(certain).item() == 0


def test_entropies_are_those_of_every_row():
    pattern = torch.rand(9, 2, 5, 5, generator=torch.Generator().manual_seed(0)).tril()
    pattern = pattern / pattern.sum(-1, keepdim=True)
    torch.testing.assert_close(attention.entropies(pattern), torch.special.entr(pattern).sum(-1))
    half = attention.entropies(pattern.bfloat16())
    torch.testing.assert_close(half.float(), torch.special.entr(pattern).sum(-1), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_largest_entry_is_found_in_every_precision(dtype):
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, torch.nan, 5.0]], dtype=dtype)
    assert largest(x).tolist() == [1, 1]


def test_repeated_sequences_score_the_stripe():
    tokens = repeated_tokens(9, 4, 2, torch.Generator().manual_seed(0))
    assert torch.equal(tokens[:, :4], tokens[:, 4:])
    stripe = one_hot_pattern([[0, 0, 0, 0, 1, 2, 3, 4]])
    assert repeated_induction(stripe) == 1
    assert repeated_induction(one_hot_pattern([[0, 0, 1, 2, 3, 4, 5, 6]])) == 0


def test_conditional_probes_equal_a_loop_over_positions():
    model = untrained(d_model=24, length=16, n_heads=2, identity_queries=False)
    batch = sample(TINY, 8, step_rng(0, 0))
    logits, cache = model.run_with_cache(batch.tokens)
    first, second = (cache[f"blocks.{i}.attn.hook_pattern"].argmax(-1) for i in (0, 1))
    found = probes.table(model, "attention", task=TINY, batch=batch).set_index(["probe", "head"])["value"]
    for g in range(2):
        after, match, target, predicted, where = [], [], [], [], {0: [], 1: []}
        for b in range(8):
            z, y, counts = batch.tokens[b], batch.targets[b], batch.counts[b]
            for t in range(16):
                if t >= 1 and counts[t - 1] >= 1:
                    after.append(first[b, g, t] == t - 1)
                if counts[t] >= 2:
                    s = int(second[b, g, t])
                    match.append(s > 0 and z[s - 1] == z[t])
                    target.append(z[s] == y[t])
                    predicted.append(z[s] == logits[b, t].argmax())
                    if s > 0:
                        for h in range(2):
                            where[h].append(first[b, h, s] == s - 1)
        expected = {
            ("previous_after_trigger1", f"L1H{g + 1}"): after,
            ("match2", f"L2H{g + 1}"): match,
            ("attended_is_target2", f"L2H{g + 1}"): target,
            ("predicted_is_attended2", f"L2H{g + 1}"): predicted,
            ("previous_where_attended", f"L1H1>L2H{g + 1}"): where[0],
            ("previous_where_attended", f"L1H2>L2H{g + 1}"): where[1],
        }
        for key, hits in expected.items():
            assert found[key] == pytest.approx(sum(map(float, hits)) / len(hits)), key


def test_the_constructed_heads_look_where_they_should():
    found = probes.table(constructed(), "attention", task=FIXED).set_index("probe")["value"]
    near_one = ["previous_token_mass1", "previous_token_argmax1", "previous_after_trigger1", "repeated_previous1"]
    near_one += ["induction_mass2", "induction_argmax2", "match2", "attended_is_target2", "predicted_is_attended2"]
    assert found[[*near_one, "previous_where_attended"]].min() > 0.95
    assert found["entropy_share1"] < 0.01
    wrong = probes.table(constructed(shuffle=("W_K1", "W_K2")), "attention", task=FIXED).set_index("probe")["value"]
    assert wrong[["previous_token_mass1", "previous_token_argmax1"]].max() < 0.05
    assert wrong[["induction_mass2", "induction_argmax2"]].abs().max() < 0.15


def test_untrained_heads_are_at_chance():
    found = probes.table(untrained(feed_forward="none"), "attention", task=RANDOM).set_index("probe")["value"]
    corrected = [f"{what}_{how}{layer}" for what in ("previous_token", "induction", "induction_repeated")
                 for how in ("mass", "argmax") for layer in (1, 2)]  # fmt: skip
    assert found[corrected].abs().max() < 0.1


def test_random_triggers_give_the_standard_induction_score():
    scores = probes.head_scores(constructed(RANDOM, 512), length=16)
    assert scores["previous_token"].tolist()[0] > 0.99
    assert scores["induction"].tolist()[1] > 0.7  # tokens that recur in the random half share the mass
    assert scores["induction"].tolist()[0] < 0.05


def test_a_batch_without_repeated_triggers_says_so():
    tokens = torch.arange(17)[None]
    batch = make_batch(TINY, tokens, torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, 0, dtype=torch.int64))
    table = probes.table(untrained(d_model=24, length=16), ["induction_mass2", "entropy1"], task=TINY, batch=batch)
    assert table["probe"].tolist() == ["entropy1"]
    assert "needs queries that have occurred before" in table.attrs["skipped"]["induction_mass2"]
