"""Errors that need more than a line end with the address of their entry in the documentation."""

import pickle
import re
import traceback
from pathlib import Path

import pytest

import induction_memory as im
from induction_memory.errors import DamagedError, DivergedError, InputError
from induction_memory.experiment import RunConfig

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r'\bentry(?:: str \| None)? ?= ?"([\w-]+)"')


def test_every_entry_that_the_code_names_is_a_heading_of_the_reference():
    named = {entry for path in (ROOT / "induction_memory").rglob("*.py") for entry in ENTRY.findall(path.read_text())}
    headings = set(re.findall(r"^## ([\w-]+)$", (ROOT / "docs/reference/errors.md").read_text(), re.M))
    assert len(named) >= 7
    assert named <= headings


def test_the_line_of_a_message_ends_with_its_address_and_the_message_is_as_it_was():
    with pytest.raises(InputError) as caught:
        im.load("induction-alone").model(step=310)
    error = caught.value
    assert str(error).endswith("got 310")
    assert error.line.endswith("got 310 (docs/reference/errors.md#step-not-stored)")
    assert "what to do: docs/reference/errors.md#step-not-stored" in "".join(traceback.format_exception(error))


def test_a_plain_message_has_no_address():
    assert InputError("k: expected 1, got 2").line == "k: expected 1, got 2"


def test_entries_survive_the_way_back_from_a_worker():
    for error in (DamagedError(Path("x"), "nothing"), DivergedError("nan"), InputError("a: b", entry="locked")):
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.entry) == (str(error), error.entry)
        assert again.__notes__ == error.__notes__


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: im.ablate("induction-small", kind="means"), "got 'means'; did you mean mean?"),
        (lambda: im.ablate("induction-small", components=["head"]), "got 'head'; did you mean heads?"),
        (lambda: im.probes.table("induction-small", "recal"), "got 'recal'; did you mean recall?"),
        (lambda: im.probes.table("induction-small", "in_context_accuracy"), "did you mean accuracy_in_context?"),
        (lambda: im.memory_map("induction-small", "W_02"), "got 'W_02'; did you mean W_O2?"),
        (lambda: im.load("induction-smal"), "got 'induction-smal'; did you mean induction-small?"),
        (lambda: im.experiment.preset("figure3"), "got 'figure3'; did you mean figure-3?"),
        (lambda: RunConfig().with_settings(["model.feed_forward=rel"]), "got 'rel'; did you mean relu?"),
    ],
)
def test_a_word_that_is_nearly_known_brings_the_word_that_was_meant(call, told):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).endswith(told)
