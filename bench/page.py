"""The page: a slider step, typing a text, `report` from the shell; and attention maps to HTML beside CircuitsVis.

The page that is measured has 100 steps and eight heads: random attention in the shape of a real run's data, so that
nothing has to be trained. Times in the browser are from a change of the state to the end of the layout.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

import induction_memory as im
from induction_memory.views.page.document import document
from induction_memory.views.page.pack import Pack, quantise
from induction_memory.views.run_page import report

STEPS, HEADS, LENGTH = 100, 8, 64
STEP = """async () => { const page = inductionMemory, times = [], all = page.transport.positions;
  for (let i = 0; i < all.length; i++) { await new Promise(requestAnimationFrame); const t = performance.now();
    page.store.set({ at: all[(i * 37) % all.length] }); document.body.offsetHeight; times.push(performance.now() - t); }
  return times; }"""
TYPE = """async (text) => { const page = inductionMemory, times = [];
  for (let i = 0; i < 20; i++) { await new Promise(requestAnimationFrame); const t = performance.now();
    page.store.set({ text: text.slice(0, 64 - (i % 2)) }); document.body.offsetHeight;
    times.push(performance.now() - t); }
  return times; }"""


def large_pack() -> Pack:
    """The page of `four-heads` with its numbers repeated over 100 steps, and random attention."""
    pack = report("four-heads", sequences=1, length=LENGTH, causal_steps=2).pack
    meta, rng = pack.meta["runs"][0], np.random.default_rng(0)
    again = np.arange(STEPS) % len(meta["steps"])
    sharp = rng.random((STEPS, 1, HEADS, LENGTH * (LENGTH + 1) // 2)) ** 30
    arrays = {}
    for name, array in pack.arrays.items():
        codes = array if isinstance(array, np.ndarray) else array.values
        stacked = codes[again]
        arrays[name] = stacked if isinstance(array, np.ndarray) else quantise(stacked, 8, array.low, array.high)
    arrays["0 attention"] = quantise(sharp, 16, 0.0, 1.0)
    meta["steps"] = list(range(0, 10 * STEPS, 10))
    return Pack(pack.meta, arrays)


def browser_rows(large: Path, simple: Path) -> list[dict]:
    from tests.browser import launched

    with launched() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(large.as_uri())
        page.wait_for_selector("html[data-ready]")
        page.evaluate(STEP)
        slider = [t / 1000 for t in page.evaluate(STEP)]
        page.goto(simple.as_uri())
        page.wait_for_selector("html[data-ready]")
        text = "to be or not to be that is the question whether it is nobler in the mind to suffer"
        page.evaluate(TYPE, text)
        typed = [t / 1000 for t in page.evaluate(TYPE, text)]
    size = f"{large.stat().st_size / 1e6:.1f} MB"
    work = f"the page: a slider step, {STEPS} steps and {HEADS} heads, {size}"
    return [
        {"work": f"{work}, median", "seconds": median(slider), "at_least": "0.1 s", "aim": "0.05 s"},
        {"work": f"{work}, 95th percentile", "seconds": float(np.quantile(slider, 0.95)), "at_least": "0.1 s"},
        {"work": "the page: 64 tokens typed to the new picture, median", "seconds": median(typed), "at_least": "0.2 s"},
    ]


def attention_row(repeats: int = 5) -> dict:
    """Four heads over 48 tokens, once the model has run; CircuitsVis makes HTML of the same tensors."""
    import circuitsvis.attention

    view = im.attention(im.load("four-heads"), heads=["L1H3", "L2H1", "L2H3", "L2H4"])
    ours, theirs = [], []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        view._repr_html_()
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        str(circuitsvis.attention.attention_heads(attention=view.patterns[0], tokens=list(view.tokens)))
        theirs.append(time.perf_counter() - began)
    work = "im.attention to HTML, four heads of 48 tokens (CircuitsVis beside it)"
    seconds, baseline = median(ours[1:]), median(theirs[1:])
    return {"work": work, "baseline_seconds": baseline, "seconds": seconds, "at_least": "0.3 s", "aim": "0.1 s"}


def rows() -> list[dict]:
    """The benchmark table's rows on the page."""
    result = [attention_row()]
    with tempfile.TemporaryDirectory() as folder:
        large, simple = Path(folder) / "large.html", Path(folder) / "random-triggers.html"
        large.write_text(document("large", large_pack().blob()), encoding="utf-8")
        command = ("report", "random-triggers", "--out", str(simple), "--quiet")
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "induction_memory", *command], check=True, capture_output=True)
        shell = time.perf_counter() - began
        result += browser_rows(large, simple)
    return [*result, {"work": "report random-triggers from the shell", "seconds": shell, "aim": "10 s"}]
