"""A sweep's file gives the runs that a reader can list by hand, and nothing in it is passed over."""

import shlex
from pathlib import Path

import pytest

from induction_memory.errors import InputError
from induction_memory.experiment.presets import PRESETS, preset, with_seed
from induction_memory.sweep.plan import LONGEST_NAME, read


@pytest.fixture
def file(tmp_path):
    def write(text: str):
        (tmp_path / "sweep.toml").write_text(text)
        return tmp_path / "sweep.toml"

    return write


def test_a_grid_gives_every_combination_once_per_seed(file):
    sweep = read(
        file("""
        preset = "demo"
        seeds = [0, 4]
        [set]
        train.steps = 30
        [grid]
        task.k = [1, 3]
        train.learning_rate = [0.2, 0.5]
        """)
    )
    expected = [(k, rate, seed) for k in (1, 3) for rate in (0.2, 0.5) for seed in (0, 4)]
    found = [(r.config.task.k, r.config.train.learning_rate, r.config.train.init_seed // 3) for r in sweep.runs]
    assert found == expected
    assert all(run.config.train.steps == 30 and run.config.train.threads == 1 for run in sweep.runs)
    assert sweep.runs[1].name == "task.k-1_train.learning_rate-0.2_seed-4"
    one = with_seed(preset("demo").config, 4).with_settings(["train.steps=30", "train.threads=1", "task.k=1"])
    assert sweep.runs[1].config == one.with_settings(["train.learning_rate=0.2"])


def test_a_list_gives_its_entries_with_names_and_joins_with_a_grid(file):
    text = """
    preset = "demo"
    [[runs]]
    name = "free"
    [[runs]]
    name = "frozen"
    "train.freeze" = ["W_O2: ..100", "W_K1: ..100"]
    """
    sweep = read(file(text))
    assert [run.name for run in sweep.runs] == ["free_seed-0", "frozen_seed-0"]
    assert sweep.runs[1].config.train.freeze == ("W_O2: ..100", "W_K1: ..100")
    both = read(file(text + "[grid]\ntask.k = [2, 3]"))
    names = ["free_task.k-2", "free_task.k-3", "frozen_task.k-2", "frozen_task.k-3"]
    assert [run.name for run in both.runs] == [f"{name}_seed-0" for name in names]


def test_a_run_keeps_its_folder_when_the_sweep_grows(file):
    before = read(file('preset = "demo"\n[grid]\ntask.k = [1, 3]')).runs
    after = read(file('preset = "demo"\nseeds = [7, 0]\n[grid]\ntask.k = [5, 3, 1]')).runs
    assert {run.name for run in before} < {run.name for run in after}
    assert {run.name: run.config for run in before}.items() <= {run.name: run.config for run in after}.items()


def test_names_that_cannot_show_the_settings_have_a_hash_and_stay_apart(file):
    sweep = read(
        file("""
        preset = "demo"
        [grid]
        train.freeze = [["W_O2: ..10"], ["W_O2: ..10", "W_K1: ..10"], ["W_O2:..10"]]
        """)
    )
    names = [run.name for run in sweep.runs]
    assert len(set(names)) == 3
    assert all(len(name) <= LONGEST_NAME and not set(name) & set("/ :\"'[]") for name in names)


def test_the_command_of_a_run_trains_the_same_configuration(file):
    run = read(file('preset = "demo"\nseeds = [2]\n[grid]\ntrain.freeze = [["W_O2: ..10"]]')).runs[0]
    words = shlex.split(run.command)
    assert words[:3] == ["induction-memory", "train", "demo"]
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    seed = int(words[words.index("--seed") + 1])
    assert with_seed(preset("demo").config, seed).with_settings(settings) == run.config


def test_the_shipped_sweep_of_figure_8_holds_all_its_presets():
    found = [run.config for run in read(Path(__file__).parents[2] / "analyses" / "figure_8.toml").runs]
    named = [entry.config for name, entry in PRESETS.items() if name.startswith("figure-8-")]
    assert len(named) >= 25
    assert all(run.with_settings(["train.threads=1"]) in found for run in named)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("preset =", "expected TOML"),
        ("", "preset: expected the name of an experiment, got None"),
        ('preset = "dmeo"', "preset: expected a name that `presets` lists, got 'dmeo'; did you mean demo?"),
        ('preset = "demo"\nseed = 3', "seed: expected one of preset, seeds, set, grid, runs"),
        ('preset = "demo"\nseeds = 3', "seeds: expected a list of whole numbers"),
        ('preset = "demo"\nseeds = [true]', "seeds: expected a list of whole numbers"),
        ('preset = "demo"\nseeds = []', "seeds: expected a list of whole numbers"),
        ('preset = "demo"\nseeds = [1, 1]', "runs: expected runs that differ, got 'seed-1' twice"),
        ('preset = "demo"\ngrid = 3', "grid: expected a table, got 3"),
        ('preset = "demo"\n[grid]\ntask.k = 3', "grid.task.k: expected a list of values, got 3"),
        ('preset = "demo"\n[grid]\ntask.k = []', r"grid.task.k: expected a list of values, got \[\]"),
        ('preset = "demo"\n[grid]\ntask.k = [1, 99]', "task.k: expected 1 to 65 triggers"),
        ('preset = "demo"\n[grid]\ntask.q = [1]', "task.q: expected one of task"),
        ('preset = "demo"\n[grid]\nk = [1]', "k: expected a path that begins with task, model or train"),
        ('preset = "demo"\n[grid]\ntask.k = [1979-05-27]', "task.k: expected text, a number"),
        ('preset = "demo"\n[grid]\ntask.k.x = [1]', "grid.task.k: expected a list of values, got {'x'"),
        ('preset = "demo"\n[grid]\ntask.k = [1]\n"task.k" = [2]', "grid.task.k: expected a setting once"),
        (
            'preset = "demo"\n[set]\ntask.k = 1\n[grid]\ntask.k = [2]',
            "grid.task.k: expected a setting that is set only",
        ),
        ('preset = "demo"\nruns = []', r"runs: expected a list of tables"),
        ('preset = "demo"\n[[runs]]\nname = "../up"', "runs.name: expected up to 60 letters"),
        ('preset = "demo"\n[[runs]]\nname = 3', "runs.name: expected up to 60 letters"),
        (
            f'preset = "demo"\nseeds = {list(range(400))}\n[grid]\ntask.k = {list(range(1, 61))}\ntask.length = [8]\n'
            "train.steps = [1, 2, 3, 4, 5]",
            "grid: expected at most 100,000 runs, got 120,000",
        ),
    ],
)
def test_what_is_not_understood_is_refused_with_the_files_name(file, text, message):
    with pytest.raises(InputError, match=f"sweep.toml: .*{message}") as error:
        read(file(text))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_is_no_text_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"FILE: expected a sweep's file, got '.*none\.toml'"):
        read(tmp_path / "none.toml")
    with pytest.raises(InputError, match=r"FILE: expected a sweep's file, got '"):
        read(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="expected TOML"):
        read(tmp_path / "bytes.toml")
