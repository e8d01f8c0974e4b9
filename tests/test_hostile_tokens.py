"""Tokens and names that would break a careless page, picture, table or terminal, through every kind of output."""

import io
import re
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest

import induction_memory as im
from induction_memory.cli import main
from induction_memory.experiment.run_config import RunConfig
from induction_memory.terminal import csv, markdown, terminal
from induction_memory.training.run import start
from tests.tiny_runs import TRAIN

matplotlib.use("agg")
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "]]>",
    "&amp;",
    "=1+1",
    "@SUM(A1)",
    "|",
    "\x1b[31m",
    "\x07",
    "$x^$",
    "$\\frac{",
    "\n",
    "\t",
    '"',
    "'",
    "\\",
    "->",
    "\u202e",
    "a",
    "b",
)
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    drawn = [HOSTILE[i] for i in np.random.default_rng(0).integers(len(HOSTILE), size=900)]
    task = im.BigramTask(im.task.Corpus.from_tokens([*HOSTILE, *drawn], name="hostile"), length=24, k=2)
    model = im.ModelConfig(d_model=16, n_ctx=24, d_vocab=task.vocab_size)
    folder = tmp_path_factory.mktemp("runs") / "\x1b[31m<b>=1+1"
    return start(RunConfig(task, model, TRAIN), folder, progress=False)


def test_pages_hold_every_token_as_text(run, tmp_path, knocks):
    for text in (im.attention(run).html(), im.report(run, sequences=1, length=24, causal_steps=1).html()):
        assert text.count("<script>alert") == 0
        assert "<img src=x" not in text
        knocks["outputs with hostile tokens"] += 1
    assert "<b>=1" not in im.sweep.page(run.path.parent).html()
    knocks["outputs with hostile tokens"] += 1


@pytest.mark.parametrize("kind", [".svg", ".png", ".pdf"])
def test_pictures_show_every_token_and_no_formula_is_read(run, kind, tmp_path, knocks):
    view = im.attention(run, batch=im.sample(run.task, 8, im.task.step_rng(0, 0)), length=24)
    content = view.save(tmp_path / f"maps{kind}").read_bytes()
    if kind == ".svg":
        ElementTree.fromstring(content)
        ElementTree.fromstring(view.picture()[0])
    assert len(content) > 1000
    knocks["outputs with hostile tokens"] += 1


def test_tables_keep_their_shape(run, knocks):
    table = im.probes.births(run, "W_O2").assign(run=run.name)
    assert set(HOSTILE) == set(table["association"])
    text = csv(table)
    read = pd.read_csv(io.StringIO(text), keep_default_na=False)
    assert len(read) == len(table)
    plain = read["association"].str.removeprefix("'").where(read["association"].str.len() > 1, read["association"])
    assert plain.tolist() == table["association"].tolist()
    assert (
        not read["association"].str.contains(r"^[=@+\-].").drop(index=table.index[table["association"] == "->"]).any()
    )
    lines = markdown(table).splitlines()
    assert len(lines) == len(table) + 2
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(table.columns) + 1}
    assert "<img" not in "".join(lines)
    assert not CONTROL.search(terminal(table))
    knocks["outputs with hostile tokens"] += 3


def test_every_token_can_be_named_and_nothing_moves_the_cursor(run, monkeypatch, capsys, tmp_path, knocks):
    for token in HOSTILE:
        if token == "->":
            continue  # an arrow alone stands between two tokens
        name = token if token.isprintable() else token.encode("unicode_escape").decode()
        words = ["surgery", str(run.path), "--memory", "W_O2", f"--erase={name}"]
        monkeypatch.setattr("sys.argv", ["induction-memory", *words])
        main()
        out, err = capsys.readouterr()
        assert not CONTROL.search(out + err), token
        assert "target" in out
        knocks["outputs with hostile tokens"] += 1


def test_a_very_long_token_is_cut_in_pictures(tmp_path):
    words = ("x" * 3000, "a", "b", "c")
    drawn = [words[i] for i in np.random.default_rng(0).integers(len(words), size=900)]
    task = im.BigramTask(im.task.Corpus.from_tokens([*words, *drawn], name="long"), length=24, k=2)
    model = im.ModelConfig(d_model=16, n_ctx=24, d_vocab=task.vocab_size)
    run = start(RunConfig(task, model, TRAIN), tmp_path / "run", progress=False)
    assert max(im.attention(run, batch=im.sample(task, 8, im.task.step_rng(0, 0))).figure().get_size_inches()) < 40
    assert (im.share(run, tmp_path / "shared") / "figures" / "attention.png").stat().st_size < 10**6
