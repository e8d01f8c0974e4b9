"""The pages of the shipped runs that the documentation links: docs/pages/<run>.html, all by one command.

python analyses/pages.py
python analyses/pages.py induction-alone fixed-triggers --out pages
"""

from pathlib import Path

import tyro

import induction_memory as im
from induction_memory.errors import run_script

RUNS = ("induction-alone", "random-triggers", "four-heads")


def main(runs: tyro.conf.Positional[tuple[str, ...]] = RUNS, /, out: Path = Path("docs/pages")) -> None:
    """Write one page per run.

    Args:
        runs: folders of trajectories, or names of shipped ones.
        out: folder of the pages.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in runs:
        run = im.load(name)
        print(im.report(run).save(out / f"{run.name}.html"))


if __name__ == "__main__":
    run_script(main, __doc__)
