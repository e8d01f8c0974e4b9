"""How tokens are shown: whitespace as visible signs, everything else unchanged."""

VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}


def visible(token: str) -> str:
    """The token with whitespace as visible signs, and other characters that print nothing as their code.

    >>> visible(" "), visible("a\\n"), visible("</script>"), visible("\\x00")
    ('␣', 'a↵', '</script>', '\\\\x00')
    """
    return "".join(VISIBLE.get(c) or (c if c.isprintable() else repr(c)[1:-1]) for c in token)
