"""Names of heads in every table: `L2H1`, and `L1H3>L2H1` for a pair. Layers and heads count from 1."""


def head_name(layer: int, head: int) -> str:
    """The name of one head.

    >>> head_name(2, 1)
    'L2H1'
    """
    return f"L{layer}H{head}"


def head_names(layers: tuple[int, ...], n_heads: int) -> list[str]:
    """Names along the head axes of these layers, "" for none.

    >>> head_names((1, 2), 2)
    ['L1H1>L2H1', 'L1H1>L2H2', 'L1H2>L2H1', 'L1H2>L2H2']
    """
    names = [""]
    for layer in layers:
        names = [f"{n}>{head_name(layer, h)}".lstrip(">") for n in names for h in range(1, n_heads + 1)]
    return names
