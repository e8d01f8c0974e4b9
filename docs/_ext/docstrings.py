"""Docstrings are plain text with code in backquotes. This shows them as they are printed, formulas and tables too."""

import re


def as_rest(app, what, name, obj, options, lines):
    """Sphinx's hook: replace the lines of one docstring."""
    text = "\n".join(lines)
    if what == "class":
        text = text.partition("\nFields:\n")[0]  # autodoc shows each field with its string
    lines[:] = rest(text).splitlines()


def rest(text):
    """reStructuredText that shows a docstring as it stands.

    Paragraphs stay paragraphs, indented blocks and doctests become literal blocks, `Args:` becomes a list of fields.
    """
    out = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        rows = block.splitlines()
        first = rows[0].strip() if rows else ""
        if first in ("Args:", "Returns:", "Raises:", "Yields:"):
            out.append(f"**{first[:-1]}**")
            out.append(_fields(rows[1:]))
        elif first.startswith(">>>"):
            out.append(".. code-block:: pycon\n\n" + "\n".join("   " + row.strip("\n") for row in _dedent(rows)))
        elif all(row.startswith("    ") for row in rows if row.strip()):
            out.append(".. code-block:: none\n\n" + "\n".join("   " + row for row in _dedent(rows)))
        else:
            out.append("\n".join(_inline(part) for part in _split(rows)))
    return "\n\n".join(out)


def _split(rows):
    """A paragraph and what is indented below it without an empty line: the second is shown as it is printed."""
    text, literal, parts = [], [], []
    for row in rows:
        if row.startswith("    ") or (literal and row.startswith(" ")):
            literal.append(row)
            continue
        if literal:
            parts += ["\n.. code-block:: none\n\n" + "\n".join("   " + line for line in _dedent(literal)) + "\n"]
            literal = []
        text = row
        parts.append(text)
    if literal:
        parts += ["\n.. code-block:: none\n\n" + "\n".join("   " + line for line in _dedent(literal)) + "\n"]
    return parts


def _fields(rows):
    items, lines = [], []
    for row in _dedent(rows):
        match = re.match(r"([\w*, ]+): (.*)", row) if not row.startswith(" ") else None
        if match:
            items.append([match[1], match[2]])
        elif items:
            items[-1][1] += " " + row.strip()
        else:
            lines.append(_inline(row))
    lines += [f"- ``{name}``: {_inline(text)}" for name, text in items]
    return "\n".join(lines)


def _dedent(rows):
    indent = min((len(row) - len(row.lstrip()) for row in rows if row.strip()), default=0)
    return [row[indent:] for row in rows]


def _inline(text):
    """Code between backquotes as code, everything else as plain characters."""
    if text.startswith("\n.. code-block"):
        return text
    pieces = re.split(r"(`+[^`]+`+)", text)
    return "".join(
        f"``{piece.strip('`')}``" if piece.startswith("`") else re.sub(r"([*|\\_])", r"\\\1", piece) for piece in pieces
    )


def setup(app):
    app.connect("autodoc-process-docstring", as_rest)
    return {"parallel_read_safe": True}
