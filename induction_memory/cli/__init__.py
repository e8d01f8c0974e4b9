"""The command `induction-memory`: one small file per command, which parses, calls the library and prints.

A user's mistake ends with exit code 2 and one line on standard error. A command imports what it needs when it runs,
so that `--help` answers at once.
"""

from induction_memory.cli.app import main

__all__ = ["main"]
