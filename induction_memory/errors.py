"""The one error a caller's mistake raises.

The command line prints it as a single line and exits with code 2; in Python it is a ValueError.
"""


class InputError(ValueError):
    """`field: expected ..., got ...`, for something the caller can put right."""


def require(condition: bool, field: str, expected: str, got: object) -> None:
    """Raise an InputError that names the field, what is allowed and what came, unless `condition` holds."""
    if not condition:
        raise InputError(f"{field}: expected {expected}, got {got}")
