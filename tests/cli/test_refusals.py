"""Mistakes that are told in one line, with exit code 2, before anything heavy is imported."""

import json
import subprocess
import sys

import pytest

import induction_memory as im
from induction_memory import cli
from induction_memory.cli import ablate, attention, branch, probe, report
from induction_memory.interventions.ablations import kinds
from induction_memory.probes import measuring
from induction_memory.training import branching
from induction_memory.views import attention_maps as maps
from induction_memory.views import run_page as pages
from induction_memory.views.page import gather

SURGERY = ("surgery", "RUN", "--memory", "W_K2")
MISTAKES = [
    (("attention", "RUN", "--out", "x.gif"), "--out: expected a file ending in .html"),
    (("ablate", "L3H1"), "run: expected the folder of a trajectory"),
    (("ablate", "RUN", "--components", "L3H1"), "component: expected one of"),
    (("circuit", "RUN", "--share", "2"), "--share: expected a number between 0 and 1"),
    (("circuit", "RUN", "--sequences", "0"), "--sequences: expected at least 1, got 0"),
    (("surgery", "RUN", "--memory", "W_O2", "--project", "--complement"), "--complement: expected it or --project"),
    (("surgery", "RUN", "--memory", "W_K9", "--erase", "a"), "--memory: expected one of W_K1, W_K2, W_O2, W_F"),
    (("surgery", "RUN", "--memory", "W_K2"), "edit: expected one of erase, insert"),
    (("surgery", "RUN", "--memory", "W_K2", "--erase", "a", "--head", "L9H1"), "head: expected a head of layer 2"),
    (("heads", "RUN", "--sequences", "1"), "--sequences: expected at least 2, got 1"),
    (("patch", "RUN", "--step", "5000"), "step: expected one of the"),
    (("ablate", "RUN", "--step", "0,5000"), "step: expected one of the"),
    (("probe", "RUN", "--steps", "5000"), "step: expected one of the"),
    (("branch", "RUN", "--at", "5000", "--out", "x"), "step: expected one of the"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--freeze", "W_X"), "train.freeze: expected names"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--graft", "W_O2"), "train.grafts: expected NAME=RUN@STEP"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--graft", "W_O2=RUN@5000"), "step: expected one of the"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--edit", "W_K1: erase 3->2"), "--edit: expected 'key->query'"),
    (("reproduce", "3", "--workers", "0"), "--workers: expected a whole number from 1"),
    (("demo", "--out", "/proc/x"), "--out: expected a folder that can be made"),
    (("demo", "--out", "RUN"), "--out: expected a new folder, or an earlier demo's"),
    (("reproduce", "3", "--out", "/proc/x"), "--out: expected a folder that can be made"),
    (("reproduce", "3", "--runs", "/proc/x"), "--runs: expected a folder that can be made"),
    (("ablate", "RUN", "--components", "nope"), "component: expected one of embed"),
    (("ablate", "RUN", "--components", "heads", "pos->L9.k"), "component: expected one of embed"),
    (("ablate", "RUN", "--text", "a"), "--text: expected none"),
    (("ablate", "RUN", "--sequences", "0"), "--sequences: expected at least 1, got 0"),
    (("probe", "inducton-alone"), "got 'inducton-alone'; did you mean induction-alone?"),
    (("heads", "RUN", "nowhere"), "run: expected the folder of a trajectory"),
    (("heads", "RUN", "--text", "a"), "--text: expected none"),
    (("attention", "RUN", "--out", "x.png", "--step", "all"), "--step: expected a stored step, up to 12"),
    (("attention", "RUN", "--out", "x.png", "--text", ""), "--text: expected at least one character"),
    (("attention", "RUN", "--out", "x.png", "--text", "Ä"), "--text: expected tokens of the vocabulary"),
    (("attention", "RUN", "--out", "x.png", "--text", "a" * 999), "--text: expected 1 to "),
    (("probe", "RUN", "--probes", "recal"), "got 'recal'; did you mean recall?"),
    (("probe", "RUN", "--tokens", "1", "1"), "--tokens: expected two or more numbers from 0 to 64"),
    (("probe", "RUN", "--tokens", "999", "1"), "--tokens: expected two or more numbers from 0 to 64"),
    (("probe", "RUN", "--tokens", "1", "2", "--probes", "W_O2"), "--tokens: expected it or --probes, got both"),
    (("probe", "RUN", "--text", "a"), "--text: expected none"),
    (("probe", "/proc/self/fd"), "expected a trajectory (a folder with manifest.json)"),
    (("verify", "/proc/self/fd"), "expected a trajectory (a folder with manifest.json)"),
    (("report", "RUN", "--out", "x.html", "--sequences", "0"), "--sequences: expected 1 to 16, got 0"),
    (("report", "RUN", "--out", "x.html", "--length", "0"), "--length: expected 1 to 4096, got 0"),
    (("report", "RUN", "--out", "x.html", "--budget", "0.1"), "--budget: expected megabytes from 0.5 to 1000"),
    (("report", "RUN", "nowhere", "--out", "x.html"), "run: expected the folder of a trajectory"),
    (("train", "demo", "--out", "/proc/x"), "--out: expected a folder that can be made"),
    (("train", "demo", "--out", "RUN"), "--out: expected a new or an empty folder (or --resume to go on)"),
    (("train", "--out", "nowhere", "--resume"), "--out: expected the folder of a run to resume, got 'nowhere'"),
    (
        ("train", "demo", "--out", "x", "--seed", "9" * 22),
        "seed: expected a whole number from 0 to 3,002,399,751,580,329",
    ),
    (("branch", "RUN", "--at", "0", "--out", "/proc/x"), "--out: expected a folder that can be made"),
    (("branch", "RUN", "--at", "0", "--out", "RUN"), "--out: expected a new or an empty folder"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--edit", "W_K9: erase a"), "--edit: expected one of W_K1"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--graft", "W_O9=RUN"), "--graft: expected names out of W_E"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--graft", "W_O2=nowhere"), "run: expected the folder"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--graft", "W_O2=nowhere.npy"), "--graft: expected a file"),
    (
        (*SURGERY, "--erase", "a", "--through", "L2H1"),
        "through: expected a head of layer 1: L1H1 or 1 to 1, got 'L2H1'",
    ),
    ((*SURGERY, "--erase", "a", "--through", "no head"), "through: expected a head of layer 1"),
    ((*SURGERY, "--erase", "a", "--head", "L1H1"), "head: expected a head of layer 2"),
    ((*SURGERY, "--erase", "a", "--head", ""), "head: expected a head of layer 2"),
    ((*SURGERY, "--erase", "a", "--strength", "3"), "strength: expected none: erase needs no strength"),
    ((*SURGERY, "--insert", "a->b", "--strength", "nan"), "strength: expected a number of -1e+30 or more"),
    ((*SURGERY, "--erase", "a", "--project"), "edit: expected one of erase, insert"),
    ((*SURGERY, "--swap", "a"), "swap: expected two names"),
    ((*SURGERY, "--swap", "a->no token"), "--swap: expected tokens of the vocabulary"),
    ((*SURGERY, "--truncate", "0"), "--truncate: expected a rank of 1 to"),
    ((*SURGERY, "--transplant", "nowhere@3"), "run: expected the folder of a trajectory"),
    ((*SURGERY, "--transplant", "RUN@5000"), "step: expected one of the"),
]
CALLS = """
import contextlib, io, json, os, sys
from induction_memory import cli
for words in json.load(sys.stdin):
    if os.fork():
        os.wait()
        continue
    sys.argv, said, code = ["induction-memory", *words], io.StringIO(), None
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try: cli.main()
        except SystemExit as stop: code = stop.code
    print(json.dumps([code, said.getvalue(), "torch" in sys.modules]), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Exit code, standard error and whether torch was imported, for each mistake: each in a process of its own."""
    folder = tmp_path_factory.mktemp("refusals")
    tiny = ["--set", "task.length=12", "model.n_ctx=12", "model.d_model=16", "train.batch_size=8", "--steps", "2"]
    with pytest.MonkeyPatch.context() as patch:
        preset = ["figure-4-uniform", "--out", str(folder / "run")]
        patch.setattr(sys, "argv", ["induction-memory", "train", *preset, *tiny, "--quiet"])
        cli.main()
    calls = [[word.replace("RUN", str(folder / "run")) for word in words] for words, _ in MISTAKES]
    made = subprocess.run(
        [sys.executable, "-c", CALLS], input=json.dumps(calls), cwd=folder, capture_output=True, text=True, check=True
    )
    return dict(zip((words for words, _ in MISTAKES), map(json.loads, made.stdout.splitlines()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[" ".join(words)[:80] for words, _ in MISTAKES])
def test_a_mistake_is_told_before_anything_heavy_is_imported(answers, words, message):
    code, said, heavy = answers[words]
    assert message in said
    assert said.count("\n") == 1
    assert (code, heavy) == (2, False)


def test_names_and_limits_that_are_checked_early_are_those_of_the_library():
    names = im.probes.names()
    assert all(name.startswith(probe.BEGINNINGS) for name in names)
    assert (*measuring.FAMILIES, *measuring.OF_TASK, "all") == probe.FAMILIES
    assert report.MOST_SEQUENCES == gather.EVALUATED
    assert report.MOST_TOKENS == pages.MOST_TOKENS
    assert attention.MOST == maps.MOST
    assert branch.CONSTRUCTED == branching.CONSTRUCTED
    assert ("all", *kinds()) == ablate.KINDS
