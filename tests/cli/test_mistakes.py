"""Mistakes on the command line are told by the library's own checks, in one line and with exit code 2."""

import os
import sys

import pytest

from induction_memory import cli

SURGERY = ("surgery", "RUN", "--memory", "W_K2")
MISTAKES = [
    (("attention", "RUN", "--out", "x.gif"), "--out: expected a file ending in .html"),
    (("ablate", "L3H1"), "run: expected the folder of a trajectory"),
    (("ablate", "RUN", "--kind", "zer"), "kind: expected all or one of zero, mean"),
    (("ablate", "RUN", "--components", "L3H1"), "component: expected one of"),
    (("circuit", "RUN", "--share", "2"), "--share: expected a number between 0 and 1"),
    (("circuit", "RUN", "--sequences", "0"), "--sequences: expected at least 1, got 0"),
    (("surgery", "RUN", "--memory", "W_O2", "--project", "--complement"), "--complement: expected it or --project"),
    (("surgery", "RUN", "--memory", "W_K9", "--erase", "a"), "memory: expected one of W_K1, W_K2, W_O2, W_F"),
    (("surgery", "RUN", "--memory", "W_K2"), "edit: expected one of erase, insert"),
    (("surgery", "RUN", "--memory", "W_K2", "--erase", "a", "--head", "L9H1"), "head: expected a head of layer 2"),
    (("heads", "RUN", "--sequences", "1"), "--sequences: expected at least 2, got 1"),
    (("patch", "RUN", "--step", "5000"), "step: expected one of the"),
    (("ablate", "RUN", "--step", "0,5000"), "step: expected one of the"),
    (("probe", "RUN", "--step", "5000"), "step: expected one of the"),
    (("branch", "RUN", "--at", "5000", "--out", "x"), "step: expected one of the"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--freeze", "W_X"), "train.freeze: expected names"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--graft", "W_O2"), "train.grafts: expected NAME=RUN@STEP"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--graft", "W_O2=RUN@5000"), "step: expected one of the"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--edit", "W_K1: erase 3->2"), "erase: expected 'key->query'"),
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
    (("attention", "RUN", "--out", "x.png", "--text", ""), "text: expected at least one character"),
    (("attention", "RUN", "--out", "x.png", "--text", "Ä"), "text: expected tokens of the vocabulary"),
    (("attention", "RUN", "--out", "x.png", "--text", "a" * 999), "text: expected 1 to "),
    (("probe", "RUN", "--probes", "recal"), "got 'recal'; did you mean recall?"),
    (
        ("attention", "RUN", "--out", "x.png", "--text", "@/dev/zero"),
        "--text: expected a file after @, got '/dev/zero'",
    ),
    (("why", "RUN", "--text", "@pipe"), "--text: expected a file after @, got 'pipe'"),
    (("presets", "None"), "preset: expected"),
    (("probe", "RUN", "--tokens", "999", "1"), "tokens: expected 0 to 64 (the vocabulary)"),
    (("probe", "RUN", "--tokens", "1", "2", "--probes", "W_O2"), "--tokens: expected it or --probes, got both"),
    (("probe", "RUN", "--text", "a"), "--text: expected none"),
    (("probe", "/proc/self/fd"), "expected a trajectory (a folder with manifest.json)"),
    (("verify", "/proc/self/fd"), "expected a trajectory (a folder with manifest.json)"),
    (("report", "RUN", "--out", "x.html", "--sequences", "0"), "sequences: expected 1 to 16, got 0"),
    (("report", "RUN", "--out", "x.html", "--length", "0"), "length: expected 1 to 4096, got 0"),
    (("report", "RUN", "--out", "x.html", "--budget", "0.1"), "--budget: expected megabytes from 0.5 to 1000"),
    (("report", "RUN", "nowhere", "--out", "x.html"), "run: expected the folder of a trajectory"),
    (("train", "demo", "--out", "/proc/x"), "out: expected a folder that can be made"),
    (("train", "demo", "--out", "RUN"), "out: expected a new or an empty folder (or --resume, resume=True, to go on)"),
    (("train", "--out", "nowhere", "--resume"), "out: expected the folder of a run to resume, got 'nowhere'"),
    (
        ("train", "demo", "--out", "x", "--seed", "9" * 22),
        "seed: expected 0 to 3002399751580329",
    ),
    (("branch", "RUN", "--at", "0", "--out", "/proc/x"), "out: expected a folder that can be made"),
    (("branch", "RUN", "--at", "0", "--out", "RUN"), "out: expected a new or an empty folder"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--edit", "W_K9: erase a"), "memory: expected one of W_K1"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--graft", "W_O9=RUN"), "grafts: expected names out of W_E"),
    (("branch", "RUN", "--at", "0", "--out", "x", "--graft", "W_O2=nowhere"), "run: expected the folder"),
    (
        ("branch", "RUN", "--at", "0", "--out", "x", "--graft", "W_O2=nowhere.npy"),
        "grafts: expected a matrix that can be read",
    ),
    (
        (*SURGERY, "--erase", "a", "--through", "L2H1"),
        "through: expected a head of layer 1: L1H1, got 'L2H1'",
    ),
    ((*SURGERY, "--erase", "a", "--through", "no head"), "through: expected a head of layer 1"),
    ((*SURGERY, "--erase", "a", "--head", "L1H1"), "head: expected a head of layer 2"),
    ((*SURGERY, "--erase", "a", "--head", ""), "head: expected a head of layer 2"),
    ((*SURGERY, "--erase", "a", "--strength", "3"), "strength: expected none: erase needs no strength"),
    ((*SURGERY, "--insert", "a->b", "--strength", "nan"), "strength: expected a number of -1e+30 or more"),
    ((*SURGERY, "--erase", "a", "--project"), "edit: expected one of erase, insert"),
    ((*SURGERY, "--swap", "a"), "swap: expected two names"),
    ((*SURGERY, "--swap", "a->no token"), "swap: expected tokens of the vocabulary"),
    ((*SURGERY, "--truncate", "0"), "truncate: expected a rank of 1 to"),
    ((*SURGERY, "--transplant", "nowhere@3"), "run: expected the folder of a trajectory"),
    ((*SURGERY, "--transplant", "RUN@5000"), "step: expected one of the"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes") / "run"
    tiny = ["--set", "task.length=12", "model.n_ctx=12", "model.d_model=16", "train.batch_size=8", "--steps", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["induction-memory", "train", "figure-4-uniform", "--out", str(folder), *tiny])
        cli.main()
    return folder


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[" ".join(words)[:80] for words, _ in MISTAKES])
def test_a_mistake_is_one_line_and_exit_code_2(run, capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    monkeypatch.setattr(sys, "argv", ["induction-memory", *(word.replace("RUN", str(run)) for word in words)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in said
    assert said.count("\n") == 1
