"""A light picture of attention maps: an SVG in which each map is a PNG of one pixel per cell.

It takes milliseconds, so a notebook's cell shows it at once. The figure for paper (`figures.maps`) is drawn only when
it is saved; both have the same boxes, colours and order.
"""

import base64
import struct
import zlib
from collections.abc import Sequence
from xml.sax.saxutils import escape

import numpy as np
from jaxtyping import Bool, Float, UInt8

RIGHT, OTHER = "#e5343d", "#2da44e"
"""Boxes: keys after an earlier occurrence of the query that are the right output, and the others."""
TRIGGER, OUTPUT = "#8250df", "#d1242f"
"""Tokens on the axes."""
BEYOND = "#f2f3f5"
"""What lies above the diagonal."""
ATTENTION = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""From no attention to all of it, in even steps."""

SIDE, GAP, TITLE = 330, 26, 20  # pixels of a map, between maps, above a map
LABELS = 7.5, 12.0  # smallest and largest font of the tokens, in pixels
BESIDE = 4  # maps in a line


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


def picture(
    lines: Sequence[Sequence[tuple[str, Float[np.ndarray, "query key"]]]],
    tokens: Sequence[str],
    right: Bool[np.ndarray, "query key"],
    other: Bool[np.ndarray, "query key"],
    triggers: Bool[np.ndarray, " pos"],
    outputs: Bool[np.ndarray, " pos"],
) -> tuple[str, float, float]:
    """The SVG of lines of maps, each with its title, and its width and height.

    More than four maps side by side would be too small to read, so a longer line continues below.
    """
    lines = [part for line in lines for part in ([line] if len(line) <= BESIDE else _broken(line))]
    n, cell = len(tokens), SIDE / len(tokens)
    letters = max(map(len, tokens))
    font = float(np.clip(0.72 * cell, *LABELS))  # a cell of notebooks shows four maps at two thirds of their size
    margin = 6 + 0.62 * font * letters
    labels = _labels(tokens, triggers, outputs, cell, letters, font)
    boxes = _boxes(other, OTHER, cell) + _boxes(right, RIGHT, cell)
    below = font + 4 if letters == 1 else margin
    parts = []
    for i, line in enumerate(lines):
        for j, (title, pattern) in enumerate(line):
            x, y = margin + j * (SIDE + margin + GAP), TITLE + i * (SIDE + below + TITLE + 6)
            image = base64.b64encode(png(coloured(pattern))).decode()
            parts.append(
                f'<g transform="translate({x:.1f} {y:.1f})">'
                f'<text x="{SIDE / 2}" y="-6" class="t">{escape(title)}</text>'
                f'<image width="{SIDE}" height="{SIDE}" href="data:image/png;base64,{image}"/>'
                f'<use href="#boxes"/><use href="#labels"/></g>'
            )
    width = margin + max(map(len, lines)) * (SIDE + margin + GAP)
    height = len(lines) * (SIDE + below + TITLE + 6) + 4
    style = (
        f"image{{image-rendering:pixelated}}text{{font:{font:.1f}px DejaVu Sans Mono,monospace;fill:#1f2328}}"
        ".t{font:14px sans-serif;text-anchor:middle}.q{text-anchor:end}.k{text-anchor:middle}.r{text-anchor:end}"
        f".trigger{{fill:{TRIGGER};font-weight:700}}.output{{fill:{OUTPUT};font-weight:700}}"
    )
    thin = float(np.clip(40 / n, 0.6, 1.5))
    source = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}"><style>{style}</style><defs><g id="boxes" fill="none" stroke-width="{thin:.2f}">{boxes}'
        f'</g><g id="labels">{labels}</g></defs>{"".join(parts)}</svg>'
    )
    return source, width, height


def _broken(line: Sequence[tuple[str, Float[np.ndarray, "query key"]]]) -> list[Sequence]:
    """A long line as several lines of about the same length."""
    parts = -(-len(line) // BESIDE)
    across = -(-len(line) // parts)
    return [line[start : start + across] for start in range(0, len(line), across)]


def _boxes(cells: Bool[np.ndarray, "query key"], colour: str, cell: float) -> str:
    squares = "".join(
        f"M{k * cell:.2f} {q * cell:.2f}h{cell:.2f}v{cell:.2f}h-{cell:.2f}z" for q, k in np.argwhere(cells)
    )
    return f'<path d="{squares}" stroke="{colour}"/>'


def _labels(
    tokens: Sequence[str], triggers: np.ndarray, outputs: np.ndarray, cell: float, letters: int, font: float
) -> str:
    """Queries at the left, keys below; only every second one if they would overlap."""
    every = 1 if cell >= font - 1 else 2
    parts = []
    for t, token in enumerate(tokens):
        if t % every and not (triggers[t] or outputs[t]):
            continue
        kind = " trigger" if triggers[t] else " output" if outputs[t] else ""
        text, middle = escape(token), (t + 0.5) * cell
        parts.append(f'<text x="-3" y="{middle + 0.35 * font:.1f}" class="q{kind}">{text}</text>')
        if letters == 1:
            parts.append(f'<text x="{middle:.1f}" y="{SIDE + font + 1:.1f}" class="k{kind}">{text}</text>')
        else:
            turned = f"translate({middle + 0.35 * font:.1f} {SIDE + 3}) rotate(-90)"
            parts.append(f'<text transform="{turned}" class="r{kind}">{text}</text>')
    return "".join(parts)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
