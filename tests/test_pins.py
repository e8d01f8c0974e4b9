"""The constraints that the Makefile's environments are made with."""

from tests.pins import TL4, lower_bounds, numbers, pins


def test_a_torch_that_is_there_stays_if_the_package_allows_it():
    assert pins("tested", "2.9.1+cpu")["torch"] == "2.9.1+cpu"
    assert pins("tested", "2.13.0+cu130")["torch"] == "2.13.0+cu130"
    assert pins("newest", "2.9.1+cpu") == {"torch": "2.9.1+cpu"}
    assert pins("tested", "2.5.1+cpu") == pins("tested", None)
    assert numbers("2.13.0+cu130") == (2, 13, 0)


def test_each_kind_differs_from_the_tested_versions_in_what_it_is_about():
    tested, lowest = pins("tested", None), lower_bounds()
    assert {name: one for name, one in pins("tl4", None).items() if tested[name] != one} == TL4
    oldest = pins("oldest", None)
    assert {name: oldest[name] for name in lowest} == lowest
    assert all(numbers(lowest[name]) <= numbers(tested[name]) for name in lowest)
    assert pins("newest", None) == {}
