import re
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex
from transformer_lens import HookedTransformer, HookedTransformerConfig

import induction_memory as im
from analyses.tools import heads_figures as figures
from analyses.tools.heads_page import page
from analyses.tools.heads_study import draw, plan
from induction_memory import sample
from induction_memory.errors import InputError
from induction_memory.heads.identification import Identification, identify
from induction_memory.model.config import ModelConfig
from induction_memory.task import step_rng
from induction_memory.training.run import start
from tests.tiny_runs import TASK, tiny

pytestmark = pytest.mark.slow

FOUR_HEADS = ModelConfig.full(d_model=16, n_ctx=16, n_heads=4)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr("induction_memory.heads.across_runs.RESAMPLES", 20)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    config = {"steps": 4, "checkpoints": "every 4"}
    seeds = {"a": (0, 1), "b": (10, 11), "same-init": (0, 21), "same-data": (30, 1)}
    return [
        start(tiny(FOUR_HEADS, init_seed=init, data_seed=data, eval_seed=99, **config), folder / name, progress=False)
        for name, (init, data) in seeds.items()
    ]


@pytest.fixture(scope="module")
def found(runs):
    return identify(runs, step="all", sequences=4)


def test_the_package_finds_it_and_finds_it_again():
    assert im.heads.identify is identify
    assert im.heads.identify is identify


def test_every_run_step_and_head_has_one_row(found):
    assert len(found.roles) == 4 * 2 * 8
    assert not found.roles.duplicated(["run", "step", "head"]).any()
    assert set(found.mediation["step"]) == {4}
    assert list(found.roles.columns[:4]) == ["run", "step", "layer", "head"]
    assert found.runs["init_seed"].tolist() == [0, 10, 0, 30]


def test_retrained_runs_are_compared_apart(found):
    assert set(found.identifiability["relation"]) == {"independent", "same initialisation", "same data"}
    assert set(found.stability["relation"]) == {"independent", "same initialisation", "same data"}


def test_the_last_step_is_read_when_none_is_asked_for(runs):
    last = identify(runs[0], sequences=4)
    assert set(last.roles["step"]) == {4}
    assert set(identify(str(runs[0].path), step=0, sequences=4).roles["step"]) == {0}


def test_one_run_alone_has_nothing_to_compare(runs):
    alone = identify(runs[:1], sequences=4)
    assert len(alone.matches) == len(alone.stability) == len(alone.identifiability) == 0


def test_tables_are_saved_read_and_joined(found, tmp_path):
    found.save(tmp_path / "tables")
    again = Identification.read(tmp_path / "tables")
    pd.testing.assert_frame_equal(again.shares, found.shares)
    with pytest.raises(InputError, match="names that differ"):
        Identification.join([found, again])


def test_runs_of_one_name_are_told_apart(runs):
    twice = identify([runs[0], runs[0]], sequences=4)
    assert twice.runs["run"].tolist() == ["a", "a (2)"]


@pytest.mark.parametrize(
    "shape", [{"n_heads": 1}, {"n_heads": 2, "n_layers": 4}, {"n_heads": 4, "n_layers": 3, "layer_norm": True}], ids=str
)
def test_any_number_of_heads_and_layers(shape):
    model = im.build(ModelConfig.full(d_model=16, n_ctx=12, d_vocab=7, **shape), seed=0)
    found = identify(model, sequences=3, orders=4)
    assert len(found.roles) == shape["n_heads"] * shape.get("n_layers", 2)
    exact = shape["n_heads"] * shape.get("n_layers", 2) <= 10
    assert found.totals["method"].iloc[0] == ("exact" if exact else "4 orders")


@pytest.mark.usefixtures("unchecked")
def test_more_heads_than_can_be_worked_out_are_sampled_and_say_so():
    model = im.build(ModelConfig.full(d_model=11, n_ctx=8, d_vocab=5, n_heads=11, feed_forward="none"), seed=0)
    found = identify(model, sequences=2, orders=4)
    assert set(found.totals["method"]) == {"4 orders"}
    assert (found.shares["sampling_se"] > 0).any()
    for (game, layer), rows in found.shares.groupby(["game", "layer"]):
        total = found.totals[(found.totals["game"] == game) & (found.totals["layer"] == layer)]["total"].iloc[0]
        assert rows["shapley"].sum() == pytest.approx(total, abs=1e-6)


def test_any_hooked_transformer_with_a_tokens_generator():
    config = HookedTransformerConfig(
        n_layers=2, n_heads=2, d_model=16, d_head=8, d_mlp=32, n_ctx=20, d_vocab=50, act_fn="gelu", seed=0,
        normalization_type="LNPre", positional_embedding_type="rotary", rotary_dim=8, device="cpu",
    )  # fmt: skip
    model = HookedTransformer(config)
    asked = []

    def generate(n):
        asked.append(n)
        return torch.randint(6, (n, 20), generator=torch.Generator().manual_seed(0))

    found = identify(model, batch=generate, sequences=5)
    assert asked == [5]
    previous = found.votes[(found.votes["vote"] == "weights") & (found.votes["role"] == "previous-token")]
    assert previous["score"].isna().all()  # no positional embeddings to read
    by_tokens = identify(model, batch=generate(5))
    pd.testing.assert_frame_equal(by_tokens.roles, found.roles)


def test_other_metrics_and_kinds_of_ablation(runs):
    batch = sample(TASK, 4, step_rng(5, 0))
    for more in ({"metric": "accuracy"}, {"metric": "log-probability", "kind": "zero"}, {"kind": "initial"}):
        assert len(identify(runs[0], batch=batch, **more).roles) == 8


def test_the_map_of_roles_has_a_coloured_cell_per_run_and_head_with_its_share():
    cells = [
        ("a", "L1H1", "previous-token", 1.0, 0.9, False),
        ("a", "L2H1", "induction", 0.5, 1.0, False),
        ("b", "L1H1", "none", 1.0, np.nan, True),
        ("b", "L2H1", "other", 0.0, -0.1, False),
    ]
    roles = pd.DataFrame(cells, columns=["run", "head", "role", "agreement", "share", "distractor"])
    (axes,) = figures.role_map(roles).axes
    assert [to_hex(cell.get_facecolor()) for cell in axes.patches] == [figures.ROLE_COLOURS[cell[2]] for cell in cells]
    assert [cell.get_alpha() for cell in axes.patches] == pytest.approx([1, 0.675, 1, 0.35])
    assert [cell.get_center().tolist() for cell in axes.patches] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert [text.get_text() for text in axes.texts] == ["0.90", "1.00", " (no effect)", "-0.10"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["L1H1", "L2H1"]


def test_bars_of_shared_work_are_stacked_shares_under_the_effective_number_of_heads():
    cells = [
        ("a", "previous-token", "L1H1", 0.75, 1.6),
        ("a", "previous-token", "L1H2", 0.5, 1.6),
        ("a", "previous-token", "L1H3", -0.25, 1.6),
        ("b", "induction", "L2H1", 1.0, 1.0),
    ]
    carriers = pd.DataFrame(cells, columns=["run", "role", "head", "share", "effective"])
    previous, induction = figures.shared_work(carriers).axes
    assert [(bar.get_y(), bar.get_height()) for bar in previous.patches] == [(0, 0.75), (0.75, 0.5), (0, -0.25)]
    assert [text.get_text() for text in previous.texts] == ["L1H1", "L1H2", "1.6"]
    assert [(bar.get_y(), bar.get_height()) for bar in induction.patches] == [(0, 1)]


def test_points_of_stability_and_identifiability_are_the_tables_values():
    roles, measures = ["induction", "none"], ["heads", "effective", "present", "leader", "agreement"]
    cells = [(role, measure, 0.1 * i) for i, (measure, role) in enumerate(product(measures, roles))]
    table = pd.DataFrame(cells, columns=["role", "measure", "value"]).assign(value_low=0.0, value_high=1.0)
    drawn = [points(axes) for axes in figures.stability(table).axes]
    assert drawn[0] == {"heads": [0, 0.1], "effective": pytest.approx([0.2, 0.3])}
    assert [drawn[1][name][0] for name in measures[2:]] == pytest.approx([0.4, 0.6, 0.8])
    rows = [("independent", "index", 0.1), ("independent", "match", 0.9), ("same data", "index", 0.3)]
    scores = pd.DataFrame(rows, columns=["relation", "predictor", "score"]).assign(score_low=0.0, score_high=1.0)
    (axes,) = figures.identifiability(scores).axes
    assert points(axes) == {"independent": [0.1, 0.9], "same data": [0.3]}


def test_the_map_of_mediation_holds_every_effect_but_the_rest(found):
    drawn = np.asarray(figures.mediation(found.mediation).axes[0].images[0].get_array().filled(np.nan))
    run_a = found.mediation[found.mediation["run"] == "a"]
    drawn_of_a = np.asarray(figures.mediation(run_a).axes[0].images[0].get_array().filled(np.nan))
    effects = run_a.loc[run_a["path"] != "rest", "effect"]
    assert sorted(drawn_of_a[np.isfinite(drawn_of_a)]) == pytest.approx(sorted(effects))
    assert drawn.shape == drawn_of_a.shape


def test_lines_over_training_are_the_shapley_values_of_each_head(found):
    shares = found.shares[found.shares["run"] == "a"]
    routes = [("k", 1, "keys"), ("out", 2, "output")]
    for axes, (game, layer, title) in zip(figures.over_training(shares, routes).axes, routes, strict=True):
        own = shares[(shares["game"] == game) & (shares["layer"] == layer)]
        lines = {line.get_label(): line.get_ydata().tolist() for line in axes.lines if line.get_label()[0] != "_"}
        assert lines == {head: rows["shapley"].tolist() for head, rows in own.groupby("head")}
        assert axes.get_title() == title


def points(axes) -> dict[str, list[float]]:
    """Label -> heights of the points with error bars."""
    return {bars.get_label(): bars.lines[0].get_ydata().tolist() for bars in axes.containers}


def test_the_study_of_many_runs_writes_its_page_and_figures(found, runs, tmp_path):
    draw(found, tmp_path)
    text = page(found, runs[0].config, [0.8, 0.9], "a command", "pictures", {"previous-token": 1.2, "induction": 3.6})
    for picture in re.findall(r"\(pictures/(.*?)\)", text):
        assert (tmp_path / picture).stat().st_size > 1000
    assert "4 runs of the model with 4 heads in each of 2 layers" in " ".join(text.split())
    assert "nan" not in text.split("## Roles")[0].split("How many heads per run")[1]


def test_the_study_trains_independent_seeds_and_siblings_of_the_first(runs):
    planned = plan(runs[0].config, seeds=3, siblings=1)
    seeds = {name: (run.train.init_seed, run.train.data_seed) for name, run in planned.items()}
    assert list(seeds) == ["seed-0", "seed-1", "seed-2", "init-0-data-1", "init-1-data-0"]
    assert (
        len({init for init, _ in list(seeds.values())[:3]}) == len({data for _, data in list(seeds.values())[:3]}) == 3
    )
    assert seeds["init-0-data-1"][0] == seeds["seed-0"][0]
    assert seeds["init-1-data-0"][1] == seeds["seed-0"][1]


def test_an_unknown_metric_is_refused(runs, unchecked):
    with pytest.raises(InputError, match="metric: expected one of logit"):
        identify(runs[0], metric="nothing")


def test_mistakes_are_answered_in_one_line(runs):
    with pytest.raises(InputError, match="source: expected at least one"):
        identify([])
    with pytest.raises(InputError, match="step: expected one of the 2 stored steps"):
        identify(runs[0], step=3)
    with pytest.raises(InputError, match="a position of the group in_context"):
        identify(runs[0], batch=torch.arange(16).expand(2, -1))


def test_an_interruption_keeps_the_steps_that_are_done(runs, monkeypatch):
    from induction_memory.heads import identification

    whole, examined = identification._examine, []

    def interrupted(at, **named):
        if len(examined) == 3:
            raise KeyboardInterrupt
        examined.append(at.step)
        return whole(at, **named)

    monkeypatch.setattr(identification, "_examine", interrupted)
    found = identify(runs[:3], step="all", sequences=5)  # no other test has kept these
    assert found.runs["run"].tolist() == ["a", "b"]
    assert found.roles.groupby("run", sort=False)["step"].unique().map(list).tolist() == [[0, 4], [0]]
    assert set(found.mediation["run"]) == {"a"}
