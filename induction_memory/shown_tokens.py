"""How tokens are shown: whitespace as visible signs, everything else unchanged."""

LONGEST = 40
"""Most characters of a token in a picture."""
VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}


def visible(token: str) -> str:
    """The token with whitespace as visible signs, and other characters that print nothing as their code.

    >>> visible(" "), visible("a\\n"), visible("</script>"), visible("\\x00")
    ('␣', 'a↵', '</script>', '\\\\x00')
    """
    return "".join(VISIBLE.get(c) or (c if c.isprintable() else repr(c)[1:-1]) for c in token)


def short(token: str) -> str:
    """The visible token for a picture, cut if it is very long.

    >>> short("a b"), short("a" * 3000)[-3:]
    ('a␣b', 'aa…')
    """
    shown = visible(token)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"
