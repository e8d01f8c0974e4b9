"""A light picture of attention maps: an SVG in which each map is a PNG of one pixel per cell.

It takes milliseconds, so a notebook cell shows it at once. The figure for print (`figures.maps`) is drawn only when it
is saved. Both have the same boxes, colours and order.
"""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

import numpy as np
from jaxtyping import Bool, Float, UInt8

RIGHT, OTHER = "#e5343d", "#2da44e"
"""Colours of boxes: keys after an earlier occurrence of the query that are the right output, and the others."""
TRIGGER, OUTPUT = "#8250df", "#d1242f"
"""Colours of tokens on the axes."""
BEYOND = "#f2f3f5"
"""The colour above the diagonal."""
ATTENTION = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""Colours from attention 0 to 1, in even steps."""
WORDS = {
    "right": "key after an earlier occurrence, the right output",
    "other": "key after an earlier occurrence",
    "trigger": "trigger",
    "output": "its output",
}
"""The legend's words for squares, rings, bold and underlined tokens, for tasks with triggers."""

WIDTH, HEIGHT = 928, 760  # largest width and height of a picture in pixels: a notebook cell, a screen
SIDE, GAP, TITLE = 330.0, 14, 20  # pixels: largest map, space between maps, space above a map
SMALLEST = 20.0  # pixels: smallest map, even if the picture is then longer than a screen
LABELLED = 150  # smaller maps have no tokens at their sides
LABELS = 7.5, 12.0  # smallest and largest font of the tokens, in pixels


def png(pixels: UInt8[np.ndarray, "row column 3"]) -> bytes:
    """An RGB image as PNG: the header, the rows (each after a filter byte of 0) under zlib, the end."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows.tobytes()))
        + chunk(b"IEND", b"")
    )


def coloured(pattern: Float[np.ndarray, "query key"]) -> UInt8[np.ndarray, "query key 3"]:
    """A map from 0 to 1 in colours, grey beyond the diagonal."""
    knots = np.array([_rgb(colour) for colour in ATTENTION], dtype=float)
    at = np.clip(pattern, 0, 1) * (len(knots) - 1)
    channels = [np.interp(at, np.arange(len(knots)), knots[:, c]) for c in range(3)]
    pixels = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    pixels[np.triu_indices(len(pattern), 1)] = _rgb(BEYOND)
    return pixels


def legend(
    right: Bool[np.ndarray, "query key"],
    other: Bool[np.ndarray, "query key"],
    triggers: Bool[np.ndarray, " pos"],
    outputs: Bool[np.ndarray, " pos"],
    words: Mapping[str, str],
) -> dict[str, str]:
    """The words for each kind of mark in the maps."""
    marks = zip(WORDS, (right, other, triggers, outputs), strict=True)
    return {kind: words[kind] for kind, marked in marks if marked.any()}


def picture(
    maps: Sequence[tuple[str, Float[np.ndarray, "query key"]]],
    across: int,
    tokens: Sequence[str],
    right: Bool[np.ndarray, "query key"],
    other: Bool[np.ndarray, "query key"],
    triggers: Bool[np.ndarray, " pos"],
    outputs: Bool[np.ndarray, " pos"],
) -> tuple[str, float, float]:
    """The SVG of maps with their titles, and its width and height.

    Each line has `across` maps. Lines are broken, or put side by side, if that makes the maps larger. The picture fits
    a screen unless there are very many maps.
    """
    n, letters, font = len(tokens), max(map(len, tokens)), LABELS[0]
    side, columns, margin, below = SIDE, across, 0.0, 0.0
    for _ in range(2):  # the room for the tokens depends on the size of the maps
        font = float(np.clip(0.72 * side / n, *LABELS))
        margin = 6 + 0.62 * font * letters
        below = font + 4 if letters == 1 else margin
        side, columns = _fit(len(maps), across, margin, below)
    if side < LABELLED:
        margin, below = 1.0, 0.0
        side, columns = _fit(len(maps), across, margin, below)
    cell = side / n
    labels = _labels(tokens, triggers, outputs, side, letters, font) if side >= LABELLED else ""
    boxes = _boxes(other, OTHER, cell, ring=True) + _boxes(right, RIGHT, cell)
    heading = float(np.clip((side + GAP) / (0.6 * max(len(title) for title, _ in maps)), 8, 13))
    room = int((side + margin + GAP) / (0.56 * heading))
    parts = []
    for i, (title, pattern) in enumerate(maps):
        row, column = _place(i, across, columns)
        x, y = margin + column * (side + margin + GAP), TITLE + row * (side + below + TITLE)
        image = base64.b64encode(png(coloured(pattern))).decode()
        shown = title if len(title) <= room else f"{title[: room - 1]}…"
        parts.append(
            f'<g transform="translate({x:.1f} {y:.1f})">'
            f'<text x="{side / 2:.1f}" y="-5" class="t">{escape(shown)}</text>'
            f'<image width="{side:.1f}" height="{side:.1f}" href="data:image/png;base64,{image}"/>'
            f'<use href="#boxes"/><use href="#labels"/></g>'
        )
    width, height = _size(len(maps), across, columns, side + margin + GAP, side + below + TITLE)
    style = (
        f"image{{image-rendering:pixelated}}text{{font:{font:.1f}px DejaVu Sans Mono,monospace;fill:#1f2328}}"
        f".t{{font:{heading:.1f}px sans-serif;text-anchor:middle}}.q{{text-anchor:end}}.k{{text-anchor:middle}}"
        f".r{{text-anchor:end}}.trigger{{fill:{TRIGGER};font-weight:700}}"
        f".output{{fill:{OUTPUT};font-weight:700;text-decoration:underline}}"
    )
    thin = float(np.clip(0.16 * cell, 0.5, 1.5))
    source = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}"><style>{style}</style><defs><g id="boxes" fill="none" stroke-width="{thin:.2f}">{boxes}'
        f'</g><g id="labels">{labels}</g></defs>{"".join(parts)}</svg>'
    )
    return source, width, height


def _place(i: int, across: int, columns: int) -> tuple[int, int]:
    """Row and column of the i-th map: lines of `across` maps are broken after `columns`, or several lines share a
    row."""
    if columns >= across:
        return divmod(i, columns)
    line, place = divmod(i, across)
    return line * -(-across // columns) + place // columns, place % columns


def _size(n: int, across: int, columns: int, width: float, height: float) -> tuple[float, float]:
    """Width and height of n maps in places of this size."""
    return min(n, columns) * width, (_place(n - 1, across, columns)[0] + 1) * height + 4


def _fit(n: int, across: int, margin: float, below: float) -> tuple[float, int]:
    """The largest side of n maps with room beside and below each, and the number of maps per row."""
    broken = {-(-across // parts) for parts in range(1, across + 1)}
    joined = {across * lines for lines in range(1, -(-n // across) + 1)}
    found = []
    for columns in broken | joined:
        across_all, down = _size(n, across, columns, 1.0, 1.0)
        side = min(WIDTH / across_all - margin - GAP, (HEIGHT - 4) / (down - 4) - below - TITLE, SIDE)
        found.append((side, -abs(columns - across), columns))
    side, _, columns = max(found)
    return max(side, SMALLEST), columns


def _boxes(cells: Bool[np.ndarray, "query key"], colour: str, cell: float, *, ring: bool = False) -> str:
    """Squares around cells, or rings in them."""
    arc = f"a{cell / 2:.2f} {cell / 2:.2f} 0 1 0 "
    shape = f"m0 {cell / 2:.2f}{arc}{cell:.2f} 0{arc}-{cell:.2f} 0" if ring else f"h{cell:.2f}v{cell:.2f}h-{cell:.2f}z"
    marks = "".join(f"M{k * cell:.2f} {q * cell:.2f}{shape}" for q, k in np.argwhere(cells))
    return f'<path d="{marks}" stroke="{colour}"/>'


def _labels(
    tokens: Sequence[str], triggers: np.ndarray, outputs: np.ndarray, side: float, letters: int, font: float
) -> str:
    """Queries at the left, keys below; if there is not enough room, marked tokens have priority."""
    cell, placed, parts = side / len(tokens), [], []
    for t in np.argsort(~(triggers | outputs), kind="stable").tolist():
        if any(abs(t - other) * cell < font - 1 for other in placed):
            continue
        placed.append(t)
        kind = " trigger" if triggers[t] else " output" if outputs[t] else ""
        text, middle = escape(str(tokens[t])), (t + 0.5) * cell
        parts.append(f'<text x="-3" y="{middle + 0.35 * font:.1f}" class="q{kind}">{text}</text>')
        if letters == 1:
            parts.append(f'<text x="{middle:.1f}" y="{side + font + 1:.1f}" class="k{kind}">{text}</text>')
        else:
            turned = f"translate({middle + 0.35 * font:.1f} {side + 3:.1f}) rotate(-90)"
            parts.append(f'<text transform="{turned}" class="r{kind}">{text}</text>')
    return "".join(parts)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
