"""A TransformerBridge takes the fast path where its own forward agrees with it, and hooks everywhere else."""

import logging

import pytest
import torch

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.runner import bridged
from induction_memory.runner.hooked import HookedRunner
from induction_memory.runner.recording import Patch
from tests.trajectory.series import write_series

FAST = ("gpt2", "neox", "olmo", "llama-shared")
TOKENS = torch.randint(2, 20, (3, 9), generator=torch.Generator().manual_seed(5))


@pytest.fixture
def bridge(request, tmp_path):
    write_series(request.param, tmp_path / "series", [0])
    return im.revisions(tmp_path / "series", keep=False).model(0)


def every_site(graph):
    return [*graph.writers, *(name for name in graph.inputs if "." in name), *graph.edges]


@pytest.mark.parametrize("bridge", FAST, indirect=True)
def test_every_patch_gets_what_hooks_get(bridge):
    fast, slow = im.runner.record(bridge, TOKENS), HookedRunner(bridge).record(TOKENS)
    assert fast.runner.via == "fast"
    sites = [site for site in every_site(fast.graph) if slow.graph.allows(site)]
    assert len(sites) > 20
    other = im.runner.record(bridge, TOKENS.flip(1))
    where = torch.rand(TOKENS.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    variants = [
        [Patch(site, 3 * other.at(site.split("->")[0]), where if i % 2 else None)] for i, site in enumerate(sites)
    ]
    for site, found, expected in zip(sites, fast.run(variants), slow.run(variants), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4, msg=lambda m, s=site: f"{s}: {m}")
    for layer in (1, 2):
        torch.testing.assert_close(fast.pattern(layer), slow.pattern(layer), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bridge", ["gpt2"], indirect=True)
def test_hooks_and_methods_that_change_the_forward_later_are_noticed(bridge, caplog, monkeypatch):
    runner = im.runner.runner(bridge)
    assert runner.via == "fast"
    bridge.hook_dict["blocks.1.attn.hook_z"].add_hook(lambda z, hook: z.clamp(-0.01, 0.01))
    assert runner.record(TOKENS).runner.via == "hooks"
    assert im.runner.runner(bridge).via == "hooks"
    bridge.reset_hooks()
    assert runner.record(TOKENS).runner.via == "fast"
    hook = bridge.blocks[1].mlp.register_forward_hook(lambda module, given, written: 2 * written)
    recording = runner.record(TOKENS)
    assert recording.runner.via == "hooks"
    torch.testing.assert_close(recording.logits, bridge(TOKENS))
    hook.remove()
    assert runner.record(TOKENS).runner.via == "fast"
    kind = type(bridge.blocks[1].mlp.original_component)
    own = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, x: own(self, x).clamp(-1e6, 1e6))  # no intact run shows it
    with caplog.at_level(logging.WARNING, "induction_memory"):
        assert im.runner.runner(bridge).via == "hooks"
    assert runner.record(TOKENS).runner.via == "hooks"
    assert "it has the function" in caplog.text


@pytest.mark.parametrize("bridge", ["gpt2"], indirect=True)
def test_a_bridge_whose_numbers_differ_says_where(bridge, caplog, monkeypatch):
    runner = im.runner.runner(bridge)
    monkeypatch.setattr(bridged, "CLOSE", -1.0)
    with caplog.at_level(logging.WARNING, "induction_memory"):
        assert runner.record(TOKENS).runner.via == "hooks"
    assert "the fast path computes another hook_embed" in caplog.text


@pytest.mark.parametrize("bridge", ["gemma", "olmo2", "qwen3"], indirect=True)
def test_a_bridge_that_computes_something_else_runs_with_hooks(bridge):
    recording = im.runner.record(bridge, TOKENS)
    assert recording.runner.via == "hooks"
    torch.testing.assert_close(recording.logits, bridge(TOKENS))
    with pytest.raises(InputError, match="via: expected hooks"):
        im.runner.runner(bridge, via="fast")


@pytest.mark.parametrize("bridge", ["llama-shared"], indirect=True)
def test_a_head_that_shares_its_keys_has_a_view_of_its_own(bridge):
    """Zero values of one query head are a head without output; the other head of its group keeps its values."""
    intact = im.runner.record(bridge, TOKENS)
    zero = torch.zeros(1, 1, 8)
    by_values, by_output = intact.patched_logits([[Patch("L2H1.v", zero)], [Patch("L2H1", torch.zeros(1, 1, 16))]])
    torch.testing.assert_close(by_values, by_output, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(by_values, intact.logits, atol=1e-3)


@pytest.mark.parametrize("bridge", ["gpt2"], indirect=True)
def test_other_weights_are_refused_as_by_hooks(bridge):
    runner = im.runner.runner(bridge)
    with pytest.raises(InputError, match="weights: expected names out of"):
        runner.record(TOKENS, {"blocks.0.ln1.w": torch.zeros(16)})
