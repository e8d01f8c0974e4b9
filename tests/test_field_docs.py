"""`help()` of a configuration explains every field."""

import inspect
import pydoc
from dataclasses import fields

import pytest

import induction_memory as im
from induction_memory.experiment.schedule import CheckpointRule
from induction_memory.field_docs import field_docs, field_meanings
from induction_memory.interventions.ablations import Ablated
from induction_memory.probes.activations import Activations
from induction_memory.source.sources import Stack
from induction_memory.sweep.loop import Finished
from induction_memory.task.bayes import Score
from induction_memory.task.corruptions import Pairs
from induction_memory.task.predictors import Phase


def test_help_shows_the_fields_of_every_public_class_and_of_what_calls_return():
    rooms = [im, *(room for room in map(im.__getattr__, im.__all__) if inspect.ismodule(room))]
    public = [getattr(room, name) for room in rooms for name in dir(room)]
    classes = {value for value in public if inspect.isclass(value) and not issubclass(value, Exception)}
    classes |= {Ablated, Activations, CheckpointRule, Finished, Pairs, Phase, Score, Stack}
    assert len(classes) > 30
    assert [kind.__name__ for kind in classes if field_meanings(kind) and "\nFields:\n" not in kind.__doc__] == []


@pytest.mark.parametrize("kind", [im.BigramTask, im.ModelConfig, im.experiment.TrainConfig])
def test_help_shows_what_every_field_of_a_configuration_means(kind):
    shown = " ".join(pydoc.render_doc(kind, renderer=pydoc.plaintext).replace("|", " ").split())
    for field in fields(kind):
        meaning = field_meanings(kind)[field.name]
        assert " ".join(f"{field.name}: {meaning}".replace("|", " ").split()) in shown


def test_fields_of_base_classes_are_listed_first_and_a_class_without_source_is_left_as_it_is():
    from induction_memory.task.sampler import BigramBatch

    assert next(iter(field_meanings(BigramBatch))) == "tokens"
    nameless = field_docs(type("Nameless", (), {"__doc__": "As it was."}))
    assert nameless.__doc__ == "As it was."
