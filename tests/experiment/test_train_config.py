"""Training configurations are checked when made, survive JSON, and change by path."""

import jaxtyping
import pytest

from induction_memory.errors import InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.schedule import CheckpointRule, Keeper, learning_rate
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.config import ModelConfig
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.factual_recall import FactualRecall
from induction_memory.task.markov import MarkovChains


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", -1),
        ("steps", 2.5),
        ("steps", True),
        ("batch_size", 0),
        ("learning_rate", 0),
        ("learning_rate", float("nan")),
        ("learning_rate", "fast"),
        ("momentum", 1.0),
        ("weight_decay", -1e-4),
        ("optimizer", "adam"),
        ("betas", (0.9,)),
        ("betas", (0.9, 1.0)),
        ("schedule", "step"),
        ("warmup", 2000),
        ("final_fraction", 1.5),
        ("loss", ""),
        ("data_seed", 0),
        ("eval_seed", 1),
        ("init_seed", -1),
        ("freeze", ("W_K1: 300",)),
        ("freeze", ("W_K1: 300..200",)),
        ("freeze", "W_K1"),
        ("clamps", ("next-token",)),
        ("clamps", ("induction@5000",)),
        ("grafts", ("W_O2",)),
        ("grafts", ("W_O2=run@3 from 5000",)),
        ("checkpoints", "sometimes"),
        ("checkpoints", "every 0"),
        ("checkpoints", "every 10 then every 20"),
        ("checkpoints", "0, 10, 5000"),
        ("keep_optimizer", 1),
        ("resume_every", 0),
        ("out_of_distribution", ""),
        ("micro_batch", 0),
        ("threads", 0),
        ("steps", 10_000_001),
        ("device", "tpu"),
    ],
)
def test_a_bad_value_is_refused_in_one_line_that_names_the_field(field, value, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside the tests: our own checks alone
    with pytest.raises(InputError, match=rf"^train\.{field}: expected [^\n]+, got [^\n]+$"):
        TrainConfig(**{field: value})


def test_a_config_survives_json_and_unknown_keys_are_refused():
    config = RunConfig(
        BigramTask(k=3, length=32),
        ModelConfig(n_ctx=64, feed_forward="none"),
        TrainConfig(freeze=("W_K1: ..300", "W_O2"), clamps=("induction@3",), betas=(0.8, 0.9)),
    )
    assert RunConfig.from_dict(config.to_dict()) == config
    with pytest.raises(InputError, match=r"^train\.step: expected one of steps, "):
        TrainConfig.from_dict({"step": 3})
    with pytest.raises(InputError, match=r"^optimiser: expected one of task, model, train"):
        RunConfig.from_dict({"optimiser": {}})


def test_parts_that_do_not_fit_together_are_refused():
    with pytest.raises(InputError, match=r"^model\.n_ctx: expected at least task\.length = 64, got 32"):
        RunConfig(BigramTask(length=64), ModelConfig(n_ctx=32))
    with pytest.raises(InputError, match=r"^model\.d_vocab: expected the vocabulary's size 65, got 64"):
        RunConfig(model=ModelConfig(d_vocab=64))
    with pytest.raises(InputError, match=r"^train\.freeze: expected names out of the trained W_K1, W_K2, "):
        RunConfig(train=TrainConfig(freeze=("W_E",)))
    with pytest.raises(InputError, match=r"^train\.grafts: expected names out of "):
        RunConfig(train=TrainConfig(grafts=("W_X=run@3",)))
    with pytest.raises(InputError, match=r"^model\.n_layers: expected at least 2 for the clamp induction, got 1"):
        RunConfig(model=ModelConfig(n_layers=1), train=TrainConfig(clamps=("induction",)))


def test_a_configuration_shows_what_is_not_at_its_default_and_in_a_notebook_every_field():
    config = RunConfig().with_settings(["task.k=3", "train.steps=7"])
    assert (
        repr(config)
        == "RunConfig(\n    task=BigramTask(k=3),\n    model=ModelConfig(),\n    train=TrainConfig(steps=7),\n)"
    )
    shown = config._repr_html_()
    assert shown.count("<tr") == 1 + sum(map(len, config.to_dict().values()))
    assert "<td>train.batch_size</td>" in shown.replace("\n", "")
    assert "Fresh sequences per update." in shown


def test_settings_change_fields_by_their_path_and_type():
    config = RunConfig().with_settings(
        [
            "task.k=3",
            "train.learning_rate=1",
            "train.threads=none",
            "model.layer_norm=true",
            "train.freeze=W_K1: ..300, W_O2",
            'train.clamps=["induction@3"]',
            "task.outputs=bigram",
            "train.out_of_distribution=uniform",
            "model.trained=W_K1,W_O2,W_K2",
            "train.betas=0.5,0.75",
        ]
    )
    assert (config.task.k, config.train.learning_rate, config.train.threads) == (3, 1.0, None)
    assert config.model.layer_norm is True
    assert config.train.freeze == ("W_K1: ..300", "W_O2")
    assert config.train.clamps == ("induction@3",)
    assert config.train.betas == (0.5, 0.75)
    assert config.model.trained == ("W_K1", "W_O2", "W_K2")
    assert config.evaluation_task == BigramTask(k=3, outputs="uniform")
    assert config.differences(RunConfig())["task.k"] == (3, 5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("task.q=3", r"^task\.q: expected one of task\.\{corpus, .*\}, got 'q'$"),
        ("trainer.steps=3", r"^trainer\.steps: expected a path that begins with task, model or train"),
        ("train.steps=soon", r"^train\.steps: expected a whole number, got 'soon'$"),
        ("train.steps", r"^--set: expected PART\.FIELD=VALUE, got 'train\.steps'$"),
        ("model.layer_norm=maybe", r"^model\.layer_norm: expected true or false, got 'maybe'$"),
        ("train.loss=some", r"^train\.loss: expected one of all, main, trigger-output, .*, got 'some'$"),
        ("task.k=80", r"^task\.k: expected 1 to 65"),
    ],
)
def test_a_setting_that_cannot_be_says_what_could(setting, message):
    with pytest.raises(InputError, match=message):
        RunConfig().with_settings([setting])


def test_seeds_of_repetitions_never_meet():
    seeds = [
        seed
        for repetition in range(5)
        for config in [TrainConfig().with_seed(repetition)]
        for seed in (config.init_seed, config.data_seed, config.eval_seed)
    ]
    assert sorted(seeds) == list(range(15))


def test_checkpoint_rules_keep_the_steps_they_name():
    assert CheckpointRule.parse("every 1 to 3 then every 5", 12).fixed == {0, 1, 2, 3, 5, 10, 12}
    assert CheckpointRule.parse("every step to 2 then 7, 9", 12).fixed == {0, 1, 2, 7, 9, 12}
    assert CheckpointRule.parse("every 1 to 4 then log 4", 64).fixed == {0, 1, 2, 3, 4, 8, 16, 32, 64}
    assert CheckpointRule.parse("log 2 to 100 then every 100", 300).fixed == {0, 1, 10, 100, 200, 300}
    assert CheckpointRule.parse("every 1", 0).fixed == {0}


def test_adaptive_checkpoints_thicken_while_a_watched_value_moves():
    keeper = Keeper(CheckpointRule.parse("adaptive 10 by 0.05", 40))
    accuracy = [0.0] * 12 + [0.1, 0.2, 0.3, 0.32, 0.34, 0.36] + [0.36] * 23
    kept = [step for step, value in enumerate(accuracy) if keeper.keeps(step, {"accuracy": value})]
    assert kept == [0, 10, 12, 13, 14, 17, 20, 30, 40]


def test_the_step_size_warms_up_and_decays():
    assert [learning_rate(n, 8, 1.0, warmup=4) for n in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert [learning_rate(n, 4, 2.0, "linear") for n in range(4)] == [2.0, 1.5, 1.0, 0.5]
    assert learning_rate(4, 8, 1.0, "cosine", final_fraction=0.5) == pytest.approx(0.75)
    assert learning_rate(6, 8, 1.0, "cosine", warmup=4) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "trigger"}, "train.loss: expected one of all, main, trigger-output, in_context, global, .*'trigger'"),
        ({"out_of_distribution": "other"}, "variants: expected one of uniform, bigram, train, test .*, got 'other'"),
    ],
)
def test_groups_and_variants_are_those_of_the_task(changes, message):
    with pytest.raises(InputError, match=message):
        RunConfig(train=TrainConfig(**changes))


def test_sizes_follow_from_the_task_unless_they_are_set():
    markov = RunConfig.of(MarkovChains(symbols=4, length=12), ModelConfig(), TrainConfig())
    assert (markov.model.d_vocab, markov.model.d_vocab_out, markov.model.n_ctx) == (4, None, 12)
    recall = RunConfig.of(FactualRecall(), ModelConfig(n_ctx=40), TrainConfig())
    assert (recall.model.d_vocab, recall.model.d_vocab_out, recall.model.n_ctx) == (57, 64, 40)
    assert markov.with_settings(["task.symbols=5", "task.length=20"]).model == markov.model.replace(d_vocab=5, n_ctx=20)
    assert markov.with_settings(["task.length=8"]).model.n_ctx == 12  # long enough as it is
    with pytest.raises(InputError, match=r"model.d_vocab: expected the vocabulary's size 5, got 7"):
        markov.with_settings(["task.symbols=5", "model.d_vocab=7"])
    with pytest.raises(InputError, match=r"model.d_vocab_out: expected the number of outputs 64, got 57"):
        RunConfig(FactualRecall(), ModelConfig(d_vocab=57), TrainConfig())


def test_the_task_of_a_configuration_is_its_name_and_settings():
    run = RunConfig.of(MarkovChains(order=2), ModelConfig(), TrainConfig())
    assert run.to_dict()["task"]["name"] == "markov"
    assert RunConfig.from_dict(run.to_dict()) == run
    assert "name" not in RunConfig().to_dict()["task"]
    other = RunConfig.of(MarkovChains(order=1), ModelConfig(), TrainConfig())
    assert run.differences(other) == {"task.order": (2, 1)}
    assert ("markov", None) in run.differences(RunConfig(model=run.model.replace(d_vocab=65, n_ctx=256))).values()
