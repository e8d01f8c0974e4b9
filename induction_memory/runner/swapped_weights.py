"""Other weights for a while: the model's own come back bit for bit, also after an exception.

A parameter's data is exchanged for other data and exchanged back; the numbers of the model are never written to.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from induction_memory.errors import require


@contextmanager
def replaced(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[nn.Module]:
    """`with replaced(model, {"blocks.0.attn.W_K": W}):` the model has these weights inside the block."""
    parameters = dict(model.named_parameters()) if weights else {}
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


def mixed(
    own: Mapping[str, Tensor], other: Mapping[str, Tensor], parameters: Mapping[str, int | None]
) -> dict[str, Tensor]:
    """The named parameters from `other`. If a head is given for a parameter, only that head's slice is taken.

    A name that ends in a dot stands for all that begin with it.
    """
    weights: dict[str, Tensor] = {}
    for wanted, head in parameters.items():
        for name in (n for n in own if (n.startswith(wanted) if wanted.endswith(".") else n == wanted)):
            if head is None:
                weights[name] = other[name]
            else:
                weights.setdefault(name, own[name].clone())[head] = other[name][head]
    return weights
