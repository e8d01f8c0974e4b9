import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

from induction_memory.errors import InputError
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.runner import fast
from induction_memory.runner.choice import record
from induction_memory.runner.components import Graph
from induction_memory.runner.hooked import HookedRunner
from induction_memory.runner.recording import Patch
from tests.hooked_twin import hooked_logits

SMALL = {"d_model": 16, "n_ctx": 12, "d_vocab": 11}
ARCHITECTURES = {
    "simplified": ModelConfig.simplified(**SMALL),
    "attention only": ModelConfig.simplified(**SMALL, feed_forward="none"),
    "attention only, two wide heads": ModelConfig.simplified(
        **SMALL, feed_forward="none", n_heads=2, d_head=12, identity_queries=False
    ),
    "full, two heads": ModelConfig.full(**SMALL, n_heads=2),
    "full, LayerNorm, three layers": ModelConfig.full(**SMALL, n_layers=3, layer_norm=True),
    "parallel blocks": ModelConfig.full(**SMALL, n_heads=2, layer_norm=True, parallel_blocks=True),
}


def tokens_of(seed, config=ARCHITECTURES["simplified"], batch=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.d_vocab, (batch, config.n_ctx), generator=generator)


@pytest.fixture(params=ARCHITECTURES, ids=str)
def model(request):
    built = build(ARCHITECTURES[request.param], seed=1)
    if "heads" in request.param:
        add_biases(built)
    return built


def add_biases(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".b_" in name:
                parameter.normal_(generator=generator)


def every_site(graph):
    return [*graph.writers, *graph.inputs[:-1], *graph.edges]


def unique(sites):
    return list(dict.fromkeys(sites))


def test_a_recording_is_what_the_hooks_of_the_model_see(model):
    recording = record(model, tokens_of(0))
    assert recording.runner.via == "fast"
    logits, cache = model.run_with_cache(tokens_of(0))
    torch.testing.assert_close(recording.logits, logits, atol=1e-5, rtol=1e-5)
    for name, activation in recording.activations.items():
        torch.testing.assert_close(activation, cache[name].expand_as(activation), atol=1e-5, rtol=1e-5)
    summed = sum(recording.at(writer) for writer in recording.graph.writers)
    summed = summed + sum(block.attn.b_O for block in model.blocks)
    torch.testing.assert_close(summed, cache[f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"], atol=1e-5, rtol=1e-5)


def test_the_attention_is_what_the_hooks_of_the_model_see(model):
    _, cache = model.run_with_cache(tokens_of(0))
    for runner in (record(model, tokens_of(0)).runner, HookedRunner(model)):
        for layer, pattern in enumerate(runner.patterns(tokens_of(0))):
            torch.testing.assert_close(pattern, cache[f"blocks.{layer}.attn.hook_pattern"], atol=1e-5, rtol=1e-5)


def test_attention_is_recorded_on_request_and_computed_for_some_queries_at_a_time(model, monkeypatch):
    monkeypatch.setattr(fast, "QUERIES", 5)
    _, cache = model.run_with_cache(tokens_of(0))
    for runner in (record(model, tokens_of(0)).runner, HookedRunner(model)):
        recording = runner.record(tokens_of(0), patterns=True)
        for layer in range(1, model.cfg.n_layers + 1):
            for name, found in (("pattern", recording.pattern(layer)), ("z", recording.layer(layer, "attn.hook_z"))):
                hook = f"blocks.{layer - 1}.attn.hook_{name}"
                assert hook in recording.activations
                torch.testing.assert_close(found, cache[hook], atol=1e-5, rtol=1e-5)


def test_every_single_patch_equals_one_hooked_forward(model):
    clean, other = (record(model, tokens_of(seed)) for seed in (0, 1))
    sites = unique(every_site(clean.graph))
    variants = [[Patch(site, other.at(site.split("->")[0]))] for site in sites]
    patched = clean.patched_logits(variants)
    for site, variant, short in zip(sites, variants, patched, strict=True):
        slow = hooked_logits(model, clean.tokens, variant)
        torch.testing.assert_close(short, slow, atol=1e-5, rtol=1e-5, msg=lambda m, s=site: f"{s}: {m}")


@pytest.mark.parametrize("together", [16, 2])
def test_random_sets_of_patches_at_some_positions_equal_one_hooked_forward(model, together, monkeypatch):
    monkeypatch.setattr(fast, "SEQUENCES", together)
    clean, other = (record(model, tokens_of(seed)) for seed in (0, 1))
    generator = torch.Generator().manual_seed(3)
    sites = unique(every_site(clean.graph))
    variants = []
    for _ in range(25):
        chosen = torch.randperm(len(sites), generator=generator)[:4].tolist()
        where = torch.rand(clean.tokens.shape, generator=generator) < 0.5
        variants.append(
            [
                Patch(sites[i], other.at(sites[i].split("->")[0]), where if j % 2 else None, [1.0, 0.3][j // 2])
                for j, i in enumerate(chosen)
            ]
        )
    for variant, short in zip(variants, clean.patched_logits(variants), strict=True):
        slow = hooked_logits(model, clean.tokens, variant)
        torch.testing.assert_close(short, slow, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_many_edges_with_one_vector_each_equal_one_hooked_forward(model, monkeypatch):
    """Heads that nobody reads and inputs that are the same at every position take the short ways."""
    clean = record(model, tokens_of(0))
    graph, queries = clean.graph, torch.tensor([[11, 3], [5, 5], [0, 8]])
    mean = {writer: clean.at(writer).mean((0, 1), keepdim=True) for writer in graph.writers}
    last, generator = f"L{graph.n_layers}", torch.Generator().manual_seed(4)
    chosen = [[e for e in graph.edges if f"{last}H" in e.split("->")[1] and e.endswith(f".{one}")] for one in "qkv"]
    chosen += [[e for e in graph.edges if e.endswith(f".{one}")] for one in "qkv"]
    chosen += [[e for e in graph.edges if e.startswith(head)] for head in graph.heads]
    chosen += [[e for e in graph.edges if e.startswith("L")], list(graph.edges)]
    for share in (0.5, 0.7, 0.9) * 4:
        chosen.append([e for e in graph.edges if float(torch.rand(1, generator=generator)) < share])
    variants = [[Patch(edge, mean[edge.split("->")[0]]) for edge in edges] for edges in chosen]
    for some, together in ((None, 16), (queries, 16), (queries, 2)):
        monkeypatch.setattr(fast, "SEQUENCES", together)
        for variant, short in zip(variants, clean.patched_logits(variants, queries=some), strict=True):
            slow = hooked_logits(model, clean.tokens, variant)
            slow = slow if some is None else slow.gather(1, some.unsqueeze(-1).expand(-1, -1, slow.shape[-1]))
            torch.testing.assert_close(short, slow, atol=2e-5, rtol=2e-5)


@pytest.mark.slow
def test_patches_of_one_position_and_logits_at_some_queries_equal_the_hooked_forward(model):
    clean, other = (record(model, tokens_of(seed)) for seed in (0, 1))
    queries = torch.tensor([[11, 3], [5, 6], [0, 9]])
    variants = []
    for number, site in enumerate(unique(every_site(clean.graph))):
        where = torch.zeros_like(clean.tokens, dtype=torch.bool)
        where[:2, number % 10] = True
        variants.append([Patch(site, other.at(site.split("->")[0]), where)])
    for variant, short in zip(variants, clean.patched_logits(variants, queries=queries), strict=True):
        slow = hooked_logits(model, clean.tokens, variant)
        rows = slow.gather(1, queries[..., None].expand(-1, -1, slow.shape[-1]))
        torch.testing.assert_close(short, rows, atol=1e-5, rtol=1e-5)


def test_as_many_queries_as_positions_are_still_only_those_queries(model):
    clean, other = (record(model, tokens_of(seed)) for seed in (0, 1))
    queries = torch.arange(12).flip(0).expand(3, -1)
    variants = [[Patch(site, other.at(site.split("->")[0]))] for site in unique(every_site(clean.graph))]
    everywhere = clean.patched_logits(variants)
    torch.testing.assert_close(clean.patched_logits(variants, queries=queries), everywhere.flip(2))


def test_patching_a_run_into_itself_changes_nothing(model):
    clean = record(model, tokens_of(0))
    everything = [Patch(site, clean.at(site.split("->")[0])) for site in unique(every_site(clean.graph))]
    one_at_a_time = clean.patched_logits([[], everything, *([patch] for patch in everything)])
    torch.testing.assert_close(one_at_a_time, clean.logits.expand_as(one_at_a_time), atol=1e-5, rtol=1e-5)


def test_patching_everything_gives_the_other_run(model):
    clean, other = (record(model, tokens_of(seed)) for seed in (0, 1))
    edges = [Patch(edge, other.at(edge.split("->")[0])) for edge in clean.graph.edges]
    writers = [Patch(writer, other.at(writer)) for writer in clean.graph.writers]
    embeddings = [Patch("embed", other.at("embed"))]
    out = clean.patched_logits([edges, writers, embeddings])
    torch.testing.assert_close(out, other.logits.expand_as(out), atol=1e-5, rtol=1e-5)


def test_variants_are_independent_of_their_neighbours(model):
    clean, other = (record(model, tokens_of(seed)) for seed in (0, 1))
    heads = clean.graph.heads
    variants = [[Patch(head, other.at(head)) for i, head in enumerate(heads) if n >> i & 1] for n in range(16)]
    queries = torch.tensor([[3, 11]] * 3)
    for some in (None, queries):
        together = clean.patched_logits(variants, queries=some)
        for variant, logits in zip(variants, together, strict=True):
            assert torch.equal(logits, clean.patched_logits([variant], queries=some)[0])


@pytest.mark.parametrize("letter", "qkv")
def test_one_vector_at_every_position_equals_the_hooked_forward_whichever_it_replaces(model, letter):
    clean = record(model, tokens_of(0))
    sites = [site for site in clean.graph.inputs if site.endswith(f".{letter}")]
    means = {site: clean.at(site).mean((0, 1), keepdim=True) for site in sites}
    by_sequence = {site: clean.at(site).mean(1, keepdim=True) for site in sites}
    variants = [[Patch(site, value)] for values in (means, by_sequence) for site, value in values.items()]
    variants += [[Patch(sites[-1], means[sites[-1]]), Patch(sites[-1], clean.at(sites[-1]).flip(0))]]
    variants += [[Patch(sites[-1], clean.at(sites[-1]).flip(0)), Patch(sites[-1], means[sites[-1]])]]
    queries = torch.tensor([[3, 11]] * 3)
    some = clean.patched_logits(variants, queries=queries)
    for variant, short, rows in zip(variants, clean.patched_logits(variants), some, strict=True):
        slow = hooked_logits(model, clean.tokens, variant)
        torch.testing.assert_close(short, slow, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(rows, slow[:, [3, 11]], atol=1e-5, rtol=1e-5)


def test_attention_is_causal_for_all_positions_and_for_some():
    q, k, v = (torch.randn(5, 13, 2, width, generator=torch.Generator().manual_seed(width)) for width in (4, 4, 3))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 2
    expected = scores.masked_fill(torch.ones(13, 13, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    expected = torch.einsum("bhqk,bkhd->bqhd", expected, v)
    torch.testing.assert_close(fast.attend(q, k, v, 2.0), expected, atol=1e-5, rtol=1e-5)
    rows = torch.tensor([[3, 12]] * 5)
    torch.testing.assert_close(fast.attend(q[:, [3, 12]], k, v, 2.0, rows), expected[:, [3, 12]], atol=1e-5, rtol=1e-5)


def test_the_effect_of_a_patch_differentiates_in_its_amount():
    clean, other = (record(build(ARCHITECTURES["simplified"], seed=0), tokens_of(seed)) for seed in (0, 1))

    def total(amount):
        return clean.patched_logits([[Patch("L1H1->L2H1.k", other.at("L1H1"), amount=amount)]])[..., 0].sum()

    amount = torch.tensor(0.4, requires_grad=True)
    (slope,) = torch.autograd.grad(total(amount), amount)
    finite = (total(torch.tensor(0.41)) - total(torch.tensor(0.39))) / 0.02
    assert slope.item() == pytest.approx(finite.item(), rel=0.05, abs=1e-2)


def test_recording_and_running_leave_the_model_as_it_was(model):
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    clean = record(model, tokens_of(0))
    clean.patched_logits([[Patch("L1H1", torch.zeros(1, 1, 16))]])
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any(hook.fwd_hooks for hook in model.hook_dict.values())


def test_names_stand_for_their_sites():
    graph = Graph.of(build(ARCHITECTURES["full, two heads"], seed=0))
    assert graph.writers == ("embed", "pos", "L1H1", "L1H2", "FF1", "L2H1", "L2H2", "FF2")
    assert graph.resolve("L1") == ("L1H1", "L1H2")
    assert graph.resolve("W_K2") == ("L2H1.k", "L2H2.k")
    assert graph.resolve("W_O1") == ("L1H1", "L1H2")
    assert graph.resolve("pos->L2.k") == ("pos->L2H1.k", "pos->L2H2.k")
    assert graph.resolve("L1H2->L2H1") == ("L1H2->L2H1.q", "L1H2->L2H1.k", "L1H2->L2H1.v")
    assert graph.resolve("W_in1") == ("FF1",)
    assert "L1H1->FF1" in graph.edges
    assert "FF1->FF1" not in graph.edges
    assert graph.parameters("W_K2") == {"blocks.1.attn.W_K": None}
    assert graph.parameters("embed->L1.q") == {"embed.W_E": None}


def test_in_parallel_blocks_a_feed_forward_does_not_read_its_own_heads():
    graph = Graph.of(build(ARCHITECTURES["parallel blocks"], seed=0))
    assert "L1H1->FF1" not in graph.edges
    assert "L1H1->FF2" in graph.edges


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("L3H1", "embed, pos, L1H1, L2H1, FF2"),
        ("L1H2", "embed, pos, L1H1, L2H1, FF2"),
        ("W_K3", "W_K2"),
        ("L2H1->L1H1.k", "a writer that comes before the input"),
        ("L1H1->L2H1.w", "L2H1.q, L2H1.k, L2H1.v, FF2, out"),
        ("", "embed, pos"),
    ],
)
def test_an_unknown_name_is_answered_with_what_exists(name, says):
    graph = Graph.of(build(ARCHITECTURES["simplified"], seed=0))
    with pytest.raises(InputError, match="component: expected") as error:
        graph.resolve(name)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_rotary_positions_gelu_and_pre_folded_norms_are_patched_exactly_too():
    settings = HookedTransformerConfig(
        n_layers=2, d_model=16, n_ctx=12, d_head=8, n_heads=2, d_mlp=32, d_vocab=11, act_fn="gelu", seed=0,
        normalization_type="LNPre", positional_embedding_type="rotary", rotary_dim=4, parallel_attn_mlp=True,
    )  # fmt: skip
    model = HookedTransformer(settings)
    add_biases(model)
    clean, other = (record(model, tokens_of(seed)) for seed in (0, 1))
    assert clean.runner.via == "fast"
    assert clean.graph.writers == ("embed", "L1H1", "L1H2", "FF1", "L2H1", "L2H2", "FF2")
    torch.testing.assert_close(clean.logits, model(clean.tokens), atol=1e-5, rtol=1e-5)
    variants = [[Patch(site, other.at(site.split("->")[0]))] for site in unique(every_site(clean.graph))]
    variants += [[Patch(site, clean.at(site).mean((0, 1), keepdim=True))] for site in clean.graph.inputs if "." in site]
    queries = torch.tensor([[3, 11]] * 3)
    for variant, short, rows in zip(
        variants, clean.patched_logits(variants), clean.patched_logits(variants, queries=queries), strict=True
    ):
        slow = hooked_logits(model, clean.tokens, variant)
        torch.testing.assert_close(short, slow, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(rows, slow[:, [3, 11]], atol=1e-5, rtol=1e-5)
