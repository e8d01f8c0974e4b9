"""Make checkpoints/ from the runs of the reproduction at the paper's scale.

    induction-memory reproduce all --scale paper      trains them, in hours
    python analyses/ship_checkpoints.py               thins a few, and writes the records of all

    python analyses/ship_checkpoints.py --complete    adds measures that are younger than the shipped records

A trajectory that is already in checkpoints/ is kept: remove its folder to make it anew.
"""

from pathlib import Path

from induction_memory.errors import run_script


def main(runs: Path = Path("runs"), complete: bool = False) -> None:
    """Write the trajectories and records that ship.

    Args:
        runs: folder of the runs.
        complete: no new runs: measure the shipped last steps, and add to the records what they lack.
    """
    from tools import shipping

    if complete:
        print("\n".join(shipping.complete()) or "nothing new")
        return
    print("\n".join(shipping.ship(runs)) or "nothing new")


if __name__ == "__main__":
    run_script(main, __doc__)
