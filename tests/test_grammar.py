"""One grammar of arguments: a public function has one word for one thing, and one meaning for each word."""

import inspect
import re
import subprocess
import sys

import pytest

import induction_memory as im
from tests.test_public_names import PUBLIC

FUNCTIONS = {name: value for name, value in PUBLIC.items() if callable(value) and not inspect.isclass(value)}
METHODS = {
    f"{name}.{method}": function
    for name, kind in PUBLIC.items()
    if inspect.isclass(kind)
    for method, function in inspect.getmembers(kind, inspect.isfunction)
    if method[0] != "_"
}
CALLS = FUNCTIONS | METHODS

SECOND_NAMES = {
    "source": {"sources", "run", "runs", "trajectory", "series", "path", "subject", "checkpoint", "checkpoints"},
    "step": {"steps", "checkpoint_step", "at_step"},
    "batch": {"data", "inputs_", "sequence"},
    "text": {"prompt", "string"},
    "sequences": {"n_sequences", "batch_size", "count", "samples", "n_samples"},
    "seed": {"random_state", "random_seed"},
    "heads": {"which_heads", "head_names"},
    "components": {"parts_of_model", "sites"},
    "out": {"folder", "directory", "output", "filename", "destination"},
    "progress": {"quiet", "verbose", "silent", "show_progress"},
}
"""A name of the grammar, and names that would be a second one for it."""
OWN = {"im.train": {"steps"}, "im.branch": {"steps"}, "im.sweep.page": {"folder"}, "im.sweep.table": {"folder"}}
OWN |= {"im.paper.reproduce": {"runs"}, "im.paper.audit": {"folder"}}
"""The number of training steps. The folder of a sweep or of what ships, which is read, and no source."""
OWN |= {f"im.Trajectory.{name}": {"steps"} for name in ("in_turn", "read_stack", "stacked")}
OWN |= {"im.source.Source.in_turn": {"steps"}, "im.sweep.Workers.run": {"folder"}}
"""By these the package's own loops read a source, and work off a folder of jobs."""
TAKES_A_MODEL = r"im\.(hooks|runner|interventions)\.|im\.heads\.permuted|im\.model\.set_matrix"
TAKES_A_SOURCE = r"im\.probes\.|im\.heads\.identify|im\.source\.(?!batch)|im\.model\.(?!set)"
TAKES_A_SOURCE += r"|im\.interventions\.(discover|causal)"
TAKES_A_SOURCE += (
    r"|im\.(ablate|patch|surgery|attention|branch|measure|memory_map|report|revisions|share|thin|verify|load)$"
)
OF_NAMES = {"im.probes.trends", "im.probes.wide", "im.probes.names", "im.probes.register"}


def parameters(function) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


@pytest.mark.parametrize("word", SECOND_NAMES)
def test_a_word_of_the_grammar_has_no_second_name(word):
    found = {
        f"{call}({name})"
        for call, function in CALLS.items()
        for name in parameters(function)
        if name in SECOND_NAMES[word] - OWN.get(call, set())
    }
    assert found == set()


def test_what_reads_weights_takes_a_source_first():
    readers = [call for call in FUNCTIONS if re.match(TAKES_A_SOURCE, call) and call not in OF_NAMES]
    assert len(readers) >= 30
    assert {call: names[0] for call in readers if (names := list(parameters(FUNCTIONS[call])))[0] != "source"} == {}


def test_only_what_makes_changes_or_runs_one_model_takes_a_model_first():
    models = {call for call, function in FUNCTIONS.items() if next(iter(parameters(function)), "") == "model"}
    assert {call for call in models if not re.match(TAKES_A_MODEL, call)} == set()


def test_what_runs_on_a_batch_says_how_many_sequences_it_draws(caplog):
    small = {"heads": ["L1H1"], "step": [0, 600], "progress": False}
    assert im.ablate("induction-small", **small).attrs["sequences"] == 16
    assert [record.getMessage()[:26] for record in caplog.records] == ["16 sequences are drawn, not"[:26]]
    assert im.ablate("induction-small", sequences=3, **small).attrs["sequences"] == 3
    assert len(caplog.records) == 1
    takes = {call for call, function in FUNCTIONS.items() if {"source", "batch", "step"} <= set(parameters(function))}
    drawn_by_hand = {"im.attention", "im.why", "im.probes.table", "im.probes.learning_coefficient"}
    assert {call for call in takes - drawn_by_hand if "sequences" not in parameters(FUNCTIONS[call])} == set()


def test_steps_default_to_the_last_one_or_to_all_and_progress_to_a_line():
    for call, function in FUNCTIONS.items():
        given = parameters(function)
        if "step" in given and call not in ("im.task.step_rng", "im.memory.first_lasting", "im.source.fetch_revisions"):
            assert given["step"].default in (None, "all"), call
        if "progress" in given:
            assert given["progress"].default is None, call
            assert given["progress"].kind is inspect.Parameter.KEYWORD_ONLY, call


SHOWN = """
import inspect
from tests.test_grammar import FUNCTIONS, parameters
for call, function in FUNCTIONS.items():
    for name, parameter in parameters(function).items():
        print(len(inspect.formatannotation(parameter.annotation)), call, name)
"""


@pytest.mark.slow
def test_help_shows_short_types():
    """In a process of its own, because the checks of the tests resolve annotations."""
    shown = subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True, check=True).stdout
    lengths = {line.partition(" ")[2]: int(line.partition(" ")[0]) for line in shown.splitlines()}
    assert len(lengths) > 200
    assert {call: length for call, length in lengths.items() if length > 100} == {}


def test_standard_errors_and_intervals_are_named_after_what_they_belong_to():
    run, small = "induction-small", {"step": 600, "progress": False}
    tables = [
        im.ablate(run, run_batch(), heads="all", **small),
        im.patch(run, run_batch(), components=["L1H1"], **small),
        im.surgery(run, run_batch(), memory="W_K2", erase="e", **small),
        im.probes.arbitration(run, sequences=2, **small),
        im.probes.logit_lens(run, sequences=2, **small),
        im.probes.change_points(run, ["W_O2"], resamples=5, progress=False),
    ]
    for table in tables:
        named = [name for name in table if re.search(r"(^|_)(se|low|high|error|std|sem|ci)$", name)]
        assert named
        assert {name for name in named if re.sub(r"_(se|low|high)$", "", name) not in table} == set()


def run_batch():
    return im.load("induction-small").task.sample(2, im.task.step_rng(0, 0))
