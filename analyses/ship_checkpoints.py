"""Make checkpoints/ from the runs of the reproduction at the paper's scale.

    induction-memory reproduce all --scale paper      trains them, in hours
    python analyses/ship_checkpoints.py               thins a few, and writes the records of all

A trajectory that is already in checkpoints/ is kept: remove its folder to make it anew.
"""

from pathlib import Path

from induction_memory.errors import run_script


def main(runs: Path = Path("runs")) -> None:
    """Write the trajectories and records that ship.

    Args:
        runs: folder of the runs.
    """
    from induction_memory.reproduction.shipping import ship

    print("\n".join(ship(runs)) or "nothing new")


if __name__ == "__main__":
    run_script(main, __doc__)
