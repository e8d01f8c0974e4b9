"""`help()` of a configuration explains every field."""

import pydoc
from dataclasses import fields

import pytest

import induction_memory as im
from induction_memory.field_docs import field_docs, field_meanings


@pytest.mark.parametrize("name", ["BigramTask", "ModelConfig", "TrainConfig"])
def test_help_shows_what_every_field_of_a_configuration_means(name):
    shown = " ".join(pydoc.render_doc(getattr(im, name), renderer=pydoc.plaintext).replace("|", " ").split())
    for field in fields(getattr(im, name)):
        meaning = field_meanings(getattr(im, name))[field.name]
        assert " ".join(f"{field.name}: {meaning}".replace("|", " ").split()) in shown


def test_fields_of_base_classes_are_listed_first_and_a_class_without_source_is_left_as_it_is():
    from induction_memory.task.sampler import Batch

    assert next(iter(field_meanings(Batch))) == "tokens"
    nameless = field_docs(type("Nameless", (), {"__doc__": "As it was."}))
    assert nameless.__doc__ == "As it was."
