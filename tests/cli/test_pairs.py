"""The names of pairs that commands check before they load a model are those of the model's associations."""

import pytest

import induction_memory as im
from induction_memory.cli.refusals import require_pairs
from induction_memory.errors import InputError
from induction_memory.model.associations import associate


@pytest.mark.parametrize("name", ["random-triggers", "markov-2", "copying-any", "causal-graph"])
@pytest.mark.parametrize("memory", ["W_K1", "W_K2", "W_O2"])
def test_what_a_model_associates_is_not_refused_and_what_it_lacks_is(name, memory):
    run = im.load(name)
    a = associate(run.model(), memory, task=run.task, bare=True)
    require_pairs(name, memory, (f"{a.input_names[0]}->{a.output_names[-1]}",), "--erase")
    require_pairs(name, memory, (f"{a.input_names[-1]}->{a.output_names[-1]}",), "--erase")
    with pytest.raises(InputError, match="--erase"):
        require_pairs(name, memory, (f"{a.input_names[0]}->no such name",), "--erase")
