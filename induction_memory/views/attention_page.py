"""A page that shows attention with CircuitsVis and needs no other file.

The page embeds CircuitsVis's JavaScript bundle once and calls its `render` on data embedded as JSON. In all embedded
data `<` is escaped, so that no token can end a script. Tokens are shown as text, never as markup.
"""

import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from types import MappingProxyType

import numpy as np
from jaxtyping import Float

from induction_memory.views.light_maps import ATTENTION, OTHER, OUTPUT, RIGHT, TRIGGER

STYLE = f"""
:root {{ color-scheme: light; }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1f2328; background: #fff; margin: .6rem 1rem; }}
h1 {{ font-size: 1.15rem; font-weight: 600; margin: 0 0 .2rem; }}
p.tokens {{ font: 14px/1.6 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; margin: 0 0 .5rem;
  max-height: 4.8em; overflow-y: auto; }}
p.tokens span {{ padding: 0 1px; }}
.trigger {{ color: {TRIGGER}; font-weight: 700; }}
.output {{ color: {OUTPUT}; font-weight: 700; text-decoration: underline; }}
[role=tablist] {{ border-bottom: 1px solid #d0d7de; margin: 0 0 .5rem; }}
[role=tab] {{ font: inherit; padding: .2rem .9rem; border: 0; border-bottom: 3px solid transparent; background: none;
  color: #57606a; cursor: pointer; }}
[role=tab][aria-selected=true] {{ border-color: {ATTENTION[-1]}; color: inherit; font-weight: 600; }}
img {{ max-width: 100%; height: auto; display: block; }}
.legend {{ display: flex; flex-wrap: wrap; gap: .1rem 1.4rem; font-size: .85rem; margin: .3rem 0 0; }}
.right, .other {{ display: inline-block; width: 8px; height: 8px; border: 1.5px solid {RIGHT}; margin-right: .2rem; }}
.other {{ border-color: {OTHER}; border-radius: 50%; }}
.scale {{ display: inline-block; width: 70px; height: 9px;
  background: linear-gradient(90deg, {", ".join(ATTENTION)}); }}
#one .scale {{ background: linear-gradient(90deg, #fff, {ATTENTION[-1]}); }}
#heads {{ max-width: 700px; padding-left: 1rem; }}
"""
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"

SCRIPT = """
const { attention, ...shown } = JSON.parse(document.getElementById("data").textContent);
const [chosen, heads] = ["head", "heads"].map((id) => document.getElementById(id));
function draw() {
  const place = document.createElement("div");
  place.id = "map";
  heads.replaceChildren(place);
  const pattern = attention[chosen.selectedIndex];
  CircuitsVis.render("map", CircuitsVis.AttentionPattern, { ...shown, attention: pattern, zoomed: true });
}
chosen.addEventListener("change", draw);
const tabs = [...document.querySelectorAll("[role=tab]")];
for (const tab of tabs) tab.addEventListener("click", () => {
  for (const other of tabs) {
    other.setAttribute("aria-selected", other === tab);
    document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
  }
  if (tab === tabs[1] && !heads.firstChild) draw();
});
if (window.frameElement) new ResizeObserver(() => {
  window.frameElement.style.height = document.documentElement.offsetHeight + 24 + "px";
}).observe(document.body);
"""


@cache
def bundle() -> str:
    """CircuitsVis's JavaScript, made safe inside a script element."""
    source = resources.files("circuitsvis").joinpath("dist", "cdn", "iife.js").read_text(encoding="utf-8")
    code = source.partition("//# sourceMappingURL")[0]  # the source map is not embedded
    return code.replace("</script", "<\\/script").replace("<script", "\\x3cscript").replace("<!--", "\\x3c!--")


def embedded_json(value: object) -> str:
    """JSON that is safe inside a script element, whatever its strings contain."""
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
    legend: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The whole page: the sequence, and two tabs, one with a picture of all heads (`picture`, an image's address), one
    with one head.

    `tokens` are the texts to show; `classes` has "trigger", "output" or "" for each. `legend` has the words for each
    kind of mark. CircuitsVis draws the one head when its tab is first opened.
    """
    marked = classes or [""] * len(tokens)
    line = "".join(
        f'<span class="{kind}">{html.escape(token)}</span>' if kind else f"<span>{html.escape(token)}</span>"
        for token, kind in zip(tokens, marked, strict=True)
    )
    data = {
        "tokens": list(tokens),
        "attention": [np.round(pattern, 4).tolist() for pattern in patterns],
        "maxValue": 1,
        "minValue": -1,
        "positiveColor": ATTENTION[-1],
    }
    options = "".join(f"<option>{html.escape(name)}</option>" for name in names)
    scale = '<span><i class="scale"></i> attention from 0 to 1 (row: query, column: key)</span>'
    boxes, marked = "", ""
    for kind, words in legend.items():
        if kind in ("right", "other"):
            boxes += f'<span><i class="{kind}"></i> {html.escape(words)}</span>'
        else:
            marked += f'<span class="{kind}">{html.escape(words)}</span>'
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title><style>{STYLE}</style></head>
<body><h1>{html.escape(title)}</h1>
<p class="tokens" tabindex="0">{line}</p>
<div role="tablist"><button role="tab" aria-selected="true" aria-controls="all">All heads</button>
<button role="tab" aria-selected="false" aria-controls="one">One head</button></div>
<div role="tabpanel" id="all"><img alt="attention maps" src="{picture}">
<p class="legend">{scale}{boxes}{marked}</p></div>
<div role="tabpanel" id="one" hidden><select id="head" aria-label="Head">{options}</select>
<div id="heads"></div><p class="legend">{scale}{marked}</p></div>
<script type="application/json" id="data">{embedded_json(data)}</script>
<script>{bundle()}</script>
<script>{SCRIPT}</script></body></html>
"""


def framed(document: str, height: int) -> str:
    """A page in a frame inside another page, such as a notebook. Frames are isolated, so there can be many.

    The frame starts with `height`; the page then sets the height that it needs.
    """
    source = html.escape(document, quote=True)
    return f'<iframe style="width:100%;height:{height}px;border:0" srcdoc="{source}"></iframe>'
