"""The package is type-checked while it is tested: types, and axes that must agree."""

from collections.abc import Callable, Iterator

import pytest
import torch
from beartype import beartype
from jaxtyping import Float
from torch import Tensor

from induction_memory import memory
from tests.type_checks import jaxtyped, names_axes

REFUSED = r"violates type hint|[Tt]ype-check"


@jaxtyped(typechecker=beartype)
def longer(name: str, by: int = 1) -> str:
    return name * by if by else None  # type: ignore[return-value]


@jaxtyped(typechecker=beartype)
def product(a: Float[Tensor, "i j"], b: Float[Tensor, "j k"], wrong: bool = False) -> Float[Tensor, "i k"]:
    return (a @ b).T if wrong else a @ b


def test_wrong_arguments_axes_and_results_are_refused():
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    assert longer("a", by=2) == "aa"
    assert product(a, b).shape == (2, 4)
    for call in (
        lambda: longer(3),  # type: ignore[arg-type]
        lambda: longer("a", 0),
        lambda: product(a, a),
        lambda: product(a, b, wrong=True),
    ):
        with pytest.raises(Exception, match=REFUSED):
            call()


def test_the_package_itself_is_checked(pytestconfig):
    if not pytestconfig.getoption("jaxtyping_packages"):
        pytest.skip("`make test-quick` runs without type checks")
    with pytest.raises(Exception, match=REFUSED):
        memory.store(torch.eye(3), torch.eye(3), torch.ones(3, 4))


@pytest.mark.usefixtures("unchecked")
def test_nothing_is_checked_without_the_checks():
    assert longer("a", 0) is None
    assert product(torch.ones(2, 3), torch.ones(3, 4), wrong=True).shape == (4, 2)


def test_axes_are_found_at_any_depth():
    array = Float[Tensor, "a"]
    for hint in (array, array | None, dict[str, list[array]], Callable[[array], int], Iterator[tuple[int, array]]):
        assert names_axes(hint)
    for hint in (int, str | None, dict[str, Tensor], Callable[..., int]):
        assert not names_axes(hint)
