"""The pictures of the paper's Figures 2 to 11 hold what their tables hold."""

import io
from dataclasses import dataclass

import matplotlib.colors
import numpy as np
import pandas as pd
import pytest

from induction_memory.errors import InputError
from induction_memory.paper.figures import (
    dimension,
    freezing,
    global_and_in_context,
    one_step,
    realistic,
    recalls_by_setting,
    setting_colours,
)
from induction_memory.views.figures.curves import COLOURS, RunCurves, drawn_recalls
from induction_memory.views.figures.maps import OTHER, RIGHT, TRIGGER, Panel, induction_maps
from induction_memory.views.figures.memories import Scores, memories

NOTE = "quick scale: d = 64, T = 64"
STEPS = np.arange(0, 41)
STORED = [0, 10, 20, 40]


@dataclass(frozen=True, eq=False)
class Run:
    metrics: pd.DataFrame
    probes: pd.DataFrame


def a_run(seed: int = 0, probes=("W_O2", "W_K2", "W_K1", "W_K1_first64", "W_F_kl")) -> Run:
    rng = np.random.default_rng(seed)
    columns = ("loss", "loss_in_context", "loss_global", "accuracy_in_context")
    metrics = pd.DataFrame({"step": STEPS, **{name: rng.random(len(STEPS)) for name in columns}})
    metrics.loc[metrics["step"] % 10 != 0, "loss_global"] = np.nan
    index = pd.Index(STORED, name="step")
    return Run(metrics, pd.DataFrame({name: rng.random(len(STORED)) for name in probes}, index=index))


def words(figure) -> str:
    drawn = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    return "\n".join(drawn)


def line_at(axes, values) -> object:
    """The line of a panel that holds these values; there must be exactly one."""
    found = [line for line in axes.get_lines() if np.array_equal(np.asarray(line.get_ydata(), float), values)]
    assert len(found) == 1
    return found[0]


def colour(line) -> str:
    return matplotlib.colors.to_hex(line.get_color())


def written(figure) -> bytes:
    """The picture as a file: every text must be one that matplotlib can set."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=40)
    return file.getvalue()


def test_any_object_with_metrics_and_probes_is_a_run():
    assert isinstance(a_run(), RunCurves)
    assert not isinstance("a run", RunCurves)


def test_freezing_has_a_column_an_experiment_and_the_memories_in_their_colours():
    runs = {"nothing frozen": [a_run(0)], "W_O2 frozen": [a_run(1)]}
    figure = freezing(runs, frozen_until=30, note=NOTE)
    above, below = figure.axes[:2], figure.axes[2:]
    assert len(figure.axes) == 4
    assert [axes.get_title() for axes in above] == ["nothing frozen", "$W_O^2$ frozen"]
    for axes, seeds in zip(above, runs.values(), strict=True):
        line_at(axes, seeds[0].metrics["accuracy_in_context"])
    for axes, seeds in zip(below, runs.values(), strict=True):
        for name in ("W_O2", "W_K2", "W_K1", "W_K1_first64"):
            line = line_at(axes, seeds[0].probes[name])
            assert colour(line) == COLOURS[name]
            assert line.get_xdata().tolist() == STORED
        assert axes.get_xlabel() == "iteration"
    assert above[0].get_ylabel() == "in-context accuracy"
    assert NOTE in words(figure)
    assert "seeds" not in words(figure)
    assert written(figure)


def test_freezing_ends_at_a_dotted_line_where_something_was_frozen():
    runs = {"nothing frozen": [a_run(0)], "W_K1 frozen": [a_run(1)]}

    def dotted(figure):
        return [
            [line.get_xdata()[0] for line in axes.get_lines() if line.get_linestyle() == ":"] for axes in figure.axes
        ]

    assert dotted(freezing(runs, frozen_until=30)) == [[], [30], [], [30]]
    assert dotted(freezing(runs, frozen_until=None)) == [[], [], [], []]


def test_several_seeds_are_drawn_as_their_mean_and_range():
    seeds = [a_run(seed) for seed in range(3)]
    figure = freezing({"nothing frozen": seeds})
    values = np.stack([run.probes["W_O2"] for run in seeds])
    line_at(figure.axes[1], pd.DataFrame(values).mean())
    band = figure.axes[1].collections[0].get_paths()[0].vertices
    for i, step in enumerate(STORED):
        at = band[band[:, 0] == step, 1]
        assert at.min() == values[:, i].min()
        assert at.max() == values[:, i].max()
    assert "range of 3 seeds" in words(figure)


def test_seeds_are_averaged_over_the_steps_that_all_of_them_reached():
    whole, part = a_run(0), a_run(1)
    part = Run(part.metrics[part.metrics["step"] <= 20], part.probes.loc[:20])
    figure = freezing({"nothing frozen": [whole, part]})
    assert figure.axes[0].get_lines()[0].get_xdata().tolist() == list(range(21))
    assert figure.axes[1].get_lines()[0].get_xdata().tolist() == [0, 10, 20]


def test_early_positions_are_drawn_once_where_they_are_all_positions():
    run = a_run()
    assert list(drawn_recalls(run.probes)) == ["W_O2", "W_K2", "W_K1", "W_K1_first64"]
    short = Run(run.metrics, run.probes.assign(W_K1_first64=run.probes["W_K1"]))
    assert list(drawn_recalls(short.probes)) == ["W_O2", "W_K2", "W_K1"]
    assert "t < 64" in words(freezing({"nothing frozen": [run]}))
    assert "t < 64" not in words(freezing({"nothing frozen": [short]}))
    assert "t < 64" not in words(realistic(short))


def test_heads_are_drawn_in_the_colour_of_their_memory_and_windows_are_not():
    names = ("W_K1 L1H1", "W_K1 L1H2", "W_K1[0:32]", "W_K2[L1H1>L2H1]", "W_K1_causal", "W_O2_mean")
    run = a_run(probes=names)
    assert drawn_recalls(run.probes) == {"W_K2[L1H1>L2H1]": "W_K2", "W_K1 L1H1": "W_K1", "W_K1 L1H2": "W_K1"}
    recall = realistic(run).axes[2]
    assert {colour(line) for line in recall.get_lines()} == {COLOURS["W_K2"], COLOURS["W_K1"]}
    assert [text.get_text() for text in recall.get_legend().get_texts()] == ["$W_K^2$", "$W_K^1$"]


def test_losses_are_solid_in_context_and_dashed_on_global_tokens():
    left = {"K = 1, fixed frequent": a_run(0), "K = 5, random": a_run(1)}
    centre = {
        f"train {a}, test {b}": pd.Series(np.random.default_rng(i).random(5), index=[0, 10, 20, 30, 40])
        for i, (a, b) in enumerate([("uniform", "uniform"), ("uniform", "bigram"), ("bigram", "uniform")])
    }
    centre["train uniform, test bigram"].iloc[2] = np.nan
    figure = global_and_in_context(left, centre, a_run(2), note=NOTE)
    losses, accuracy, recall, beside = figure.axes
    for label, run in left.items():
        solid, dashed = (
            line_at(losses, run.metrics["loss_in_context"]),
            line_at(losses, run.metrics["loss_global"].dropna()),
        )
        assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
        assert colour(solid) == colour(dashed) == setting_colours(left)[label]
        assert dashed.get_xdata().tolist() == [0, 10, 20, 30, 40]
    styles = {line.get_label(): (line.get_linestyle(), colour(line)) for line in accuracy.get_lines()}
    assert [style for style, _ in styles.values()] == ["-", "--", "--"]  # dashed: not the outputs of training
    assert styles["train uniform, test uniform"][1] == styles["train uniform, test bigram"][1]
    assert line_at(accuracy, centre["train uniform, test bigram"].dropna()).get_xdata().tolist() == [0, 10, 30, 40]
    for name in ("W_O2", "W_K2", "W_K1", "W_K1_first64"):
        line_at(recall, a_run(2).probes[name])
    assert line_at(beside, a_run(2).probes["W_F_kl"]).get_linestyle() == "--"
    assert "d_{KL}" in beside.get_ylabel()
    assert NOTE in words(figure)
    assert written(figure)


def test_without_a_feed_forward_layer_there_is_no_axis_for_its_divergence():
    run = a_run(probes=("W_O2", "W_K2"))
    assert len(global_and_in_context({"a": run}, {}, run).axes) == 3
    assert len(realistic(run).axes) == 3


def test_a_setting_has_one_colour_in_every_figure():
    settings = ["K = 1, fixed frequent", "K = 1, random", "K = 5, random", "K = 5, fixed frequent", "K = 5, fixed rare"]
    assert len(set(setting_colours(settings).values())) == 5
    trained = setting_colours(["train bigram, test uniform", "train uniform, test bigram"])
    assert list(trained.values()) == list(setting_colours(["bigram outputs", "uniform outputs"]).values())
    figure = recalls_by_setting({label: a_run(i) for i, label in enumerate(settings)})
    assert [colour(line) for line in figure.axes[0].get_lines()] == list(setting_colours(settings).values())


def test_recalls_by_setting_draw_the_column_chosen_for_the_second_key():
    fixed, random = a_run(0), a_run(1, probes=("W_K1", "W_K2"))
    fixed.probes["W_K2 drawn"] = [0.1, 0.2, 0.3, 0.4]
    figure = recalls_by_setting({"fixed": fixed, "random": random}, note=NOTE)
    first, second, output = figure.axes
    line_at(first, fixed.probes["W_K1"])
    line_at(first, random.probes["W_K1"])
    line_at(second, fixed.probes["W_K2 drawn"])
    line_at(second, random.probes["W_K2"])
    assert len(second.get_lines()) == 2
    assert len(output.get_lines()) == 1  # the other run has no such probe
    assert "all positions" in first.get_title()
    assert "$Q$" in second.get_title()
    assert NOTE in words(figure)
    assert "$Q$" not in words(recalls_by_setting({"random": random}))
    assert written(figure)


def scores(values, names, memory="W_O2", title="mine"):
    return Scores(memory, title, pd.DataFrame(values, names, names), np.eye(len(names), dtype=bool))


def test_memories_show_inputs_across_boxes_at_the_pairs_and_the_unexpected_by_name():
    values = np.eye(5) * 4
    values[1, 3] = 4.5
    one = scores(values, list("abc$e"))
    figure = memories([one, scores(2 * values, list("abc$e"), title="later")], note=NOTE)
    first, second = figure.axes[:2]
    assert len(figure.axes) == 4  # each with its colour bar
    assert np.array_equal(first.get_images()[0].get_array(), values.T)
    assert first.get_images()[0].get_clim() == second.get_images()[0].get_clim() == (-8, 8)  # of one memory
    boxes, *rings = first.collections
    assert sorted(map(tuple, boxes.get_offsets().tolist())) == [(i, i) for i in range(5)]
    assert [ring.get_offsets().tolist() for ring in rings] == [[[1.0, 3.0]]]
    assert r"b->\$ 4.5" in first.get_xlabel()
    assert [text.get_text() for text in first.get_xticklabels()] == list("abc$e")
    assert NOTE in words(figure)
    assert written(figure)


def test_many_positions_are_labelled_at_some_and_bigrams_are_not_boxed():
    keys = scores(np.eye(256), list(range(1, 257)), memory="W_K1")
    bigrams = Scores("W_F", "W_F", pd.DataFrame(np.ones((3, 3))), np.ones((3, 3), dtype=bool))
    figure = memories([keys, bigrams])
    assert len(figure.axes[0].get_xticks()) < 10
    assert not figure.axes[0].collections  # cells too small for boxes
    assert not figure.axes[1].collections
    assert bigrams.unexpected(0.1) == []
    late = np.eye(4)
    late[3, 0] = late[0, 3] = 9.0  # the key 4 is later than the query 1
    assert scores(late, [1, 2, 3, 4], memory="W_K1").unexpected(1.0) == [(0, 3)]


def test_colours_end_at_a_strong_pair():
    values = np.diag([0.0, -1.0, 2.0, 3.0, 100.0])
    values[0, 4] = 1000  # no pair: no matter
    assert scores(values, list("abcde")).strength == 3
    assert scores(np.zeros((4, 4)), list("abcd")).strength == 1
    with pytest.raises(InputError, match="ideal: expected pairs of shape"):
        Scores("W_O2", "", pd.DataFrame(np.eye(3)), np.eye(2, dtype=bool))


def test_dimension_draws_a_curve_a_dimension_and_names_the_tuned_step_size():
    def curves(seed):
        return {d: pd.Series(np.random.default_rng(seed + d).random(4), index=STORED) for d in (128, 32)}

    fixed, tuned = curves(0), curves(1)
    figure = dimension(fixed, tuned, {32: 3.2, 128: 0.8}, note=NOTE)
    left, right = figure.axes
    for d in (32, 128):
        assert colour(line_at(left, fixed[d])) == colour(line_at(right, tuned[d]))
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["$d$ = 128", "$d$ = 32"]
    assert r"$d$ = 32, $\eta$ = 3.2" in words(figure)
    assert left.get_ylabel() == "$W_O^2$ recall"
    assert NOTE in words(figure)
    assert written(figure)


def test_one_step_is_drawn_against_dimension_and_against_batches():
    rows = [(d, n, d * n / 1000 + 0.01 * r) for d in (32, 64, 128) for n in (1, 4) for r in (-1, 1)]
    table = pd.DataFrame(rows, columns=["d", "batches", "recall"])
    figure = one_step(table, note=NOTE)
    left, right = figure.axes
    assert [line.get_label() for line in left.get_lines()] == ["1", "4"]
    assert [line.get_label() for line in right.get_lines()] == ["32", "64", "128"]
    assert np.allclose(left.get_lines()[1].get_ydata(), [0.128, 0.256, 0.512])  # means of the repetitions
    assert np.allclose(right.get_lines()[2].get_ydata(), [0.128, 0.512])
    assert right.get_xscale() == "log"
    assert [label.get_text() for label in right.get_xticklabels()] == ["1", "4"]
    assert NOTE in words(figure)
    assert written(figure)


def test_orthonormal_embeddings_have_a_curve_but_no_place_on_the_axis_of_dimensions():
    table = pd.DataFrame({"d": [32, 64, np.inf], "batches": [1, 1, 1], "recall": [0.1, 0.2, 1.0]})
    left, right = one_step(table).axes
    assert left.get_lines()[0].get_xdata().tolist() == [32, 64]
    assert [line.get_label() for line in right.get_lines()] == ["32", "64", r"$\infty$"]


def test_one_step_names_the_columns_it_needs():
    with pytest.raises(InputError, match="columns d, batches and recall"):
        one_step(pd.DataFrame({"d": [1], "recall": [0.5]}))


def test_the_realistic_model_has_loss_accuracy_and_recall():
    run = a_run()
    figure = realistic(run, note=NOTE)
    loss, accuracy, recall, beside = figure.axes
    assert line_at(loss, run.metrics["loss_in_context"]).get_linestyle() == "-"
    assert line_at(loss, run.metrics["loss_global"].dropna()).get_linestyle() == "--"
    line_at(accuracy, run.metrics["accuracy_in_context"])
    line_at(recall, run.probes["W_K1"])
    line_at(beside, run.probes["W_F_kl"])
    assert [axes.get_ylabel() for axes in (loss, accuracy, recall)] == ["loss", "in-context accuracy", "memory recall"]
    assert NOTE in words(figure)
    assert written(figure)


def test_a_loss_that_was_not_measured_has_no_place_in_the_legend():
    run = a_run()
    run = Run(run.metrics.drop(columns="loss_global"), run.probes)
    assert [text.get_text() for text in realistic(run).axes[0].get_legend().get_texts()] == ["in-context"]


def a_panel(text: str, title: str = "", trigger: str = "a") -> Panel:
    n = len(text)
    right, other = np.zeros((n, n), dtype=bool), np.zeros((n, n), dtype=bool)
    right[2, 1], other[2, 0] = True, True
    marked = np.array([c == trigger for c in text])
    return Panel(title, np.eye(n), list(text), right, other, marked, ~marked & False)


def test_each_map_has_its_own_sequence_boxes_and_title():
    panels = [a_panel("aba", "layer 1"), a_panel("xy z$", "layer 2"), a_panel("aaaa", "random")]
    figure = induction_maps(panels, columns=3, note=NOTE)
    maps = figure.axes[:3]
    assert len(figure.axes) == 4  # and one scale
    assert [axes.get_title() for axes in maps] == ["layer 1", "layer 2", "random"]
    assert [label.get_text() for label in maps[1].get_xticklabels()] == ["x", "y", "␣", "z", "$"]
    assert maps[0].get_yticklabels()[0].get_color() == TRIGGER
    marks = {
        (type(mark).__name__, *mark.get_center()): matplotlib.colors.to_hex(mark.get_edgecolor())
        for mark in maps[2].patches
    }
    assert marks == {("Rectangle", 1.0, 2.0): RIGHT, ("Circle", 0.0, 2.0): OTHER}
    assert maps[1].get_images()[0].get_array().mask[0].tolist() == [False, True, True, True, True]
    assert NOTE in words(figure)
    assert "the right output" in words(figure)
    assert written(figure)


def test_maps_fill_rows_of_the_given_width():
    figure = induction_maps([a_panel("aba", f"head {i}") for i in range(5)], columns=4)
    tops = [round(axes.get_position().y0, 6) for axes in figure.axes[:5]]
    assert len(set(tops[:4])) == 1
    assert tops[4] < tops[0]
    assert [axes.get_xlabel() for axes in figure.axes[:5]] == ["", "key", "key", "key", "key"]
    positions = [axes.get_position() for axes in figure.axes[:5]]
    assert all(0 <= box.x0 < box.x1 <= 1 and 0 <= box.y0 < box.y1 <= 1 for box in positions)


def test_a_panel_must_match_its_tokens():
    with pytest.raises(InputError, match=r"panel\.triggers: expected 3 positions"):
        Panel("", np.eye(3), list("abc"), *[np.zeros((3, 3), dtype=bool)] * 2, *[np.zeros(2, dtype=bool)] * 2)


def test_nothing_to_draw_is_the_callers_mistake():
    for draw in (lambda: freezing({}), lambda: recalls_by_setting({}), lambda: induction_maps([], 1)):
        with pytest.raises(InputError, match="at least one"):
            draw()
    with pytest.raises(InputError, match="seed"):
        freezing({"nothing frozen": []})
