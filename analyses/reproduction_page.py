"""docs/reproduction.md: the page that `reproduce` writes at the paper's scale, and the rest of the paper.

induction-memory reproduce all --scale paper                        trains the runs, in hours
python analyses/reproduction_page.py --docs docs --runs runs        figures and page from those, or from what ships
"""

import re
from pathlib import Path

from induction_memory.errors import run_script
from induction_memory.files import write_file


def whole(page: str) -> str:
    """The page with the sections about the rest of the paper, and with links to the other pages of docs."""
    from induction_memory.paper.reproduction_page import PROVENANCE
    from tools.paper_sentences import sections

    before, heading, after = page.partition(PROVENANCE)
    after = after.replace("induction-memory reproduce all --scale paper", "python analyses/reproduction_page.py")
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", f"{before}{sections()}\n\n{heading}{after}")


def main(docs: Path = Path("docs"), runs: Path = Path("runs")) -> None:
    """Draw, judge and write the page; nothing is trained.

    Args:
        docs: folder of reproduction.md and reproduction/*.png.
        runs: folder of the runs. Shipped records and trajectories replace those that are missing.
    """
    from induction_memory.paper.plan import FIGURES
    from induction_memory.paper.reproducing import reproduce
    from tools.explanations import explained

    made = reproduce(list(FIGURES), "paper", runs=runs, out=docs, train=False)
    page = explained(made.page.read_text(encoding="utf-8"), made.records, made.verdicts)
    write_file(made.page, whole(page))
    print(made.page)


if __name__ == "__main__":
    run_script(main, __doc__)
