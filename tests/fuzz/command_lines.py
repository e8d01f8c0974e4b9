"""Command lines with one mistake each, drawn at random.

Each command has a good value and wrong values per argument. A line has the good values, and one argument's wrong value,
a missing required argument, an unknown option or a stray argument. The names below lie in the folder that `furnish`
makes.
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DIGITS = "9" * 400
MANY_DIGITS = "9" * 5000
LONG = "x" * 300
ESCAPE = "\x1b[31mred\x1b[0m"
NOT_TEXT = "\udcff"
"""A byte that is no UTF-8, as Python hands it over in an argument."""

RUNS = (
    "",
    "nowhere",
    LONG,
    "a/" * 3000,
    ESCAPE,
    NOT_TEXT,
    "run\nrun",
    "folder",
    "file.txt",
    "/dev/null",
    "/dev/zero",
    "..",
    "loop",
    "damaged",
    "newer",
    "untyped",
    "run/manifest.json",
    "*",
)
STEPS = ("5.7", "-2", "", " ", "first", "1e1", "0,,4", "all,4", DIGITS, MANY_DIGITS, "nan", "4,5.9", "[0]", "0x4", "5")
WHOLE = ("-1", "5.7", "", "one", "1e3", "nan", "inf", "[1]", DIGITS, MANY_DIGITS, "0x10", "1/2", "--", ESCAPE)
CHOICES = ("", "nothing", "ALL", "0", "[]", LONG, ESCAPE, NOT_TEXT, "zero,mean")
NOT_FILES = ("", "folder", "file.txt/x", "/proc/x", LONG, "a/" * 3000, ESCAPE, "/dev/full", "/dev/null", ".", NOT_TEXT)
NO_FOLDERS = ("file.txt", "file.txt/x", "/proc/x", LONG, "/dev/null", "/dev/full", "loop", "run", ESCAPE * 99)
TOKENS = ("", "->", "a->", "->a", "a->b->c", "ab", "\x00", "é", ESCAPE, LONG, "a-b", "999", NOT_TEXT, "☃->a")
NAMES = ("", "W_K9", "w_k1", "L0H1", "L1H9", "L-1H1", "heads,nothing", LONG, ESCAPE, "W_O2[", NOT_TEXT)
NAMES += ("W_K1[5:2]", "W_K1[0:17]", "W_K1[0:9999999]", "W_K1[0:" + DIGITS + "]")  # the run has 16 positions
SETTINGS = (
    "",
    "=",
    "task",
    "task=1",
    "task.k",
    "task.=3",
    ".k=3",
    "task.nothing=1",
    "other.k=3",
    "task.k=0",
    "task.k=-1",
    "task.k=80",
    "task.k=2.5",
    "task.k=[3]",
    "task.k=" + DIGITS,
    "task.k=" + MANY_DIGITS,
    "task.length=0",
    "task.length=1",
    "task.outputs=[null]",
    "task.outputs=" + "[" * 5000,
    "task.outputs=[1" + "0" * 400 + "]",
    "task.outputs=[1, 2]",
    'task.outputs={"a": 1}',
    "task.trigger_characters=[1]",
    "task.trigger_characters=aa",
    "task.trigger_distribution=[-1]",
    "task.corpus=nowhere",
    "task.corpus=/dev/zero",
    "task.corpus=folder",
    "model.d_model=0",
    "model.d_model=99999999",
    "model.d_model=1e3",
    "model.n_heads=3",
    "model.n_layers=0",
    "model.n_layers=9999999",
    "model.trained=[null]",
    "model.trained=W_K9",
    "model.d_vocab=3",
    "model.n_ctx=2",
    "train.steps=-1",
    "train.steps=99999999999",
    "train.batch_size=0",
    "train.batch_size=99999999999999",
    "train.learning_rate=0",
    "train.learning_rate=1e39",
    "train.learning_rate=-1",
    "train.learning_rate=nan",
    "train.learning_rate=inf",
    "train.momentum=1",
    "train.betas=[0.9]",
    "train.betas=[0.9, null]",
    "train.optimizer=adam",
    "train.schedule=",
    "train.checkpoints=log 1000000000",
    "train.checkpoints=every 0",
    "train.checkpoints=every -1",
    "train.checkpoints=1, 2, 999999",
    "train.checkpoints=every 2 then every 3",
    "train.checkpoints=" + "every 1 to 2 then " * 500,
    "train.freeze=W_K9",
    "train.freeze=W_K1: 9..3",
    "train.freeze=W_K1: ..-1",
    "train.freeze=[1]",
    "train.clamps=sideways",
    "train.clamps=induction@" + DIGITS,
    "train.grafts=W_O2",
    "train.grafts=W_O2=nowhere@3",
    "train.grafts=W_O2=run@5",
    "train.grafts=W_O2=run@x",
    "train.threads=0",
    "train.threads=99999",
    "train.micro_batch=0",
    "train.device=tpu",
    "train.device=cuda",
    "train.init_seed=1",
    "train.init_seed=-1",
    "train.keep_optimizer=perhaps",
    "train.loss=everything",
    "train.out_of_distribution=nowhere",
    "train.out_of_distribution_every=0",
    "train.resume_every=0",
    "train.warmup=999999",
    ESCAPE + "=1",
    "task." + LONG + "=1",
    "train.loss=" + NOT_TEXT,
)
SEVERAL = ("--freeze", "--clamp", "--graft", "--probes", "--components", "--erase", "--insert")
"""Options that take any number of words, none included."""


@dataclass(frozen=True)
class Argument:
    """One argument of a command; `flag` is "" for one without a flag."""

    flag: str
    good: str | None
    """None if the argument can be left out, as it is unless it is the mistake."""
    wrong: tuple[str, ...]

    def written(self, value: str) -> list[str]:
        """As separate words, or as one where the value begins like an option."""
        if not self.flag:
            return [value]
        return [f"{self.flag}={value}"] if value.startswith("-") else [self.flag, value]


def _files(*endings: str) -> tuple[str, ...]:
    made = [name + ending for name in ("folder", "full", "file.txt/x", "/proc/x", LONG, "loop") for ending in endings]
    return (*NOT_FILES, *made)


RUN = Argument("", "run", RUNS)
STEP = Argument("--step", None, STEPS)
TABLE = (
    Argument("--format", None, CHOICES),
    Argument("--columns", None, CHOICES),
    Argument("--out", None, _files(".csv", ".json", ".parquet")),
)
ELSEWHERE = (
    Argument("--workers", None, ("0", *WHOLE)),
    Argument("--scheduler", None, ("", "nowhere", "tcp://", "tcp://127.0.0.1:1", "http://[", ESCAPE)),
)
NEW_FOLDER = Argument("--out", "new", (*NO_FOLDERS, "folder"))
COMMANDS: dict[str, tuple[Argument, ...]] = {
    "demo": (Argument("--out", "file.txt", ("file.txt", "folder", "file.txt/x", "run", LONG)),),
    "presets": (Argument("", None, (*CHOICES, "demo2")), Argument("--format", None, CHOICES)),
    "train": (
        Argument("", "demo", CHOICES),
        NEW_FOLDER,
        Argument("--steps", None, WHOLE),
        Argument("--seed", None, WHOLE),
        Argument("--set", None, SETTINGS),
        Argument("--log", None, CHOICES),
    ),
    "branch": (
        RUN,
        Argument("--at", "4", STEPS),
        NEW_FOLDER,
        Argument("--steps", None, (*WHOLE, "3")),
        Argument("--freeze", None, (*NAMES, "W_K1: 3")),
        Argument("--clamp", None, CHOICES),
        Argument("--graft", None, (*NAMES, "W_O2=nowhere@3", "W_O2=run@x", "W_O2=run@5", "W_E=run@4=4")),
        Argument("--edit", None, (*TOKENS, "W_K2", "W_K2: erase", "W_K2: erase ab", "W_K9: erase a", "W_O2: swap a")),
    ),
    "probe": (
        RUN,
        Argument("--probes", "loss", (*NAMES, "loss_occurrence0", "loss_occurrencex")),
        Argument("--step", None, STEPS),
        *ELSEWHERE,
        *TABLE,
    ),
    "attention": (
        RUN,
        Argument("--out", "maps.html", (*_files(".html", ".png", ".svg"), "x.csv")),
        STEP,
        Argument("--text", None, ("", "é☃", "\x00", "a" * 9999, NOT_TEXT)),
    ),
    "ablate": (
        RUN,
        STEP,
        Argument("--kind", None, CHOICES),
        Argument("--components", None, (*NAMES, "pos->", "->", "pos->L9.k")),
        Argument("--via", None, CHOICES),
        *ELSEWHERE,
        *TABLE,
    ),
    "patch": (
        RUN,
        STEP,
        Argument("--kind", None, CHOICES),
        Argument("--corruption", None, CHOICES),
        Argument("--via", None, CHOICES),
        *ELSEWHERE,
        *TABLE,
    ),
    "circuit": (
        RUN,
        Argument("--step", None, (*STEPS, "all", "0,4")),
        Argument("--table", None, CHOICES),
        Argument("--kind", None, CHOICES),
        Argument("--share", None, ("0", "1", "-1", "nan", "inf", "", "x", DIGITS)),
        Argument("--sequences", None, ("0", *WHOLE)),
        *TABLE,
    ),
    "surgery": (
        RUN,
        Argument("--memory", "W_O2", NAMES),
        Argument("--erase", "a->a", TOKENS),
        Argument("--insert", None, TOKENS),
        Argument("--swap", None, (*TOKENS, "a->a")),
        Argument("--truncate", None, ("0", *WHOLE)),
        Argument("--transplant", None, ("run", "run@", "@3", "run@x", "nowhere@3", "run@5", "run@" + MANY_DIGITS)),
        Argument("--strength", None, ("inf", "nan", "", "x", DIGITS, "1e39")),
        Argument("--head", None, NAMES),
        Argument("--through", None, NAMES),
        STEP,
        *TABLE,
    ),
    "heads": (
        RUN,
        STEP,
        Argument("--table", None, CHOICES),
        Argument("--sequences", None, ("0", *WHOLE)),
        *ELSEWHERE,
        *TABLE,
    ),
    "report": (
        RUN,
        Argument("--out", "page.html", (*_files(".html"), "x.csv")),
        Argument("--step", None, STEPS),
        Argument("--sequences", None, ("0", *WHOLE)),
        Argument("--length", None, ("0", *WHOLE)),
        Argument("--budget", None, ("0", "-1", "nan", "inf", "", "x", DIGITS, "1e-9")),
    ),
    "verify": (RUN,),
    "theory": (Argument("", None, CHOICES), Argument("--out", "file.txt", ("file.txt/x", "/dev/null", LONG))),
    "reproduce": (
        Argument("", None, ("0", "1", "12", "x", "", "2.5", "all,2", ESCAPE, MANY_DIGITS)),
        Argument("--scale", None, CHOICES),
        Argument("--workers", None, ("0", *WHOLE)),
        Argument("--format", None, CHOICES),
        Argument("--out", None, ("file.txt", "file.txt/x", "/dev/null", LONG)),
        Argument("--runs", None, ("file.txt", "file.txt/x", "/dev/null", LONG)),
    ),
    "sweep": (
        Argument("", "sweep.toml", ("", "nowhere.toml", "folder", "/dev/null", "/dev/zero", "file.txt", "bad.toml")),
        Argument("--out", "new", NO_FOLDERS),
        *ELSEWHERE,
    ),
}


def furnish(place: Path, run: Path) -> None:
    """Make what the command lines name: a run, damaged ones, a file, folders, links."""
    (place / "folder").mkdir()
    (place / "folder" / "kept.txt").write_text("kept")
    (place / "file.txt").write_text("kept")
    (place / "bad.toml").write_text("preset = 3\n")
    (place / "sweep.toml").write_text('preset = "demo"\n[set]\ntrain.steps = 1\n')
    for ending in (".csv", ".json", ".parquet", ".html", ".png", ".svg"):
        (place / f"folder{ending}").mkdir()
        (place / f"full{ending}").symlink_to("/dev/full")
        (place / f"loop{ending}").symlink_to(place / f"loop{ending}")
    (place / "loop").symlink_to(place / "loop")
    for name in ("run", "damaged", "newer", "untyped"):
        shutil.copytree(run, place / name)
    (place / "damaged" / "manifest.json").write_bytes(b"\x00" * 9)
    changes = {"newer": {"version": 99, "format_version": 99}, "untyped": {"pieces": [None], "config": 3}}
    for name, change in changes.items():
        path = place / name / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))


def command_lines(seed: int) -> Iterator[list[str]]:
    """Command lines without end: every argument's every wrong value once, in random order, between other mistakes."""
    rng = random.Random(seed)
    wrong = [(name, a, value) for name, arguments in COMMANDS.items() for a in arguments for value in a.wrong]
    rng.shuffle(wrong)
    for name, argument, value in wrong:
        yield [name, *_words(name, rng, argument, value)]
        if rng.random() < 0.15:
            yield _other_mistake(rng)


def _words(name: str, rng: random.Random, mistaken: Argument, value: str) -> list[str]:
    """Good values of all arguments but one, options in random order."""
    used = [(a, value if a is mistaken else a.good) for a in COMMANDS[name] if a is mistaken or a.good is not None]
    rng.shuffle(used)
    used.sort(key=lambda pair: pair[0].flag != "")  # an option that takes several words would take the name of the run
    return [word for argument, given in used for word in argument.written(str(given))]


def _other_mistake(rng: random.Random) -> list[str]:
    """No command, a command that is none, an option that is none, a stray argument, a missing one."""
    name = rng.choice([*COMMANDS])
    good = [word for a in COMMANDS[name] if a.good is not None for word in a.written(a.good)]
    match rng.randrange(5):
        case 0:
            return [rng.choice([*CHOICES, name.upper(), name + "s", "-x", "--nothing", "--=3"])]
        case 1:
            return [name, *good, rng.choice(["--nothing", "--nothing=3", "--out-", "--" + LONG, "--" + ESCAPE, "-z"])]
        case 2:
            return [name, *good, "stray", ESCAPE, "stray"]
        case 3:
            flags = [a.flag for a in COMMANDS[name] if a.flag and a.flag not in SEVERAL]
            return [name, *good, rng.choice(flags)] if flags else [name, *good, "--step"]
        case _:
            return [name, *good[1:]] if good and not good[0].startswith("-") and name != "train" else [name, "--quit"]


def snapshot(place: Path) -> dict[str, tuple[int, int]]:
    """Every name under a folder, with size and time of change; links are not followed."""
    found = {}
    for folder, _, files in os.walk(place):
        for name in (".", *files):
            status = os.lstat(os.path.join(folder, name))
            found[os.path.relpath(os.path.join(folder, name), place)] = (status.st_size, status.st_mtime_ns)
    return found
