"""Docstrings are plain text with code in backquotes. This shows them as they are printed, formulas and tables too."""

import inspect
import re

from sphinx.util.inspect import stringify_signature

PLAIN = int | float | str | tuple


class Made:
    """Stands for a default that is made for each object, such as an empty dictionary."""

    def __repr__(self):
        return "..."


def plain_signature(app, what, name, obj, options, signature, returns):
    """Sphinx's hook: signatures as a reader needs them.

    A protocol is not called. The fields of a class that begin with an underscore are left out, and defaults that a
    factory makes are dots. A default that is a constant of the module, or computed from one, is shown by its value.
    """
    if what == "class" and getattr(obj, "_is_protocol", False):
        return "", None
    if what == "class" and "<factory>" in (signature or ""):
        call = inspect.signature(obj)
        fields = [p for p in call.parameters.values() if not p.name.startswith("_")]
        fields = [p.replace(default=Made()) if repr(p.default) == "<factory>" else p for p in fields]
        text = stringify_signature(
            call.replace(parameters=fields), show_return_annotation=False, unqualified_typehints=True
        )
        return text, returns
    if what in ("function", "method") and signature:
        for text, value in _computed(inspect.unwrap(obj)).items():
            signature = signature.replace(f"= {text},", f"= {value!r},").replace(f"= {text})", f"= {value!r})")
    return signature, returns


def _computed(function):
    """How a default is written -> its value, for names and expressions. Sphinx has put the writing in its place."""
    if not inspect.isfunction(function):
        return {}
    names, given = function.__code__.co_varnames[: function.__code__.co_argcount], function.__defaults__ or ()
    values = dict(zip(names[len(names) - len(given) :], given, strict=True)) | (function.__kwdefaults__ or {})
    written = {p.name: getattr(p.default, "name", "") for p in inspect.signature(function).parameters.values()}
    expressions = {name: text for name, text in written.items() if re.search(r"[A-Z]{3}|\w\.\w|\w\(", text)}
    return {text: values[name] for name, text in expressions.items() if isinstance(values[name], PLAIN)}


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
        f"``{piece.strip('`')}``" if piece.startswith("`") else re.sub(r"([*|\\_@])", r"\\\1", piece)
        for piece in pieces
    )


def setup(app):
    app.connect("autodoc-process-docstring", as_rest)
    app.connect("autodoc-process-signature", plain_signature)
    return {"parallel_read_safe": True}
