"""Other weights for a while: the model's own come back bit for bit, also after an exception.

A parameter's data is exchanged for other data and exchanged back; the numbers of the model are never written to.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor
from transformer_lens import HookedTransformer

from induction_memory.errors import require


@contextmanager
def replaced(model: HookedTransformer, weights: Mapping[str, Tensor]) -> Iterator[HookedTransformer]:
    """`with replaced(model, {"blocks.0.attn.W_K": W}):` the model has these weights inside the block."""
    parameters = dict(model.named_parameters())
    for name, value in weights.items():
        require(name in parameters, "weights", f"names out of {', '.join(parameters)}", repr(name))
        shape = tuple(parameters[name].shape)
        require(tuple(value.shape) == shape, f"weights.{name}", f"shape {shape}", tuple(value.shape))
    before = {name: parameters[name].data for name in weights}
    try:
        for name, value in weights.items():
            parameters[name].data = value.detach().to(before[name])
        yield model
    finally:
        for name, data in before.items():
            parameters[name].data = data


@contextmanager
def editable(model: HookedTransformer) -> Iterator[HookedTransformer]:
    """Inside the block the weights are copies that may be written to; afterwards the model has its own again."""
    with replaced(model, {name: parameter.data.clone() for name, parameter in model.named_parameters()}):
        yield model


def of_initial(
    model: HookedTransformer, initial: HookedTransformer, parameters: Mapping[str, int | None]
) -> dict[str, Tensor]:
    """The named parameters of `initial`, those with a head's number mixed into the model's own.

    A name that ends in a dot stands for all that begin with it.
    """
    own, first = dict(model.named_parameters()), dict(initial.named_parameters())
    weights: dict[str, Tensor] = {}
    for wanted, head in parameters.items():
        for name in (n for n in own if (n.startswith(wanted) if wanted.endswith(".") else n == wanted)):
            if head is None:
                weights[name] = first[name].data
            else:
                weights.setdefault(name, own[name].data.clone())[head] = first[name].data[head]
    return weights
