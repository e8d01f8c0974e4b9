"""Count the characters and bigrams of a text into the JSON table that `induction_memory.task` reads.

    python analyses/count_corpus.py input.txt --name tinyshakespeare --out induction_memory/task/data

The shipped table of tiny Shakespeare (1,115,394 characters) is made by that line; a text that claims the name must
have its checksum.
"""

import hashlib
import json
from pathlib import Path

import tyro

from induction_memory.errors import require, run_script
from induction_memory.task.corpus import Corpus

SHA256 = {"tinyshakespeare": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"}


def count(text: bytes, name: str) -> Corpus:
    """The counts of a UTF-8 text, after checking that a known name comes with its known text."""
    digest = hashlib.sha256(text).hexdigest()
    require(SHA256.get(name, digest) == digest, "text", f"sha256 {SHA256.get(name)} for {name!r}", digest)
    return Corpus.from_text(text.decode("utf-8"), name)


def to_json(corpus: Corpus) -> str:
    """The table with one line a field and one line a row of bigram counts."""
    fields = corpus.to_dict()
    rows = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in fields.pop("bigram_counts"))
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in fields.items())
    return f'{{\n{head} "bigram_counts": [\n  {rows}\n ]\n}}\n'


def main(text: tyro.conf.Positional[Path], /, name: str, out: Path = Path(".")) -> None:
    """Write the table.

    Args:
        text: the text file.
        name: the name of the corpus and of its JSON file.
        out: the folder to write into.
    """
    require(text.is_file(), "text", "a file", repr(str(text)))
    require(out.is_dir(), "out", "a folder", repr(str(out)))
    corpus = count(text.read_bytes(), name)
    target = out / f"{name}.json"
    target.write_text(to_json(corpus), encoding="utf-8")
    print(f"{target}: {corpus.size} characters, {int(corpus.unigram_counts.sum())} counted")


if __name__ == "__main__":
    run_script(main, __doc__)
