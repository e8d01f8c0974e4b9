"""`im.why`: its sums at every step, its sentence, its graph, its files and its mistakes."""

import json

import pytest
import torch

import induction_memory as im
from induction_memory.cli.app import main
from induction_memory.errors import InputError
from tests.probe_sources import RANDOM, constructed
from tests.trajectory.series import write_series

TEXT = "the tree at the t"


@pytest.fixture(scope="module")
def over_steps():
    return im.why("induction-small", step="all", text=TEXT)


def test_terms_add_up_at_each_step_to_the_logit_of_the_last_prediction(over_steps):
    run = im.load("induction-small")
    names = run.task.labels()[0]
    tokens, y = torch.tensor([[names.index(c) for c in TEXT]]), names.index(over_steps.last.predicted)
    sums = over_steps.terms[over_steps.terms["of"] == "logit"].groupby("step")["value"].sum()
    for step in run.steps.tolist():
        with torch.no_grad():
            own = run.model(step)(tokens)[0, -1, y].item()
        assert sums[step] == pytest.approx(own, rel=1e-4, abs=1e-4)
    by_memory = over_steps.memories[["W_O1", "W_O2", "direct"]].sum(axis=1)
    assert by_memory.tolist() == pytest.approx(sums.tolist(), abs=1e-6)
    pairs = over_steps.pairs
    assert pairs[pairs["of"] == "logit"].groupby("step")["value"].sum().tolist() == pytest.approx(sums.tolist())
    assert over_steps.terms.attrs["held"] == ("attention",)


def test_the_log_odds_of_attention_are_those_of_the_model(over_steps):
    run = im.load("induction-small")
    names = run.task.labels()[0]
    _, cache = run.model(600).run_with_cache(torch.tensor([[names.index(c) for c in TEXT]]))
    for one in over_steps.last.heads:
        layer = int(one.head[1])
        log = cache[f"blocks.{layer - 1}.attn.hook_pattern"][0, 0, one.query - 1].log()
        assert one.odds == pytest.approx((log[one.key - 1] - log[one.rival - 1]).item(), rel=1e-4, abs=1e-4)
        terms = over_steps.last.terms
        own = terms[(terms["of"] == one.head) & (terms["query"] == one.query)]
        assert own["value"].sum() == pytest.approx(one.odds, abs=1e-4)
        assert own.loc[own["role"] == "signal", "value"].sum() == pytest.approx(one.signal, abs=1e-4)


def test_the_sentence_of_the_construction_names_both_heads_and_both_pairs():
    batch = RANDOM.sample(1, im.task.step_rng(0, 0))
    names = RANDOM.labels()[0]
    found = im.why(constructed(RANDOM), batch=batch, task=RANDOM)
    token, said = names[batch.tokens[0, found.last.position - 1]], found.last.predicted
    assert said == names[batch.targets[0, found.last.position - 1]]
    assert f"because W_K2 stores {token}→{token}" in found.sentence
    assert f"and {said}→{said} is written by W_O2" in found.sentence
    tree = found.tree
    logit = [part for part in tree.parts if "log-odds" not in part.name]
    assert sum(part.value for part in logit) == pytest.approx(tree.value, abs=1e-4)
    for part in tree.parts:
        assert sum(one.value for one in part.parts) == pytest.approx(part.value, abs=1e-3)


def test_what_enters_a_node_of_the_graph_leaves_it_and_the_output_receives_the_logit(over_steps):
    graph = over_steps.graph()
    ids = {node["node_id"] for node in graph["nodes"]}
    flows = {key: [0.0, 0.0] for key in ids}
    for link in graph["links"]:
        flows[link["source"]][1] += link["weight"]
        flows[link["target"]][0] += link["weight"]
    (out,) = [node["node_id"] for node in graph["nodes"] if node["feature_type"] == "logit"]
    assert flows.pop(out)[0] == pytest.approx(over_steps.last.logit, abs=1e-4)
    for node in graph["nodes"]:
        if node["feature_type"] in ("attention head", "feed-forward"):
            entered, left = flows[node["node_id"]]
            assert entered == pytest.approx(left, abs=1e-6)
    assert graph["metadata"]["prompt_tokens"] == list(TEXT)
    assert {"node_id", "feature", "layer", "ctx_idx", "feature_type", "jsNodeId", "clerp"} <= set(graph["nodes"][0])


def test_a_difference_of_logits_and_a_chosen_position(over_steps):
    found = im.why("induction-small", text=TEXT, position=9, target="a", against="e")
    terms = found.last.terms
    assert terms.loc[terms["of"] == "logit", "value"].sum() == pytest.approx(found.last.logit, abs=1e-4)
    assert (terms.loc[terms["of"] == "logit", "output"] == "a−e").all()
    assert f"gives `a` {found.last.probability:.2f}" in found.sentence or "predicts `a`" in found.sentence


def test_the_picture_and_the_table_are_written(over_steps, tmp_path):
    one = im.why("induction-small", text=TEXT)
    assert one._repr_png_().startswith(b"\x89PNG")
    assert one.save(tmp_path / "why.svg").read_text() == one.save(tmp_path / "again.svg").read_text()
    assert over_steps.save(tmp_path / "steps.pdf").read_bytes().startswith(b"%PDF")
    assert len(one.save(tmp_path / "why.csv").read_text().splitlines()) == len(one.terms) + 1
    with pytest.raises(InputError, match=r"expected a file ending in"):
        one.save(tmp_path / "why.txt")


def test_the_command_prints_the_sentence_and_writes_the_graph(capsys, monkeypatch, tmp_path):
    command = ["induction-memory", "why", "induction-small", "--text", TEXT]
    monkeypatch.setattr("sys.argv", command)
    main()
    said = capsys.readouterr().out
    assert said.startswith(im.why("induction-small", text=TEXT).sentence)
    assert "logit of `h` at position 17" in said
    monkeypatch.setattr("sys.argv", [*command, "--position", "3", "--out", str(tmp_path / "why.json")])
    main()
    assert json.loads((tmp_path / "why.json").read_text())["nodes"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"text": TEXT, "position": 0}, r"position: expected .*1 to 17"),
        ({"text": TEXT, "position": 18}, r"position: expected .*1 to 17"),
        ({"text": TEXT, "target": "ä"}, "target: expected one of the outputs"),
        ({"text": TEXT, "batch": torch.zeros(1, 4, dtype=torch.long)}, "text: expected a text or a batch"),
        ({"text": ""}, "text: expected at least one character"),
        ({"batch": torch.zeros(1, 4, dtype=torch.long), "row": 1}, "row: expected"),
    ],
)
def test_mistakes_are_named(choice, message):
    with pytest.raises(InputError, match=message):
        im.why("induction-small", **choice)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_series_is_explained_with_the_names_of_its_components(tmp_path, kind):
    series = im.revisions(write_series(kind, tmp_path / "others", [0, 5]))
    tokens = torch.tensor([[5, 3, 7, 5, 3, 0]])
    found = im.why(series, step="all", batch=tokens, position=5)
    assert found.terms["step"].unique().tolist() == [0, 5]
    for step, reason in zip((0, 5), found.reasons, strict=True):
        with torch.no_grad():
            own = series.model(step)(tokens[:, :-1])[0, 4, int(found.last.target)].item()
        logit = reason.terms[reason.terms["of"] == "logit"]
        assert logit["value"].sum() == pytest.approx(own, rel=1e-3, abs=1e-4)
        assert set(reason.terms["role"]) == {"interference"}
        assert not any(name.startswith("W_") for name in logit["memory"])
    said = found.sentence  # what counts most depends on the initial weights, and these on the version of transformers
    assert "attends to position" in said or "the embeddings alone say" in said


@pytest.mark.parametrize("text", ["b", "bbb"])
def test_attention_without_another_token_to_attend_to_has_no_reason(text):
    said = im.why("induction-small", text=text).sentence
    assert "with no other token to attend to" in said
    assert "because" not in said
