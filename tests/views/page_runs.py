"""Tiny trained runs whose tokens would break a careless page, and a tab that has no network."""

import re

import numpy as np

from induction_memory.experiment.run_config import RunConfig
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import set_matrix
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.corpus import Corpus
from induction_memory.training.run import start
from induction_memory.views.page import live
from tests.tiny_runs import TRAIN

HOSTILE = ("<", "&", "</script>", " ", "\n", '"', "'", "<!--", "<img src=x onerror=alert(1)>", "{{DATA}}", "a", "b")


def hostile_task() -> BigramTask:
    tokens = [HOSTILE[i] for i in np.random.default_rng(0).integers(len(HOSTILE), size=600)]
    corpus = Corpus.from_tokens([*HOSTILE, *tokens], name="hostile")
    return BigramTask(corpus, length=24, k=2, triggers="fixed", trigger_characters=("a", "</script>"))


def hostile_run(folder, **train):
    """A simplified model with a linear feed-forward, which the page can run."""
    task = hostile_task()
    model = ModelConfig(d_model=16, n_ctx=24, d_vocab=task.vocab_size)
    return start(RunConfig(task, model, TRAIN.replace(**train)), folder, progress=False)


def full_run(folder, **train):
    """Two heads per layer and ReLU feed-forwards, which the page can only show."""
    task = hostile_task()
    model = ModelConfig.full(d_model=16, n_ctx=24, d_vocab=task.vocab_size, n_heads=2)
    return start(RunConfig(task, model, TRAIN.replace(learning_rate=0.1, **train)), folder, progress=False)


def decoded(run, step):
    """The simplified model at a stored step with the weights that the page has: changes in 8 bits."""
    steps = run.steps.tolist()
    facts, arrays = live.pack(run, steps)
    model = run.model(step)
    for layer, blocks in enumerate(facts["layers"], start=1):
        for kind, matrix in blocks["heads"][0].items():
            set_matrix(model, f"{kind}{layer}", live.decode(arrays, matrix, steps.index(step)))
        if blocks["feed_forward"] is not None:
            set_matrix(model, "W_F", live.decode(arrays, blocks["feed_forward"], steps.index(step)))
    return model


def tab_of(browser, **options):
    """A page without a network; errors and whatever it asks for beyond files are noted."""
    settings = {"offline": True, "viewport": {"width": 1400, "height": 1000}, "accept_downloads": True} | options
    context = browser.new_context(**settings)
    page = context.new_page()
    page.refused, page.errors = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)

    def refuse(route):
        page.refused.append(route.request.url)
        route.abort()

    page.route(re.compile("^(?!file:|data:|about:|blob:)"), refuse)
    return page


def opened(page, path, state=""):
    page.goto(path.as_uri() + state)
    page.wait_for_selector("html[data-ready]")
    return page
