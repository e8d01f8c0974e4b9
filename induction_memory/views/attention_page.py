"""A page that shows attention with CircuitsVis and needs no other file.

The bundle in CircuitsVis's wheel is embedded once, and its `render` is called on data that are embedded as JSON. In all
embedded data `<` is escaped, so that no token can end a script. Tokens are shown as text, never as markup.
"""

import html
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources

import numpy as np
from jaxtyping import Float

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; background: #fff; margin: 1.2rem 1.6rem; }
h1 { font-size: 1.15rem; font-weight: 600; margin: 0 0 .4rem; }
p.tokens { font: 14px/1.7 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; margin: 0 0 .8rem; }
p.tokens span { padding: 0 1px; }
.trigger { color: #8250df; font-weight: 700; }
.output { color: #d1242f; font-weight: 700; }
img { max-width: 100%; height: auto; display: block; margin: 0 0 1rem; }
.heads { max-width: 760px; }
.heads h3 { font-size: .95rem; font-weight: 600; }
.heads h2, .heads h4 { font-size: .7rem; font-weight: 600; }
"""
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"


@cache
def bundle() -> str:
    """CircuitsVis's own JavaScript, made safe to stand inside a script element."""
    source = resources.files("circuitsvis").joinpath("dist", "cdn", "iife.js").read_text(encoding="utf-8")
    code = source.partition("//# sourceMappingURL")[0]  # the map is not embedded
    return code.replace("</script", "<\\/script").replace("<script", "\\x3cscript").replace("<!--", "\\x3c!--")


def embedded_json(value: object) -> str:
    """JSON that can stand in a script element, with any content of its strings."""
    escaped = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return escaped.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def page(
    title: str,
    tokens: Sequence[str],
    patterns: Sequence[Float[np.ndarray, "query key"]],
    names: Sequence[str],
    *,
    picture: str = "",
    classes: Sequence[str] = (),
) -> str:
    """The whole page: the sequence, a static picture (an image's address), and the heads to hover over.

    `tokens` are the texts to show; `classes` says for each whether it is a "trigger", an "output" or neither ("").
    """
    marked = classes or [""] * len(tokens)
    line = "".join(
        f'<span class="{kind}">{html.escape(token)}</span>' if kind else f"<span>{html.escape(token)}</span>"
        for token, kind in zip(tokens, marked, strict=True)
    )
    data = {
        "tokens": list(tokens),
        "attention": [np.round(pattern, 4).tolist() for pattern in patterns],
        "attentionHeadNames": list(names),
        "maxValue": 1,
        "minValue": -1,
        "positiveColor": "#08306b",
    }
    image = f'<img alt="attention maps" src="{picture}">' if picture else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title><style>{STYLE}</style></head>
<body><h1>{html.escape(title)}</h1>
<p class="tokens">{line}</p>
{image}<div class="heads" id="heads"></div>
<script type="application/json" id="data">{embedded_json(data)}</script>
<script>{bundle()}</script>
<script>
const data = JSON.parse(document.getElementById("data").textContent);
CircuitsVis.render("heads", CircuitsVis.AttentionHeads, data);
if (window.frameElement) new ResizeObserver(() => {{
  window.frameElement.style.height = document.documentElement.offsetHeight + 40 + "px";
}}).observe(document.body);
</script></body></html>
"""


def framed(document: str, height: int) -> str:
    """A page in a frame inside another page, such as a notebook. Frames are isolated, so there can be many.

    The frame begins with `height`; the page then sets the height it needs.
    """
    source = html.escape(document, quote=True)
    return f'<iframe style="width:100%;height:{height}px;border:0" srcdoc="{source}"></iframe>'
