"""The paper on one screen (analyses/paper.py) computes what the package computes."""

import torch

import induction_memory as im
from analyses import paper
from induction_memory.model.config import ModelConfig
from induction_memory.task.bigrams import BigramTask


def weights(model):
    """A HookedTransformer's weights under the names and in the orientation of the screen."""
    names = ("W_K1", "W_V1", "W_O1", "W_K2", "W_V2", "W_O2")
    maps = {name: im.model.matrix(model, name).squeeze() for name in names}
    return {
        "w_E": im.model.embedding(model, "w_E"),
        "p": im.model.embedding(model, "p"),
        "w_U": im.model.embedding(model, "w_U"),
        **maps,
    }


def a_model():
    return im.build(ModelConfig(d_model=32, n_ctx=24, feed_forward="none"), seed=3)


def test_its_model_is_the_simplified_model():
    model = a_model()
    tokens = BigramTask(length=24).sample(4, im.task.step_rng(0, 0)).tokens
    assert torch.allclose(paper.logits(weights(model), tokens), model(tokens), atol=1e-4)


def test_its_initial_weights_have_the_shapes_and_sizes_of_the_packages():
    torch.manual_seed(0)
    ours, theirs = weights(a_model()), paper.initial(65, 24, 32)
    assert {name: value.shape for name, value in ours.items()} == {name: value.shape for name, value in theirs.items()}
    for name in ours:
        assert 0.8 < theirs[name].std() / ours[name].std() < 1.25


def test_its_recalls_are_those_of_the_probes():
    run = im.load("induction-alone")
    w, probes = weights(run.model(150)), im.probes.recall(run).loc[150]
    found = {
        name: paper.recall(w[name], *paper.pairs(w)[name], given="input" if name == "W_O2" else "query")
        for name in ("W_K1", "W_K2", "W_O2")
    }
    assert all(abs(found[name] - probes[name]) < 1e-6 for name in found)
    assert 0.9 < found["W_O2"] < 1


def test_the_memories_of_its_section_4_2_make_an_induction_head():
    torch.manual_seed(0)
    w = paper.initial(20, 24, 512)
    for name, (u, v) in paper.pairs(w).items():
        w[name] = 200 * v.T @ u / (u.norm(dim=1).mean() * v.norm(dim=1).mean()) ** 2 * 512**0.5
    pi = torch.full((20,), 1 / 20)
    z, known = paper.sample(64, 24, 3, pi, pi.expand(20, 20))
    right = paper.logits(w, z[:, :-1]).argmax(-1) == z[:, 1:]
    assert right[known].float().mean() > 0.9


def test_its_sampler_follows_triggers_by_their_outputs_and_others_by_the_bigrams():
    torch.manual_seed(0)
    pi_u, pi_b = torch.ones(6) / 6, torch.eye(6).roll(1, 1)  # a token that is no trigger is followed by the next one
    z, known = paper.sample(200, 30, 2, pi_u, pi_b)
    assert z.shape == (200, 31)
    assert known.any()
    for row, asked in zip(z, known, strict=True):
        after = {}
        for t in range(30):
            after.setdefault(int(row[t]), set()).add(int(row[t + 1]))
        assert all(len(found) == 1 for found in after.values())
        strange = {token for token, found in after.items() if found != {(token + 1) % 6}}
        assert len(strange) <= 2
        for t in asked.nonzero()[:, 0].tolist():
            assert int(row[t]) in row[:t].tolist()
