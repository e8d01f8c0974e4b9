"""What the page is given: packed arrays, score tables, live weights, budgets, and the lines of Python."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import induction_memory as im
from induction_memory import probes
from induction_memory.errors import InputError
from induction_memory.model.associations import carrier
from induction_memory.source.sources import select
from induction_memory.views.page import live, tables
from induction_memory.views.page.document import document, script
from induction_memory.views.page.gather import EVALUATED, spread
from induction_memory.views.page.pack import Pack, join, quantise, reduced, unpack, within
from induction_memory.views.run_page import report
from tests.views.page_runs import full_run, hostile_run


def evaluation_batch(run):
    return select(run, sequences=EVALUATED).batch


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return hostile_run(tmp_path_factory.mktemp("runs") / "simple")


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return full_run(tmp_path_factory.mktemp("runs") / "full")


@pytest.fixture(scope="module")
def page(run):
    return report(run, length=16)


def test_numbers_and_codes_come_back_from_the_blob():
    values = np.linspace(-3, 5, 24).reshape(2, 3, 4)
    weights = np.arange(6, dtype="<f4").reshape(2, 3)
    pack = Pack({"name": "x"}, {"codes": quantise(values), "coarse": quantise(values, 8), "weights": weights})
    meta, arrays = unpack(pack.blob())
    assert meta == {"name": "x"}
    assert np.abs(arrays["codes"] - values).max() <= 8 / 65535 / 2 + 1e-12
    assert np.abs(arrays["coarse"] - values).max() <= 8 / 255 / 2 + 1e-12
    assert (arrays["weights"] == weights).all()
    assert pack.blob() == pack.blob()


def test_a_constant_array_is_kept_exactly():
    assert (unpack(Pack({}, {"x": quantise(np.full(3, 2.5))}).blob())[1]["x"] == 2.5).all()


@pytest.mark.parametrize("which", ["run", "full"])
def test_score_tables_are_those_of_the_probes(which, request):
    source = request.getfixturevalue(which)
    found, skipped = tables.tables(source, source.steps.tolist())
    names = {table.memory for table in found}
    assert names == ({"W_K1", "W_K2", "W_O2", "W_F"} if which == "run" else {"W_K1", "W_K2", "W_O2"})
    assert ("W_F" in skipped) == (which == "full")
    for table in found:
        if table.memory == "W_F":
            continue
        for i, step in ((0, source.steps[0]), (-1, source.steps[-1])):
            expected = probes.score_matrix(source, table.memory, step=int(step), head=table.head).to_numpy()
            expected = expected if table.memory == "W_O2" else expected.T  # a row of the page is a query
            shown = table.scores[i]
            np.testing.assert_allclose(shown, expected[: shown.shape[0], : shown.shape[1]], rtol=1e-4, atol=1e-5)


def test_the_table_of_W_F_holds_the_logits_of_its_bigrams(run):
    table = next(t for t in tables.tables(run, run.steps.tolist())[0] if t.memory == "W_F")
    model = run.model(int(run.steps[-1]))
    expected = model.W_E @ model.blocks[1].mlp.W_F @ model.W_U
    np.testing.assert_allclose(table.scores[-1], expected.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_the_pairs_of_W_K2_that_are_shown_have_the_highest_recall_of_their_second_head(full):
    shown = [t for t in tables.tables(full, full.steps.tolist())[0] if t.memory == "W_K2"]
    recall = probes.table(full, ["W_K2"])
    last = recall[recall["step"] == recall["step"].max()]["value"].to_numpy().reshape(2, 2)
    assert sorted(t.index % 2 for t in shown) == [0, 1]
    for table in shown:
        assert last.reshape(-1)[table.index] == last[:, table.index % 2].max()


def test_the_live_weights_give_the_models_own_attention_and_logits(run):
    facts, arrays = live.pack(run, run.steps.tolist())
    tokens = evaluation_batch(run).tokens[:2]
    for i in (0, len(run.steps) - 1):
        maps, logits = live.forward(facts, arrays, i, tokens)
        expected, cache = run.model(int(run.steps[i])).run_with_cache(tokens)
        tolerance = 1e-5 if i == 0 else 5e-3  # the first step is stored in full, the others change in 8 bits
        both = torch.cat([cache[f"blocks.{layer}.attn.hook_pattern"] for layer in (0, 1)], dim=1)
        torch.testing.assert_close(maps, both, rtol=0, atol=tolerance)
        torch.testing.assert_close(logits, expected, rtol=0, atol=4 * tolerance)


def test_on_a_shipped_run_8_bits_change_attention_by_less_than_2e_4_on_average():
    run = im.load("induction-alone")
    steps = run.steps.tolist()
    facts, arrays = live.pack(run, steps)
    tokens = evaluation_batch(run).tokens[:2, :64]
    differences = []
    for i in range(0, len(steps), 6):
        _, cache = run.model(steps[i]).run_with_cache(tokens)
        both = torch.cat([cache[f"blocks.{layer}.attn.hook_pattern"] for layer in (0, 1)], dim=1)
        differences.append((live.forward(facts, arrays, i, tokens)[0] - both).abs().mean())
    assert torch.stack(differences).mean() < 2e-4


def test_models_that_the_page_cannot_run_say_why(full):
    def why_not(model, task="known"):
        return live.why_not(SimpleNamespace(model_config=model, task=task))

    simplified = im.ModelConfig.simplified()
    assert live.why_not(full) == "the model has ReLU feed-forwards"
    assert why_not(simplified) == ""
    assert "LayerNorm" in why_not(simplified.replace(layer_norm=True))
    assert why_not(simplified.replace(trained=("W_E", "W_K1"))) == "W_E are trained"
    assert why_not(simplified, task=None).startswith("the task is not known")


def test_numbers_in_the_page_are_those_of_the_tables(run, page):
    meta, arrays = unpack(page.pack.blob())
    shown = meta["runs"][0]
    batch = evaluation_batch(run)
    curves = {(c["name"], c["head"]): c for c in shown["curves"]}
    assert curves["loss_in_context", ""]["values"] == run.metrics["loss_in_context"].dropna().tolist()
    measured = probes.table(run, ["kl_bayes"], batch=batch)
    assert curves["kl_bayes", ""]["values"] == measured["value"].tolist()
    causes = shown["causes"]
    lost = im.ablate(run, batch, components=["W_O2", "L1H1"], kind="mean", step=causes["steps"][-1])
    for name in ("W_O2", "L1H1"):
        expected = lost.loc[lost["component"] == name, "in_context_loss"].item()
        assert causes["without"]["in_context_loss"][-1][causes["parts"].index(name)] == pytest.approx(
            expected, rel=1e-5
        )
    roles = im.heads.identify(run, batch=batch)
    assert causes["roles"][-1] == roles.roles["role"].tolist()
    assert causes["heads"] == roles.roles["head"].tolist()
    rows = [sequence["row"] for sequence in shown["sequences"]]
    view = im.attention(run, step=int(run.steps[-1]), batch=batch, row=rows[0], length=16)
    q, k = np.tril_indices(16)
    np.testing.assert_allclose(arrays["0 attention"][-1, 0], view.patterns[0][:, q, k], atol=1 / 65535)


def test_births_of_associations_are_those_of_the_atlas(run, page):
    (table,) = [m for m in page.pack.meta["runs"][0]["memories"] if m["memory"] == "W_O2"]
    expected = probes.births(run, "W_O2")["birth"]
    assert [np.nan if b is None else b for b in table["births"]] == pytest.approx(expected.tolist(), nan_ok=True)


def test_every_line_of_python_runs(run, page):
    snippets = page.pack.meta["runs"][0]["snippets"]
    values = {
        "step": int(run.steps[-1]),
        "row": 0,
        "text": '"aba"',
        "memory": "W_O2",
        "head": "L2H1",
        "query": 3,
        "position": 3,
    }
    for name, code in snippets.items():
        for key, value in values.items():
            code = code.replace(f"{{{key}}}", str(value))
        scope = {}
        exec(code, scope)  # the last line shows its value, as a notebook's cell does
        assert "{" not in code.replace("{}", ""), name


def test_a_page_over_its_budget_is_thinned_and_says_so(page):
    pack = page.pack
    single = Pack(pack.meta["runs"][0], {name[2:]: array for name, array in pack.arrays.items()})
    small = reduced(single, 8, 1, 3)
    assert small.meta["notes"] == [
        "attention and memories are stored in 8 bits",
        "1 of 3 sequences",
        f"3 of {len(single.meta['steps'])} steps",
    ]
    assert small.meta["steps"][0] == single.meta["steps"][0]
    assert small.meta["steps"][-1] == single.meta["steps"][-1]
    assert small.arrays["attention"].codes.shape[:2] == (3, 1)
    assert len(join([small]).blob()) < len(join([single]).blob())
    assert within([single], "x", 10**8).meta["runs"][0]["notes"] == []
    with pytest.raises(InputError, match="budget: expected at least"):
        within([single], "x", 1000)


def test_steps_are_spread_with_both_ends():
    assert spread([0, 1, 2], 5) == [0, 1, 2]
    assert spread(range(0, 101, 10), 3) == [0, 50, 100]


def test_data_cannot_leave_its_element_and_the_policy_names_the_script():
    source = document("</title><script>alert(1)</script>", b"blob")
    assert source.count("<script") == 2
    assert "unsafe" not in source.partition("<style>")[0]
    assert "&lt;/title&gt;" in source
    assert "</script" not in script()
    assert "import " not in script().replace("// ", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": []}, "source: expected 1 to 4 runs"),
        ({"source": [3]}, "source: expected a run"),
        ({"source": {"W": torch.zeros(2, 2)}}, "source: expected runs or series, their folders or names, got weights"),
        ({"length": 0}, "length: expected 1 to 4096"),
        ({"budget": 1000}, "budget: expected 500000 to"),
        ({"step": [1]}, "step: expected one of the"),
    ],
)
def test_mistakes_are_named(arguments, message, unchecked):
    with pytest.raises(InputError, match=message):
        report(**({"source": "induction-alone"} | arguments))


def test_a_page_is_saved_as_html_only(page, tmp_path):
    with pytest.raises(InputError, match=r"ending in \.html"):
        page.save(tmp_path / "page.pdf")
    assert page.save(tmp_path / "page.html").read_text(encoding="utf-8") == page.html()


def test_memories_of_several_heads_go_through_the_head_that_surgery_takes():
    shipped = im.load("four-heads")
    ranked, _ = tables.clearest(shipped)
    writer = carrier(shipped.model(), shipped.task)
    assert {name.split(">")[0] for _, name in ranked["W_K2"]} == {writer} == {"L1H3"}
    assert sorted(name.split(">")[1] for _, name in ranked["W_K2"]) == ["L2H1", "L2H2", "L2H3", "L2H4"]
    names = list(probes.table(shipped, ["W_K2"], step="last")["head"])
    assert all(names[index] == name for index, name in ranked["W_K2"])
