"""Named experiments: every panel of the paper's figures as a (task, model, training) triple.

Hyper-parameters come from the paper's Appendix E: everywhere momentum 0.9, weight decay 1e-4, batches of 512 sequences
of T = 256, and d = 128. The appendix does not give the numbers of steps, the task and the step size of Figures 10 and
11, and the dimensions and step sizes of Figure 8; they are chosen here. The vanilla transformers of Figures 2 and 11
warm up for 30 steps: at the paper's step size of 0.2 from the first step on, those with random triggers diverge within
15.

Presets that end in `-text` use the model of the paper's text instead of the authors' code: Gaussian weights,
embeddings of unit norm, and attention scores as in equation 2, without the division by sqrt(d). Gradients are smaller
there, so the step size was tuned again at T = 64 in batches of 64: 10 in Figure 3 (3 is slower, 30 does not learn), 5
in Figure 7 (10 diverges).

`demo`, `heads` and `late-keys-*` are not panels of the paper. They are a first look, a comparison of many seeds, and a
test of why keys are learned late with one trigger, all three in smaller batches.

`OTHER_TASKS` are experiments on the other tasks, each about two minutes of one thread (their papers are named in the
tasks' own modules). Unless a line says otherwise, AdamW trains every parameter with a step size that falls linearly to
zero. With a constant step size, the noise of the updates keeps the loss 1.5 to 3 times as far from the Bayes-optimal
loss. The models are the smallest that come close to it in that time.
"""

from dataclasses import dataclass, replace
from typing import Any

from induction_memory.errors import require_known
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.config import ModelConfig
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.causal import CausalGraph
from induction_memory.task.copying import Copying
from induction_memory.task.factual_recall import FactualRecall
from induction_memory.task.markov import MarkovChains
from induction_memory.task.noisy import NoisyTriggers


def _full(d_model: int, d_mlp: int, **changes: Any) -> ModelConfig:
    return ModelConfig.full(**{"d_model": d_model, "d_mlp": d_mlp, **changes})


def _adam(steps: int, rate: float, batch: int = 64, **changes: Any) -> TrainConfig:
    every = max(1, steps // 100)
    settings: dict[str, Any] = {
        "steps": steps,
        "batch_size": batch,
        "optimizer": "adamw",
        "learning_rate": rate,
        "schedule": "linear",
        "loss": "all",
        "checkpoints": f"every 1 to 10 then every {every}",
        "keep_optimizer": False,
        "full_metrics_every": 20,
        "resume_every": 200,
    }
    return TrainConfig(**(settings | changes))


NOISY = RunConfig.of(NoisyTriggers(), _full(64, 128), _adam(2500, 3e-3, out_of_distribution="clean"))
BESIDE = RunConfig.of(
    NoisyTriggers(),
    ModelConfig.simplified(d_model=128, parallel_blocks=True),
    _adam(2000, 1.0, optimizer="sgd", out_of_distribution="clean"),
)
MARKOV_1 = RunConfig.of(MarkovChains(), _full(32, 64), _adam(1500, 5e-3))
MARKOV_2 = RunConfig.of(MarkovChains(order=2, symbols=2), _full(32, 64, n_heads=2), _adam(3000, 5e-3))
CAUSAL = RunConfig.of(
    CausalGraph(),
    _full(64, 128),
    _adam(1600, 2e-3, batch=256, schedule="constant", checkpoints="every 1 to 10 then every 20"),
)
FACTS = RunConfig.of(FactualRecall(), _full(64, 256, n_layers=1, parametrisation="text"), _adam(100, 1e-2, batch=512))
COPYING_MIDDLE = RunConfig.of(
    Copying(spans=(12,)),
    _full(32, 64),
    _adam(500, 2e-3, batch=128, schedule="constant", out_of_distribution="elsewhere"),
)
COPYING_ANY = RunConfig.of(
    Copying(spans=tuple(range(1, 13)), placement="any"),
    _full(32, 64),
    _adam(2000, 5e-3, batch=128, schedule="constant", out_of_distribution="elsewhere"),
)

OTHER_TASKS: dict[str, tuple[str, RunConfig]] = {
    "noisy-triggers": ("five fixed triggers, 30 % noise: approaches the Bayes-optimal loss", NOISY),
    "noisy-triggers-beside": ("the simplified model with W_F beside the attention, for ablating W_F", BESIDE),
    "markov-1": ("Markov chains of order 1 over three symbols: 1-gram, then 2-gram", MARKOV_1),
    "markov-2": ("Markov chains of order 2 over two symbols: 1-gram, 2-gram, 3-gram", MARKOV_2),
    "causal-graph": ("induction over a random causal graph", CAUSAL),
    "factual-recall": ("256 facts among noise: marginal, relation, fact", FACTS),
    "copying-middle": ("copying with the output in the middle: a positional shortcut", COPYING_MIDDLE),
    "copying-any": ("copying over any two distances: no shortcut is right", COPYING_ANY),
}
"""Name of a preset -> its description in one line, and the experiment."""


@dataclass(frozen=True)
class Preset:
    """An experiment and its description in one line."""

    about: str
    config: RunConfig


def names() -> dict[str, str]:
    """Every preset's name with its description in one line.

    >>> names()["figure-3"]
    'the induction head alone: nothing frozen'
    """
    return {name: entry.about for name, entry in PRESETS.items()}


def preset(name: str) -> Preset:
    """The preset of this name; the error for an unknown name suggests the nearest ones.

    >>> preset("figure-3").config.train.steps
    600
    """
    require_known(name, PRESETS, "preset", "a name that `presets` lists")
    return PRESETS[name]


def with_seed(run: RunConfig, seed: int) -> RunConfig:
    """The same experiment with other data and, unless a graft belongs to them, other initial weights.

    A grafted memory is one of the donor's embeddings, which the other seeds' initial weights do not have.
    """
    train = run.train.with_seed(seed)
    return replace(run, train=replace(train, init_seed=run.train.init_seed) if train.grafts else train)


def quick(run: RunConfig) -> RunConfig:
    """A reduced experiment, for minutes instead of hours: T = 64 and a quarter of the batch."""
    task, model = replace(run.task, length=64), replace(run.model, n_ctx=64)
    return RunConfig(task, model, replace(run.train, batch_size=128))


_INDUCTION_ALONE = RunConfig(
    BigramTask(k=5),
    ModelConfig.simplified(feed_forward="none"),
    TrainConfig(steps=600, learning_rate=0.2, loss="trigger-output"),
)
_WHOLE = RunConfig(
    BigramTask(k=3),
    ModelConfig.simplified(),
    TrainConfig(steps=600, learning_rate=1.0, loss="all"),
)
_VANILLA = RunConfig(
    BigramTask(k=3),
    ModelConfig.full(),
    TrainConfig(steps=600, learning_rate=0.2, warmup=30, loss="all"),
)


def _frozen(*names: str) -> RunConfig:
    rules = tuple(f"{name}: ..300" for name in names)
    return replace(_INDUCTION_ALONE, train=replace(_INDUCTION_ALONE.train, freeze=rules))


def _task(run: RunConfig, **changes) -> RunConfig:
    return replace(run, task=replace(run.task, **changes))


def _train(run: RunConfig, **changes) -> RunConfig:
    return replace(run, train=replace(run.train, **changes))


def _as_in_the_text(run: RunConfig, learning_rate: float) -> RunConfig:
    model = replace(run.model, parametrisation="text", scale_scores=False)
    return _train(replace(run, model=model), learning_rate=learning_rate)


def _output_alone(d: int, learning_rate: float) -> RunConfig:
    model = ModelConfig.simplified(d_model=d, feed_forward="none", trained=("W_O2",))
    train = replace(_INDUCTION_ALONE.train, steps=100, learning_rate=learning_rate, checkpoints="every 1")
    return replace(_INDUCTION_ALONE, model=model, train=train)


def _larger_step_sizes(d: int) -> tuple[float, ...]:
    """The step sizes of Figure 8 besides 0.2: factors of 4, with one more for d <= 64.

    At d = 128, the dimension that the paper names, two more lie around the best one.
    """
    coarse = (0.8, 3.2, 12.8, 51.2, 204.8)[: 5 if d <= 64 else 4]
    return tuple(sorted((*coarse, 6.4, 25.6))) if d == 128 else coarse


_RANDOM = _train(_VANILLA, steps=1000)
_FIXED = _task(_VANILLA, triggers="fixed")
_ONE_LAYER = ModelConfig.full(n_layers=1)
FIGURE_8_DIMENSIONS = (32, 64, 128, 256, 512)

_FIGURE_4: dict[str, dict[str, Any]] = {
    "figure-4-k1-random": {"k": 1},
    "figure-4-k5-random": {"k": 5},
    "figure-4-k5-fixed-frequent": {"k": 5, "triggers": "fixed"},
    "figure-4-k5-fixed-rare": {"k": 5, "triggers": "fixed", "trigger_offset": 5},
}

_LATE = (
    ("k1", "k1-random", 600),
    ("k5", "k5-random", 600),
    ("k5-fixed-frequent", "k5-fixed-frequent", 300),
    ("k5-fixed-rare", "k5-fixed-rare", 300),
)
"""End of a preset's name, the task of Figure 4 that it reduces, and its steps."""


def _late(name: str, steps: int) -> RunConfig:
    return _train(quick(_task(_WHOLE, **_FIGURE_4[f"figure-4-{name}"])), steps=steps)


def _held(run: RunConfig, *memories: str) -> RunConfig:
    """The run with these memories grafted from a run with three random triggers, and held."""
    grafts, freeze = ("=random-triggers@330", ": 0..")
    return _train(run, grafts=tuple(m + grafts for m in memories), freeze=tuple(m + freeze for m in memories))


PRESETS: dict[str, Preset] = {
    "demo": Preset(
        "the birth of an induction head: Figure 3's task and model at T = 64, in 600 batches of 128 sequences",
        _train(quick(_INDUCTION_ALONE), learning_rate=0.5),
    ),
    "figure-2-random": Preset("vanilla two-layer transformer, random triggers", _train(_RANDOM, steps=3000)),
    "figure-2-fixed": Preset(
        "vanilla two-layer transformer, the three most frequent tokens as triggers", _train(_FIXED, steps=1020)
    ),
    "figure-2-one-layer-random": Preset("one-layer control, random triggers", replace(_RANDOM, model=_ONE_LAYER)),
    "figure-2-one-layer-fixed": Preset("one-layer control, fixed triggers", replace(_FIXED, model=_ONE_LAYER)),
    "figure-3": Preset("the induction head alone: nothing frozen", _INDUCTION_ALONE),
    "figure-3-freeze-output": Preset("W_O2 frozen until step 300", _frozen("W_O2")),
    "figure-3-freeze-keys": Preset("W_K1 and W_K2 frozen until step 300: W_O2 first", _frozen("W_K1", "W_K2")),
    "figure-3-freeze-first-key": Preset("W_K1 frozen until step 300", _frozen("W_K1")),
    "figure-3-freeze-second-key": Preset("W_K2 frozen until step 300", _frozen("W_K2")),
    "figure-4-k1-fixed-frequent": Preset("one trigger, the most frequent token", _task(_WHOLE, k=1, triggers="fixed")),
    **{
        name: Preset(about, _task(_WHOLE, **_FIGURE_4[name]))
        for name, about in (
            ("figure-4-k1-random", "one random trigger"),
            ("figure-4-k5-random", "five random triggers"),
            ("figure-4-k5-fixed-frequent", "the five most frequent tokens as triggers"),
            ("figure-4-k5-fixed-rare", "the 6th to 10th most frequent tokens as triggers"),
        )
    },
    **{
        f"{name}-grafted": Preset(
            f"{name} with a W_O2 that was learned with three random triggers, grafted at the start and held",
            _held(_train(_task(_WHOLE, **task), steps=300), "W_O2"),
        )
        for name, task in _FIGURE_4.items()
        if task.get("triggers") != "fixed"
    },
    "figure-4-uniform": Preset(
        "three random triggers, uniform outputs, tested on bigram outputs (Figures 4 centre and right, 6, 7)",
        _train(_WHOLE, steps=1000, out_of_distribution="bigram"),
    ),
    "figure-4-bigram": Preset(
        "three random triggers, outputs from the global bigrams, tested on uniform outputs (Figures 4 centre, 6)",
        _train(_task(_WHOLE, outputs="bigram"), out_of_distribution="uniform"),
    ),
    **{
        f"figure-8-d{d}": Preset(f"W_O2 alone at d = {d}, the step size of Figure 3", _output_alone(d, 0.2))
        for d in FIGURE_8_DIMENSIONS
    },
    **{
        f"figure-8-d{d}-eta{eta:g}": Preset(f"W_O2 alone at d = {d}, step size {eta:g}", _output_alone(d, eta))
        for d in FIGURE_8_DIMENSIONS
        for eta in _larger_step_sizes(d)
    },
    "figure-10": Preset(
        "everything trained, LayerNorm, ReLU feed-forward in the second layer; step size 0.5",
        RunConfig(
            _VANILLA.task,
            ModelConfig.full(feed_forward_layers="last", layer_norm=True),
            replace(_VANILLA.train, steps=1000, learning_rate=0.5, warmup=0),
        ),
    ),
    "figure-10-parallel": Preset(
        "Figure 10 with the block of the authors' code, in which the feed-forward reads the block's input",
        RunConfig(
            _VANILLA.task,
            ModelConfig.full(feed_forward_layers="last", layer_norm=True, parallel_blocks=True),
            replace(_VANILLA.train, learning_rate=0.5, warmup=0),
        ),
    ),
    "figure-11": Preset(
        "the vanilla transformer with four heads per layer; step size 0.2",
        _train(replace(_VANILLA, model=ModelConfig.full(n_heads=4)), steps=1000),
    ),
    **{
        f"late-keys-{name}": Preset(f"figure-4-{task} at T = 64, in batches of 128", _late(task, steps))
        for name, task, steps in _LATE
    },
    **{
        f"late-keys-{name}-grafted": Preset(
            f"late-keys-{name} with a W_O2 learned with three triggers, grafted at the start and frozen",
            _held(_late(task, steps), "W_O2"),
        )
        for name, task, steps in _LATE
    },
    **{
        f"late-keys-{name}-grafted-keys": Preset(
            f"late-keys-{name} with W_K1 and W_K2 learned with three triggers, grafted at the start and frozen",
            _held(_late(task, 300), "W_K1", "W_K2"),
        )
        for name, task, _ in _LATE
    },
    "heads": Preset(
        "Figure 11's task and model, many seeds for the time of one: batches of 128, step size 0.4 after 60 steps",
        _train(
            replace(_VANILLA, model=ModelConfig.full(n_heads=4)),
            steps=400,
            batch_size=128,
            learning_rate=0.4,
            warmup=60,
        ),
    ),
    **{name: Preset(about, run) for name, (about, run) in OTHER_TASKS.items()},
}
TEXT = {
    f"{name}-text": Preset(
        f"{PRESETS[name].about}; the text's parametrisation", _as_in_the_text(PRESETS[name].config, 10.0)
    )
    for name in PRESETS
    if name.partition("-freeze")[0] == "figure-3"
} | {
    "figure-7-text": Preset(
        "Figure 7's model in the text's parametrisation", _as_in_the_text(PRESETS["figure-4-uniform"].config, 5.0)
    )
}
"""The presets of the model that the paper's text describes."""
PRESETS |= TEXT
