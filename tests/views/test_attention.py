import base64
import html
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image

from induction_memory.errors import InputError
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.shown_tokens import visible
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.corpus import Corpus
from induction_memory.task.sampler import make_batch, sample, step_rng
from induction_memory.views.attention_maps import attention, trigger_marks
from induction_memory.views.attention_page import bundle, embedded_json
from induction_memory.views.figures.maps import OTHER, RIGHT, attention_figure
from induction_memory.views.light_maps import WORDS, coloured, picture
from tests.browser import wait_until

AWKWARD = ("<", "&", "</script>", " ", "\n", '"', "'", "<!--", "$x$", "a", "b")


@pytest.fixture(scope="module")
def task():
    tokens = [AWKWARD[i] for i in np.random.default_rng(0).integers(len(AWKWARD), size=400)]
    corpus = Corpus.from_tokens([*AWKWARD, *tokens], name="awkward")
    return BigramTask(corpus, length=12, k=1, triggers="fixed", trigger_characters=("a",))


@pytest.fixture(scope="module")
def model(task):
    return build(ModelConfig.full(d_model=16, n_heads=2, n_ctx=12, d_vocab=task.vocab_size), seed=0)


@pytest.fixture(scope="module")
def view(task, model):
    line = ["a", "</script>", "<", "&", " ", "\n", "a", "</script>", "<!--", "$x$", '"', "a"]
    number = task.vocabulary.index
    tokens = np.array([[number(token) for token in [*line, "b"]]])
    pair = np.array([[number("a")]]), np.array([[number("</script>")]])
    return attention(model, batch=make_batch(task, tokens, *pair), task=task)


@pytest.fixture
def tab(browser):
    """A page without a network; whatever it asks for beyond files is noted and refused."""
    context = browser.new_context(offline=True, viewport={"width": 1000, "height": 900})
    page = context.new_page()
    page.refused, page.errors = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)

    def refuse(route):
        page.refused.append(route.request.url)
        route.abort()

    page.route(re.compile("^(?!file:|data:|about:)"), refuse)
    yield page
    context.close()


DARKEST = """canvas => { const all = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let least = 765; for (let i = 0; i < all.length; i += 4)
    if (all[i + 3] > 200) least = Math.min(least, all[i] + all[i + 1] + all[i + 2]); return least; }"""


def test_a_saved_page_shows_one_viewer_at_a_time_without_a_network(view, tab, tmp_path):
    path = view.save(tmp_path / "maps.html")
    tab.goto(path.as_uri())
    image = tab.wait_for_selector("#all img")
    assert image.evaluate("image => image.complete && image.naturalWidth > 100")
    assert tab.query_selector("canvas") is None  # CircuitsVis draws when its tab is opened
    tab.click("text=One head")
    drawn = tab.wait_for_selector("#heads canvas")
    wait_until(tab, lambda: drawn.evaluate(DARKEST) < 300)  # the first position attends to itself: a dark cell
    assert not image.is_visible()
    assert drawn.bounding_box()["width"] > 300
    assert tab.inner_text("#head").split() == ["L1H1", "L1H2", "L2H1", "L2H2"]
    tab.select_option("#head", "L2H2")
    tab.wait_for_selector("#heads canvas")
    assert tab.evaluate("document.documentElement.scrollHeight") < 1000
    tab.click("text=All heads")
    assert image.is_visible()
    assert not tab.query_selector("#heads").is_visible()
    assert tab.refused == []
    assert tab.errors == []


def test_awkward_tokens_display_as_themselves(view, tab, tmp_path):
    tab.goto(view.save(tmp_path / "maps.html").as_uri())
    shown = [span.text_content() for span in tab.query_selector_all("p.tokens span")]
    assert shown == ["a", "</script>", "<", "&", "␣", "↵", "a", "</script>", "<!--", "$x$", '"', "a"]
    data = json.loads(tab.text_content("#data"))
    assert data["tokens"] == shown
    assert [span.text_content() for span in tab.query_selector_all(".tokens .trigger")] == ["a"] * 3
    assert [span.text_content() for span in tab.query_selector_all(".tokens .output")] == ["</script>"] * 2


def test_several_cells_of_a_notebook_show_their_maps_side_by_side(view, tab, tmp_path):
    notebook = tmp_path / "notebook.html"
    cells = "".join(f"<div>{view._repr_html_()}</div>" for _ in range(2))
    notebook.write_text(f"<!doctype html><meta charset=utf-8>{cells}", encoding="utf-8")
    tab.goto(notebook.as_uri())
    for frame_element in tab.query_selector_all("iframe"):
        frame_element.scroll_into_view_if_needed()
        frame = frame_element.content_frame()
        frame.click("text=One head")
        frame.wait_for_selector("#heads canvas")
        dark = partial(frame.evaluate, f"({DARKEST})(document.querySelector('#heads canvas')) < 300")
        wait_until(tab, dark)
        wait_until(tab, partial(frame.evaluate, "document.documentElement.scrollHeight <= window.innerHeight + 1"))
    assert tab.refused == []
    assert tab.errors == []


def test_the_bundle_stands_once_in_a_page_and_cannot_end_its_script(view):
    source = view.html()
    assert source.count("var CircuitsVis=") == 1
    assert source.count("</script") == source.count("<script")
    assert "</script" not in bundle()
    assert "http-equiv" in source
    assert "<" not in embedded_json({"token": "</script><!--"})
    assert json.loads(embedded_json({"token": "</script><!--\u2028"})) == {"token": "</script><!--\u2028"}
    assert html.escape("</script>") in source


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_pictures_are_the_same_bytes_each_time(view, tmp_path, suffix):
    first, second = (view.save(tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "two"))
    assert len(first) > 2000
    assert first == second


def test_keys_after_earlier_occurrences_are_boxed_red_where_they_are_the_right_output():
    z = {c: i for i, c in enumerate("abcd")}
    tokens = torch.tensor([z[c] for c in "abcacbab"])
    boxes = trigger_marks(tokens, {z["a"]: z["b"]})
    right = {(int(q), int(k)) for q, k in zip(*np.nonzero(boxes["right"]), strict=True)}
    other = {(int(q), int(k)) for q, k in zip(*np.nonzero(boxes["other"]), strict=True)}
    assert right == {(3, 1), (6, 1)}  # a at 3 and 6, whose first occurrence is followed by b
    assert other == {(6, 4), (4, 3), (5, 2), (7, 2), (7, 6)}  # a -> c at 4; c -> a; b -> c; b -> a
    assert boxes["triggers"].tolist() == [c == "a" for c in "abcacbab"]
    assert np.flatnonzero(boxes["outputs"]).tolist() == [1, 7]


def test_the_picture_has_a_map_a_head_with_its_boxes_and_marks():
    pattern = np.eye(3)
    right, other = np.zeros((3, 3), dtype=bool), np.zeros((3, 3), dtype=bool)
    right[2, 1], other[2, 0] = True, True
    marks = {"triggers": np.array([True, False, False]), "outputs": np.array([False, True, False])}
    figure = attention_figure(
        [[pattern, pattern]], ["a", " ", "$"], columns=["one", "two"], right=right, other=other, **marks
    )
    maps = figure.axes[:2]
    assert [axes.get_title() for axes in maps] == ["one", "two"]
    assert [label.get_text() for label in maps[0].get_yticklabels()] == ["a", "␣", "$"]
    ring, square = maps[0].patches
    assert (ring.get_center(), to_hex(ring.get_edgecolor())) == ((0, 2), OTHER)
    assert (square.get_xy(), to_hex(square.get_edgecolor())) == ((0.5, 1.5), RIGHT)
    assert maps[0].get_images()[0].get_array().mask[0].tolist() == [False, True, True]
    trigger, output, plain = maps[0].get_yticklabels()
    assert [text.get_fontweight() for text in (trigger, output, plain)] == ["bold", "bold", "normal"]
    assert [text.get_bbox_patch() is not None for text in (trigger, output, plain)] == [
        False,
        True,
        False,
    ]  # underlined
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(WORDS.values())
    assert [text.get_fontweight() for text in legend.get_texts()] == ["normal", "normal", "bold", "bold"]


def test_whitespace_is_visible_and_other_tokens_are_themselves():
    assert [visible(token) for token in (" ", "\n", "\t", "<", "a b", "\x00")] == ["␣", "↵", "⇥", "<", "a␣b", "\\x00"]


def test_several_models_stand_side_by_side(model):
    shakespeare = BigramTask(length=16)
    two = [build(ModelConfig(d_model=8, n_ctx=16), seed=seed) for seed in (0, 1)]
    view = attention(two, batch=sample(shakespeare, 2, step_rng(0, 0)), row=1, task=shakespeare, length=10)
    assert view.patterns.shape == (2, 2, 10, 10)
    assert view.columns == ("model 1", "model 2")
    assert len(view.figure().axes) == 2 * 2 + 1
    assert not np.allclose(view.patterns[0], view.patterns[1])


def test_a_text_takes_the_fixed_triggers_that_keep_one_successor():
    task = BigramTask(length=16, k=2, triggers="fixed", trigger_characters=("a", "t"))
    model = build(ModelConfig(d_model=8, n_ctx=16), seed=0)
    view = attention(model, text="abxabtytz", task=task)
    assert "".join(np.array(view.tokens)[view.triggers]) == "aa"  # t has two successors
    assert repr(view).count("\n") == 0
    assert "2 heads, 9 tokens" in repr(view)
    given = attention(model, text="abxabtytz", task=task, triggers={"x": "a"})
    assert "".join(np.array(given.tokens)[given.triggers]) == "x"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"text": "a#"}, "text: expected tokens of the vocabulary"),
        ({"text": "a" * 17}, "text: expected 1 to 16 tokens"),
        ({"text": ""}, "text: expected at least one character"),
        ({"text": "ab", "heads": ["L3H1"]}, "heads: expected heads out of L1H1, L2H1, got 'L3H1'"),
        ({"text": "ab", "heads": [(2, 2)]}, "heads: expected heads out of L1H1, L2H1"),
        ({"text": "ab", "step": 3}, "step: expected none"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, says):
    task = BigramTask(length=16) if "text" in arguments else None
    with pytest.raises(InputError) as error:
        attention(build(ModelConfig(d_model=8, n_ctx=16), seed=0), task=task, **arguments)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def light(rows, across, tokens):
    """The picture of rows x across maps, each over that many tokens."""
    boxed, none = np.tril(np.ones((tokens, tokens), dtype=bool), -1), np.zeros(tokens, dtype=bool)
    maps = [(f"L{i // across + 1}H{i % across + 1}", np.eye(tokens)) for i in range(rows * across)]
    return picture(maps, across, [f"t{i}" for i in range(tokens)], boxed, boxed, none, none)


@pytest.mark.parametrize(("rows", "across"), [(1, 1), (2, 4), (8, 3), (1, 12), (12, 12), (24, 1), (36, 12), (2, 11)])
def test_the_maps_of_all_heads_fit_a_screen_and_stand_apart(rows, across):
    source, width, height = light(rows, across, 48)
    assert width <= 930
    assert height <= 900
    side = float(re.search(r'<image width="([\d.]+)"', source)[1])
    assert side >= 20
    places = [(float(x), float(y)) for x, y in re.findall(r'<g transform="translate\(([\d.]+) ([\d.]+)\)"', source)]
    assert len(places) == rows * across
    assert all(x + side <= width + 0.2 and y + side <= height + 0.2 for x, y in places)
    assert all(max(abs(x - u), abs(y - v)) > side for x, y in places[:20] for u, v in places if (x, y) != (u, v))


@pytest.mark.parametrize("columns", [4, 7])
def test_the_tokens_of_many_maps_stay_legible_in_a_cell_of_a_notebook(columns):
    view = attention("induction-small", step=[0, 100, 200, 600], text="To be, or not to be")
    patterns = np.concatenate([view.patterns, view.patterns])[:columns]
    source, width, _ = replace(view, patterns=patterns, columns=tuple(map(str, range(columns)))).picture()
    tokens, titles = (float(found) for found in re.findall(r"font:([\d.]+)px", source))
    assert width <= 930
    assert tokens >= 7
    assert titles >= 8


def test_the_heads_of_a_layer_stand_side_by_side_with_a_row_for_each_step(model, task):
    view = attention(model, text="ab a", task=task)
    both = replace(view, columns=("0", "9"), patterns=np.concatenate([view.patterns, 1 - view.patterns]))
    rows, columns, places = both._arranged()
    assert rows == ["layer 1, 0", "layer 1, 9", "layer 2, 0", "layer 2, 9"]
    assert columns == ["head 1", "head 2"]
    assert places == [[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(2, 0), (3, 0)], [(2, 1), (3, 1)]]
    assert view._arranged()[0] == ["layer 1", "layer 2"]
    mixed = replace(both, heads=("L1H1", "L2H2", "L1H2", "L2H1"))._arranged()  # no grid of layers by heads
    assert mixed[:2] == ([f"layer {name[1]}, head {name[3]}" for name in ("L1H1", "L2H2", "L1H2", "L2H1")], ["0", "9"])
    width, height = both.figure().get_size_inches()
    assert width < 20
    assert height < 15


def test_a_picture_names_its_maps_in_the_order_that_was_asked_for(model, task):
    view = attention(model, text="ab a", task=task, heads=["L2H1", "L1H2", "L1H1", "L2H2"])
    root = ElementTree.fromstring(view.picture()[0])
    drawn = [group for group in root.iter("{http://www.w3.org/2000/svg}g") if group.get("transform")]
    assert [group[0].text for group in drawn] == ["L2H1", "L1H2", "L1H1", "L2H2"]
    for group, pattern in zip(drawn, view.patterns[0], strict=True):
        np.testing.assert_array_equal(pixels(group[1]), coloured(pattern))
    one, every = (attention(model, text="ab a", task=task, heads=heads).patterns for heads in ("L1H2", "all"))
    np.testing.assert_array_equal(one[0, 0], view.patterns[0, 1])
    assert every.shape[1] == 4


def pixels(image):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(image.get("href").partition(",")[2]))))


def test_the_legend_says_what_the_boxes_and_tokens_of_the_page_are(view):
    body = view.html()
    shown = body[body.index('id="all"') : body.index('id="one"')]
    for kind, words in WORDS.items():
        assert re.search(rf'class="{kind}".*?{words}', shown), kind
    without = replace(view, right=np.zeros_like(view.right), outputs=np.zeros_like(view.outputs)).html()
    assert WORDS["right"] not in without
    assert WORDS["output"] not in without


def test_the_light_picture_has_the_maps_the_boxes_and_the_tokens(view):
    source, width, height = view.picture()
    root = ElementTree.fromstring(source)
    name = "{http://www.w3.org/2000/svg}"
    assert float(root.get("width")) == pytest.approx(width, abs=1)
    assert height > 300
    images = list(root.iter(f"{name}image"))
    assert len(images) == 4
    for image, pattern in zip(images, view.patterns[0], strict=True):
        np.testing.assert_array_equal(pixels(image), coloured(pattern))
    strokes = {path.get("stroke"): path.get("d").count("M") for path in root.iter(f"{name}path")}
    assert strokes == {RIGHT: int(view.right.sum()), OTHER: int(view.other.sum())}
    assert {path.get("stroke"): "a" in path.get("d") for path in root.iter(f"{name}path")} == {
        RIGHT: False,
        OTHER: True,
    }
    shown = [text.text for text in root.iter(f"{name}text")]
    assert shown.count("a") == 6  # three triggers, as queries and as keys
    assert "</script>" in shown
    assert "L1H1" in shown


def test_colours_go_from_light_to_dark_and_are_grey_beyond_the_diagonal():
    pixels = coloured(np.array([[1.0, 0.0], [0.25, 0.75]])).astype(int)
    assert pixels[0, 0].tolist() == [0x08, 0x30, 0x6B]
    assert pixels[0, 1].tolist() == [0xF2, 0xF3, 0xF5]
    assert pixels[1, 0].tolist() == [0xC6, 0xDB, 0xEF]
    assert pixels[1, 1].tolist() == [0x21, 0x71, 0xB5]


@pytest.mark.slow
def test_a_page_in_a_notebook_loads_no_drawing_library():
    code = """import sys, numpy as np
from induction_memory.views.attention_maps import AttentionView
none = np.zeros((3, 3), bool)
view = AttentionView("t", ("a", "b", "c"), ("L1H1", "L2H1"), ("",), np.eye(3)[None, None].repeat(2, 1), none, none,
                     none[0], none[0])
assert "matplotlib" not in sys.modules, "already there"
view._repr_html_()
assert "matplotlib" not in sys.modules, "drawn by it"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_format_is_refused(view, tmp_path):
    with pytest.raises(InputError, match=r"ending in \.html, \.png, \.pdf, \.svg"):
        view.save(tmp_path / "maps.gif")


def test_more_columns_than_one_can_look_at_are_refused(model, task):
    with pytest.raises(InputError, match="step: expected at most 12 maps side by side, got more"):
        attention([model] * 13, text="ab a", task=task)


def test_a_text_of_words_is_split_as_the_vocabulary_of_the_task():
    corpus = Corpus.from_tokens(["the", "cat", "saw", "the", "dog", "and", "the", "dog", "saw", "the", "cat"])
    task = BigramTask(corpus, k=1, length=8)
    model = build(ModelConfig.simplified(d_model=8, n_ctx=8, d_vocab=task.vocab_size), seed=0)
    assert attention(model, text="the cat saw", task=task).tokens == ("the", "cat", "saw")
    with pytest.raises(InputError, match="got 'mouse'"):
        attention(model, text="the mouse", task=task)


def test_a_text_is_read_by_the_models_own_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"?": 0, "up": 1, "and": 2, "down": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    model = build(ModelConfig.simplified(d_model=8, n_ctx=8, d_vocab=4), seed=0)
    with pytest.raises(InputError, match="task: expected a model with a tokenizer, or the task"):
        attention(model, text="up and down")
    model.tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    view = attention(model, text="up and down and up")
    assert view.tokens == ("up", "and", "down", "and", "up")
    same = attention(model, batch=torch.tensor([[1, 2, 3, 2, 1, 0]]))
    assert np.allclose(view.patterns, same.patterns)


@pytest.mark.parametrize("name", ["markov-1", "copying-any", "causal-graph", "factual-recall"])
def test_a_task_without_triggers_has_its_own_words_in_its_legend(name):
    view = attention(name, step=-1, length=24)
    (words,) = re.findall(r'<p class="legend">(.*?)</p></div>', view.html()[: view.html().index('id="one"')])
    drawn = [text.get_text() for legend in view.figure().legends for text in legend.get_texts()]
    assert "trigger" not in re.sub("<[^>]*>", "", words) + " ".join(drawn)
    assert view.triggers.all() or not view.triggers.any() or any("group" in text for text in drawn)
