"""The scripts analyses/figure_NN.py: load or train the runs of a figure, draw it and judge its claims."""

from pathlib import Path

from induction_memory.errors import run_script
from induction_memory.paper.plan import Scale
from induction_memory.terminal import show


def run(figure: int, about: str | None) -> None:
    """One figure by its own command line."""

    def main(
        scale: Scale = "quick", runs: Path = Path("runs"), out: Path = Path("reproduction"), train: bool = True
    ) -> None:
        """Draw the figure and print what its claims measure.

        Args:
            scale: quick takes minutes at a reduced size, paper is the paper's own.
            runs: folder of the runs; what is missing is trained into it.
            out: folder of the picture.
            train: train what is missing; otherwise draw what is there.
        """
        from induction_memory.paper.reproducing import reproduce

        made = reproduce([figure], scale, runs=runs, out=out, train=train)
        if not made.verdicts.empty:
            show(made.verdicts)
        print(made.pictures.get(figure) or f"figure {figure} was not drawn: {made.reasons[figure]}")

    run_script(main, about)
