"""Are the quotations of the claims the paper's words? Checked against its LaTeX source, and sealed for where it is not.

    python -m tests.reproduction.quotations birth_of_a_transformer.tex

looks for every quoted passage in the source and writes the SHA-256 of those found to quotations.json. Passages are
compared by their letters and digits alone: what LaTeX adds, citations and references included, is taken out.
"""

import hashlib
import json
import re
import sys
from pathlib import Path

from analyses.tools.paper_sentences import ELSEWHERE, NOT_MEASURED
from induction_memory.paper.claims import CLAIMS

SEALED = Path(__file__).with_suffix(".json")
LEFT_OUT = "[...]"


def letters(text: str) -> str:
    """Letters and digits, in lower case."""
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def of_latex(source: str) -> str:
    """The letters and digits of a text that is written in LaTeX."""
    source = re.sub(r"(?<!\\)%.*", "", source)
    source = re.sub(r"\\(?:cite\w*|ref|eqref|label|footnote)(?:\[[^\]]*\])*\{[^}]*\}", "", source)
    return letters(re.sub(r"\\[a-zA-Z]+", "", source))


def passages(quotation: str) -> list[str]:
    """The parts of a quotation, without what it leaves out."""
    return [letters(part) for part in quotation.split(LEFT_OUT)]


def seal(passage: str) -> str:
    return hashlib.sha256(passage.encode()).hexdigest()


def quoted() -> dict[str, str]:
    """Name -> quotation: of the claims, and of the sentences that are checked elsewhere or not at all."""
    rest = {" ".join(sentence.says.split()[:6]): sentence.says for sentence in (*ELSEWHERE, *NOT_MEASURED)}
    return {claim.name: claim.says for claim in CLAIMS.values()} | rest


def missing(source: str) -> list[str]:
    """The names of quotations that the source does not have."""
    paper = of_latex(source)
    return [name for name, says in quoted().items() if not all(part in paper for part in passages(says))]


if __name__ == "__main__":
    source = Path(sys.argv[1]).read_text(encoding="utf-8")
    paper = of_latex(source)
    found = {name: [seal(p) for p in passages(says) if p in paper] for name, says in quoted().items()}
    SEALED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"not in the paper: {', '.join(missing(source)) or 'none'}")
