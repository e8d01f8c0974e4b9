"""Make the one trajectory that is part of the package, induction-small: five steps of induction-alone.

    python analyses/ship_small.py

It is written to induction_memory/trajectory/data. Remove its folder first to make it anew.
"""

from induction_memory.errors import run_script

STEPS = (0, 100, 200, 300, 600)


def main() -> None:
    """Write induction-small."""
    from induction_memory import load, thin
    from induction_memory.trajectory.search import PACKAGED

    small = thin(load("induction-alone"), PACKAGED / "induction-small", STEPS)
    print(f"{small.path}: steps {', '.join(map(str, small.steps))}")


if __name__ == "__main__":
    run_script(main, __doc__)
