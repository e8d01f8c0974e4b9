"""`python -m induction_memory.theory --docs docs`: measure every statement and write docs/theory.md."""

import argparse
import sys
from pathlib import Path

from induction_memory.theory.document import write

parser = argparse.ArgumentParser(prog="python -m induction_memory.theory", description=__doc__)
parser.add_argument("--docs", type=Path, required=True, help="folder that receives theory.md and theory/*.png")
sys.exit(0 if write(parser.parse_args().docs) else 1)
