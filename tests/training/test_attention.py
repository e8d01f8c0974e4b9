"""The parts of the fast path, each against the formula written out."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from induction_memory.training.evaluation import induction_pattern, previous_token_pattern
from induction_memory.training.fast.attention import (
    LOG2_E,
    ProductScores,
    ScoreTables,
    Table,
    average,
    backward,
    impose,
    weigh,
)
from induction_memory.training.fast.micro_batches import (
    BLOCK,
    Piece,
    Sums,
    Workspace,
    causal_blocks,
    causal_mask,
    micro_batches,
)
from induction_memory.training.fast.network import cross_entropy

CPU = torch.device("cpu")
BATCH, POS, WIDTH, VOCAB = 3, BLOCK + 20, 6, 7


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def softmax_by_loop(q: Tensor, k: Tensor, positions: list[list[int]]) -> Tensor:
    """P[b, i, s] = exp(q_i . k_s) / sum up to the query's position, one query at a time."""
    P = torch.zeros(len(q), len(positions[0]), k.shape[1])
    for b in range(len(q)):
        for i, t in enumerate(positions[b]):
            P[b, i, : t + 1] = torch.stack([q[b, i] @ k[b, s] for s in range(t + 1)]).softmax(0)
    return P


def everywhere(tokens: Tensor | None = None) -> Piece:
    """Every position is a query."""
    tokens = torch.zeros(BATCH, POS, dtype=torch.int64) if tokens is None else tokens
    return Piece(tokens, causal_blocks(causal_mask(POS, CPU)), Workspace(CPU), Sums(CPU))


def chosen_queries() -> tuple[Piece, list[list[int]]]:
    """Chosen positions, more than a block of them, with repetitions at the end of the shorter rows."""
    chosen = torch.zeros(BATCH, POS, dtype=torch.bool)
    chosen[0, ::3] = True
    chosen[1, 5:] = True
    chosen[2, [0, 40, 41]] = True
    (piece,) = micro_batches(chosen, BATCH)
    assert piece.positions is not None
    return piece.chosen(everywhere(), causal_mask(POS, CPU)), piece.positions.tolist()


@pytest.mark.parametrize("where", ["everywhere", "chosen"])
def test_blocks_of_queries_give_the_softmax_over_what_each_query_sees(where):
    if where == "everywhere":
        piece, positions = everywhere(), [list(range(POS))] * BATCH
    else:
        piece, positions = chosen_queries()
    assert len(piece.blocks) == 2
    q, k, v = rows(BATCH, len(positions[0]), WIDTH), rows(BATCH, POS, WIDTH, seed=1), rows(BATCH, POS, 4, seed=2)
    weights = weigh(ProductScores(q * LOG2_E, k), piece, "test")
    P = softmax_by_loop(q, k, positions)
    for block, found in zip(piece.blocks, weights, strict=True):
        torch.testing.assert_close(found, P[:, block.rows, : block.keys])
        assert (P[:, block.rows, block.keys :] == 0).all()

    out = rows(BATCH, len(positions[0]), 4, seed=3)
    added, written = out.clone(), torch.full_like(out, torch.nan)
    average(weights, v, added, piece, add=True)
    average(weights, v, written, piece)
    torch.testing.assert_close(written, P @ v)
    torch.testing.assert_close(added, out + P @ v)


def test_backward_gives_the_gradients_of_q_k_and_v():
    piece, positions = chosen_queries()
    size = len(positions[0])
    q, k, v = rows(BATCH, size, WIDTH), rows(BATCH, POS, WIDTH, seed=1), rows(BATCH, POS, 4, seed=2)
    do = rows(BATCH, size, 4, seed=3)
    for x in (q, k, v):
        x.requires_grad_(True)
    late = torch.arange(POS) > torch.tensor(positions)[..., None]
    P = (q @ k.transpose(1, 2)).masked_fill(late, -torch.inf).softmax(-1)
    expected = torch.autograd.grad(P @ v, (q, k, v), do)

    dq, dk, dv = torch.empty_like(q), torch.ones_like(k), torch.ones_like(v)
    with torch.no_grad():
        bits = q * LOG2_E
        weights = weigh(ProductScores(bits, k), piece, "test")
        backward(weights, do, v, piece, scores=ProductScores(bits, k, dq, dk), add_dv=dv)
    torch.testing.assert_close(dq * LOG2_E, expected[0])
    torch.testing.assert_close(dk - 1, expected[1])
    torch.testing.assert_close(dv - 1, expected[2])


def test_an_imposed_pattern_passes_gradients_to_the_values():
    pattern = torch.full((BATCH, POS, POS), 1.0).tril() / torch.arange(1, POS + 1)[:, None]
    v, do = rows(BATCH, POS, 4), rows(BATCH, POS, 4, seed=1)
    piece = everywhere()
    weights = impose(pattern, piece)
    out = torch.empty(BATCH, POS, 4)
    average(weights, v, out, piece)
    torch.testing.assert_close(out, pattern @ v)
    dv = torch.zeros_like(v)
    backward(weights, do, v, piece, scores=None, add_dv=dv)
    torch.testing.assert_close(dv, pattern.transpose(1, 2) @ do)


def embedded() -> tuple[Table, Tensor, Tensor]:
    table = Table(rows(VOCAB, WIDTH), rows(POS, WIDTH, seed=1))
    tokens = torch.randint(0, VOCAB, (BATCH, POS), generator=torch.Generator().manual_seed(2))
    return table, tokens, table.by_token[tokens] + table.by_position


def test_tables_give_the_scores_of_products_and_the_gradient_of_the_matrix():
    table, tokens, x = embedded()
    W = rows(WIDTH, WIDTH, seed=3)
    piece = everywhere(tokens)
    scores = ScoreTables(W, table, piece.blocks, "test")
    expected = torch.zeros(WIDTH, WIDTH)
    for block in piece.blocks:
        S = torch.empty(BATCH, len(range(POS)[block.rows]), block.keys)
        scores.fill(block, S, piece)
        asked, seen = x[:, block.rows], x[:, : block.keys]
        torch.testing.assert_close(S, asked @ W @ seen.transpose(1, 2), atol=1e-4, rtol=1e-5)
        dS = rows(*S.shape, seed=4)
        scores.receive(block, dS, piece)
        expected += torch.einsum("bti,bts,bsj->ij", asked, dS, seen)
    found = scores.gradient(piece.sums) * LOG2_E  # of scores in bits
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-5)


def test_a_map_looked_up_equals_the_product_at_all_or_some_positions():
    table, tokens, x = embedded()
    W = rows(WIDTH, 5, seed=3)
    mapped = Table(table.by_token @ W, table.by_position @ W)
    out = torch.empty(BATCH, POS, 5)
    mapped.look_up(tokens, None, out)
    torch.testing.assert_close(out, x @ W)
    positions = torch.tensor([[3, 1], [0, 9], [60, 60]])
    some = torch.empty(BATCH, 2, 5)
    mapped.look_up(tokens.gather(1, positions), positions, some)
    torch.testing.assert_close(some, (x @ W)[torch.arange(BATCH)[:, None], positions])

    for where, dy in ((None, rows(BATCH, POS, 5, seed=4)), (positions, rows(BATCH, 2, 5, seed=5))):
        sums = Sums(CPU)
        here = tokens if where is None else tokens.gather(1, where)
        mapped.add_gradient(dy, here, where, sums, "test")
        at = x if where is None else x[torch.arange(BATCH)[:, None], where]
        total = mapped.gradient(sums, "test")
        dW = table.by_token.T @ total.by_token + table.by_position.T @ total.by_position
        torch.testing.assert_close(dW, at.flatten(0, 1).T @ dy.flatten(0, 1), atol=1e-4, rtol=1e-5)


def test_pieces_hold_every_chosen_position_once_and_mark_repetitions():
    chosen = torch.rand(11, 30, generator=torch.Generator().manual_seed(0)) < 0.2
    chosen[3] = False
    found = torch.zeros_like(chosen, dtype=torch.int64)
    sizes = []
    for piece in micro_batches(chosen, 4):
        assert piece.positions is not None
        assert piece.real is not None
        sizes.append(piece.positions.shape[1])
        for sequence, positions, real in zip(piece.sequences, piece.positions, piece.real, strict=True):
            found[sequence, positions[real]] += 1
            assert (positions[~real] == positions[real][-1]).all()
    assert (found == chosen).all()
    assert sizes == sorted(sizes)
    assert [len(piece.sequences) for piece in micro_batches(torch.ones(11, 3, dtype=torch.bool), 4)] == [4, 4, 3]
    assert micro_batches(torch.zeros(2, 3, dtype=torch.bool), 4) == []


def test_cross_entropy_in_bits_and_its_gradient():
    logits = rows(5, VOCAB).requires_grad_(True)
    targets, weights = torch.tensor([0, 6, 3, 3, 1]), torch.tensor([1.0, 0.0, 2.0, 0.5, 0.0])
    expected = F.cross_entropy(logits, targets, reduction="none")
    (gradient,) = torch.autograd.grad((weights * expected).sum(), logits)
    bits = logits.detach() * LOG2_E
    nll, correct = cross_entropy(bits, targets, weights)
    torch.testing.assert_close(nll, expected.detach())
    torch.testing.assert_close(bits * LOG2_E, gradient)
    assert (correct == (logits.argmax(-1) == targets)).all()
    bits = torch.tensor([[900.0, -900.0]])
    nll, _ = cross_entropy(bits, torch.tensor([1]), None)
    assert nll.item() == pytest.approx(1800 * math.log(2))


def test_clamped_patterns_by_hand():
    tokens = torch.tensor([[0, 1, 0, 2, 0], [3, 3, 3, 1, 2]])
    previous = torch.zeros(5, 5)
    previous[0, 0] = previous[1, 0] = previous[2, 1] = previous[3, 2] = previous[4, 3] = 1
    assert (previous_token_pattern(tokens) == previous).all()
    expected = torch.zeros(2, 5, 5)
    for b in range(2):
        for t in range(5):
            match = [s for s in range(1, t + 1) if tokens[b, s - 1] == tokens[b, t]]
            for s in match or range(t + 1):
                expected[b, t, s] = 1 / len(match or range(t + 1))
    torch.testing.assert_close(induction_pattern(tokens), expected)
    assert induction_pattern(tokens)[0, 4].tolist() == [0, 0.5, 0, 0.5, 0]


def test_a_buffer_is_the_same_memory_until_it_must_grow():
    buffers = Workspace(CPU)
    first = buffers("a", 4, 6)
    assert buffers("a", 3, 8).data_ptr() == first.data_ptr()
    assert buffers("b", 4, 6).data_ptr() != first.data_ptr()
    assert buffers("a", 5, 6).shape == (5, 6)


def test_the_weights_of_a_block_are_probabilities():
    q, k = 100 * rows(BATCH, POS, WIDTH), 100 * rows(BATCH, POS, WIDTH, seed=1)
    for P in weigh(ProductScores(q, k), everywhere(), "test"):
        assert P.isfinite().all()
        torch.testing.assert_close(P.sum(-1), torch.ones(P.shape[:2]))
