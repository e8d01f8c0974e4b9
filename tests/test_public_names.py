"""What is public: few names at the top, one address for everything, no near-twins, no empty room."""

import inspect
import re
from itertools import combinations

import pytest

import induction_memory as im


def rooms(room, address: str) -> dict:
    """The public rooms by address."""
    found = {address: room}
    for name in dir(room):
        value = getattr(room, name)
        found |= rooms(value, f"{address}.{name}") if inspect.ismodule(value) else {}
    return found


ROOMS = rooms(im, "im")
PUBLIC = {f"{address}.{name}": getattr(room, name) for address, room in ROOMS.items() for name in dir(room)}

VALUES = {"im.runner.Patch"}
"""Types that are called like the verb that makes them."""


def stem(address: str) -> str:
    """A name without what a plural, -ing, -ion or a verb's e adds, in small letters."""
    return re.sub(r"(at|t)?(ions?|ings?|e?s|e)?$", "", address.rpartition(".")[2].lower())


def test_at_most_forty_names_stand_at_the_top():
    assert len(im.__all__) <= 40
    assert dir(im) == sorted(im.__all__)


def test_everything_public_has_one_address():
    addresses: dict[int, list[str]] = {}
    for address, value in PUBLIC.items():
        addresses.setdefault(id(value), []).append(address)
    assert [found for found in addresses.values() if len(found) > 1] == []


@pytest.mark.parametrize(
    "pair", ["probe probes", "train training", "ablate ablation", "trajectory Trajectory", "reproduce reproduction"]
)
def test_near_twins_have_one_stem(pair):
    assert len({stem(name) for name in pair.split()}) == 1


def test_no_two_public_names_are_near_twins_but_a_room_and_what_it_is_about():
    pairs = [(a, b) for a, b in combinations(PUBLIC, 2) if stem(a) == stem(b)]
    names = [(a, b) for a, b in pairs if a.rpartition(".")[2] != b.rpartition(".")[2]]
    assert [(a, b) for a, b in names if a != b.rpartition(".")[0] and b not in VALUES] == []


@pytest.mark.parametrize("address", ROOMS)
def test_a_room_shows_its_public_names_and_no_others(address):
    room = ROOMS[address]
    listed = getattr(room, "__all__", None) or room._WHERE
    assert len(listed) > 0
    assert dir(room) == sorted(listed)
