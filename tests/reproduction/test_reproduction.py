"""The reproduction on small runs: plan, records, training what is missing, figures, page, what ships."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analyses.tools.explanations import explained
from induction_memory import load, probes
from induction_memory.errors import DamagedError, InputError
from induction_memory.experiment.presets import PRESETS, preset, with_seed
from induction_memory.paper import measurement, plan, reproducing
from induction_memory.paper import records as store
from induction_memory.paper.auditing import with_shipped
from induction_memory.paper.claims.claim import COLUMNS
from induction_memory.paper.measurement import make_record
from induction_memory.paper.records import MissingRunError, Records, continued
from induction_memory.paper.reproduction_page import page
from induction_memory.probes.arbitrating import AT_TRIGGERS
from induction_memory.sweep.plan import cost
from induction_memory.task.sampler import sample, step_rng
from induction_memory.training.run import start
from tests.reproduction.conftest import tiny

pytestmark = pytest.mark.slow


def test_every_panel_has_its_runs():
    drawn = {name for presets in plan.FIGURES.values() for name in presets}
    other = "-parallel"  # a variant of Figure 10's model that no figure draws
    assert drawn == {n for n in PRESETS if n.startswith(("figure-", "late-keys-")) and not n.endswith(other)}


@pytest.mark.parametrize(
    ("names", "meant"),
    [([], list(plan.FIGURES)), (["all"], list(plan.FIGURES)), (["3", "figure-10", "figure_03"], [3, 10])],
)
def test_figures_are_named_in_several_ways(names, meant):
    assert plan.figures(names) == meant


@pytest.mark.parametrize("name", ["1", "12", "three", "", "3.5"])
def test_a_figure_that_is_not_there_is_refused(name):
    with pytest.raises(InputError, match="figure: expected all, or one of 2, 3"):
        plan.figures([name])


def test_runs_are_planned_once_and_repeated_where_the_paper_scale_asks():
    names = [job.name for job in plan.jobs([4, 5, 6, 7], "paper")]
    assert len(names) == len(set(names)) == 10 + 3 * 12
    assert len(plan.jobs([3], "paper")) == 23
    assert len(plan.jobs([3], "quick")) == 10
    assert {job.seed for job in plan.jobs([3], "paper")} == {0, 1, 2}
    assert {job.seed for job in plan.jobs([11], "paper")} == {0}
    assert all(job.config.task.length == 64 for job in plan.jobs([3, 8], "quick"))
    assert all(job.config.train.threads == 1 for job in plan.jobs([2], "paper"))


def test_a_record_survives_the_disk(trained):
    name = "figure-4-k5-fixed-frequent-seed-0"
    made, kept = make_record(load(trained / name), name), store.read(trained / "records" / name)
    assert kept.config == made.config
    assert kept.fingerprint == made.fingerprint
    assert "W_K2_triggers" in kept.probes
    assert len(kept.metrics) == 5
    for ours, theirs in ((made.metrics, kept.metrics), (made.probes, kept.probes)):
        same = ours.dropna(axis="columns", how="all")
        assert not [name for name in theirs if "_norm_" in name]
        assert list(same.columns) == list(theirs.columns)
        np.testing.assert_allclose(theirs.to_numpy(float), same.to_numpy(float), rtol=1e-6, equal_nan=True)
    for key, value in made.last.items():
        assert kept.last[key] == pytest.approx(value, rel=1e-6, nan_ok=True)


def test_a_record_says_what_happens_over_the_positions_of_a_picture(trained, monkeypatch):
    monkeypatch.setattr(plan, "LETTERS", 6)
    run = load(trained / "figure-4-uniform-seed-0")
    found = make_record(run, "x").last
    batch, model = sample(run.task, measurement.SEQUENCES, step_rng(run.config.train.eval_seed, 0)), run.model(4)
    predicted = model(batch.tokens).argmax(-1).tolist()
    right = []
    for i, tokens in enumerate(batch.tokens.tolist()):
        for t, token in enumerate(tokens):
            if batch.in_context[i, t] and tokens.index(token) < 6:
                right.append(predicted[i][t] == int(batch.targets[i, t]))
    assert len(right) > 20
    assert found["accuracy_in_context_drawn"] == pytest.approx(np.mean(right))
    short = probes.table(run, "previous_token_argmax1", step=[4], task=replace(run.task, length=6))
    assert found["previous_token_argmax1_drawn"] == pytest.approx(short["value"].iloc[0])


def test_a_record_says_what_a_vanilla_transformer_prefers(tmp_path, monkeypatch):
    """Outputs among the three likeliest are measured on chosen sequences: the numbers are those of all sequences."""
    monkeypatch.setattr(measurement, "BATCHES", 2)
    monkeypatch.setattr(measurement, "TO_FIND_LIKELY", 512)
    preset = plan.TWO_LAYERS["random"]
    run = start(tiny(preset, 0, "quick"), tmp_path / "run", progress=False)
    record = make_record(run, f"{preset}-seed-0")
    everything = probes.arbitration(run, batch=sample(run.task, 512, step_rng(run.config.train.eval_seed, 0)))
    everything = everything.set_index(["question", "rank"])
    for question in AT_TRIGGERS:
        for ranks in ("0", "1 to 2", "0 to 2"):
            value, error = everything.loc[(question, ranks), ["value", "value_se"]]
            assert record.last[f"{question}, rank {ranks}"] == pytest.approx(value)
            assert record.errors[f"{question}, rank {ranks} over sequences"] == pytest.approx(
                error, rel=0.1, nan_ok=True
            )
    assert "second occurrence, rank 3 or more" in record.last
    assert "copying, rank 1 to 2 over sequences" in record.errors


def test_a_record_is_asked_for_accuracy_recall_and_births(trained):
    run = store.read(trained / "records" / "figure-4-uniform-seed-0")
    steps = np.arange(0, 50, 10)
    curve = pd.DataFrame({"W_O2": [0.0, 0.6, 0.4, 0.8, 1.0]}, index=pd.Index(steps, name="step"))
    metrics = pd.DataFrame({"step": range(41), "accuracy_in_context": np.arange(41) / 40})
    run = replace(run, probes=curve, metrics=metrics)
    assert run.recall("W_O2") == 1.0
    assert run.recall("W_O2", 12) == 0.6
    assert run.reaches("W_O2", 0.5) == 30
    assert run.reaches("W_O2", 1.1) == float("inf")
    assert run.accuracy() == pytest.approx(np.mean([s / 40 for s in range(21, 41)]))
    assert run.accuracy(0, 10) == pytest.approx(np.mean([s / 40 for s in range(11)]))
    assert run.mean_recall("W_O2") == pytest.approx(np.mean([0.3, 0.5, 0.6, 0.9]))


def test_records_are_found_by_preset(trained):
    found = store.read_all(trained / "records")
    assert len(found) == 21
    assert found.one("figure-4-uniform").name == "figure-4-uniform-seed-0"
    assert [run.name for run in found.of("figure-4-k1-random")] == ["figure-4-k1-random-seed-0"]
    with pytest.raises(MissingRunError, match="figure-10-seed-0"):
        found.of("figure-10")


def test_the_record_of_a_run_that_went_on_begins_with_the_one_before(trained):
    whole = store.read(trained / "records" / "figure-4-uniform-seed-0")

    def part(first: int, last: int, seconds: float):
        metrics = whole.metrics.loc[whole.metrics["step"].between(first, last)]
        return replace(whole, metrics=metrics, probes=whole.probes.loc[first:last], seconds=seconds)

    joined = continued(part(0, 2, 7.0), part(2, 4, 5.0))
    pd.testing.assert_frame_equal(joined.metrics, whole.metrics)
    pd.testing.assert_frame_equal(joined.probes, whole.probes)
    assert joined.seconds == 12
    assert continued(replace(part(0, 2, 7.0), seconds=None), part(2, 4, 5.0)).seconds is None


def test_a_broken_record_is_named(trained, tmp_path):
    for name in ("metrics.csv", "probes.csv"):
        (tmp_path / name).write_text("step\n1\n")
    for written in ("{", "{}", "[]", '{"config": 3, "last": {"a": "b"}}'):
        (tmp_path / "record.json").write_text(written)
        with pytest.raises(DamagedError, match="expected what was written, got no record of a run"):
            store.read(tmp_path)


def test_what_is_there_is_not_trained_again(trained, small, monkeypatch):
    monkeypatch.setattr(reproducing, "_work", lambda *_: pytest.fail("trained again"))
    found = reproducing.gather(plan.jobs([4, 5], "quick"), trained)
    assert len(found) == len(plan.FIGURES[4])


def test_a_run_with_other_settings_is_refused(trained, small, monkeypatch):
    for setting, said in (
        ("learning_rate=0.3", r"learning_rate = 0\.3, as in figure-4-uniform"),
        ("steps=3", "steps = 3"),
    ):
        monkeypatch.setattr(plan, "_config", lambda *given, set_=setting: tiny(*given).with_settings([f"train.{set_}"]))
        with pytest.raises(InputError, match=f"figure-4-uniform-seed-0: expected train.{said}"):
            reproducing.gather(plan.jobs([6], "quick"), trained)


def test_what_is_missing_is_trained_in_processes_once_and_on_when_more_steps_are_asked_for(small, tmp_path):
    (job,) = plan.jobs([7], "quick")[:1]
    found = reproducing.gather([job], tmp_path, workers=1, progress=False)
    assert list(found) == ["figure-4-uniform-seed-0"]
    assert load(tmp_path / "figure-4-uniform-seed-0").finished
    before = (tmp_path / "records" / job.name / "record.json").stat().st_mtime_ns
    reproducing.gather([job], tmp_path, workers=1, progress=False)
    assert (tmp_path / "records" / job.name / "record.json").stat().st_mtime_ns == before
    longer = [replace(job, config=job.config.with_settings(["train.steps=6"]))]
    assert len(reproducing.gather(longer, tmp_path, train=False)) == 0  # a run of fewer steps counts as unfinished
    found = reproducing.gather(longer, tmp_path, workers=1, progress=False)
    assert found.one("figure-4-uniform").steps == 6
    assert len(found.one("figure-4-uniform").metrics) == 7


def test_without_training_only_what_is_there_is_read(small, tmp_path):
    assert len(reproducing.gather(plan.jobs([10], "quick"), tmp_path, train=False)) == 0


def test_cost_grows_with_the_work():
    small_run, large_run = plan.jobs([4], "quick")[0].config, plan.jobs([4], "paper")[0].config
    full = plan.jobs([2], "paper")[0].config
    assert cost(small_run) * 16 < cost(large_run) < cost(full)


def test_figures_and_page_from_small_runs(trained, small, tmp_path):
    made = reproducing.reproduce([4, 5, 6, 7, 10], "quick", runs=trained.parent, out=tmp_path, train=False)
    assert sorted(made.pictures) == [4, 5, 6, 7]
    assert all(path.stat().st_size > 10_000 for paths in made.pictures.values() for path in paths)
    assert "figure-10-seed-0" in made.reasons[10]
    text = made.page.read_text()
    assert "![Figure 7](reproduction/figure-07.png)" in text
    assert "Not drawn: figure-10-seed-0 has not been trained." in text
    assert "quick" in text
    for row in made.verdicts.dropna(subset="value").to_dict("records"):
        measure = row["measure"].replace("|", "\\|") + (" (ours)" if row["whose"] == "ours" else "")
        assert f"| {measure} | {row['value']:.3f} |" in text


def test_without_any_run_nothing_is_drawn_and_the_page_says_why(tmp_path):
    made = reproducing.reproduce([2, 3, 4, 5, 6, 7, 8, 10, 11], "quick", runs=tmp_path, out=tmp_path, train=False)
    assert made.pictures == {}
    assert all(reason.endswith("has not been trained") for reason in made.reasons.values())
    needs_none = made.verdicts["claim"].isin(["starts-uniform", "weighs-alike", "fewer-outputs"])
    assert set(made.verdicts.loc[~needs_none, "verdict"]) == {"no run"}
    assert "no run" not in set(made.verdicts.loc[needs_none, "verdict"])


def test_pictures_are_of_finished_runs_of_the_preset_or_of_what_ships(trained, small):
    job = plan.jobs([7], "quick")[0]
    records = store.read_all(trained / "records")
    assert reproducing._trained(job, trained, records).path == trained / job.name
    other = replace(job, config=job.config.with_settings(["train.steps=9"]))
    with pytest.raises(MissingRunError):
        reproducing._trained(other, trained, records)


def test_what_ships_stands_in_for_runs_that_are_not_there(tmp_path):
    made = reproducing.reproduce([7], "paper", runs=tmp_path, out=tmp_path, train=False)
    assert made.pictures[7][0].stat().st_size > 10_000
    assert set(made.verdicts["claim"]) == {"diagonals"}
    assert "no run" not in set(made.verdicts["verdict"])


def test_the_page_counts_the_verdicts():
    rows = [("a", "paper", 1.0, 0.1, "holds"), ("b", "paper", 0.5, 0.1, "does not hold"), ("c", "ours", 1, 0, "holds")]
    verdicts = pd.DataFrame(
        [("compete", 4, a, whose, value, error, "seeds", "", said) for a, whose, value, error, said in rows],
        columns=list(COLUMNS),
    )
    text = page([4], "paper", Records([]), verdicts, {4: "x.png"}, {})
    whole = " ".join(text.split())
    assert "Of 2 measurements of the paper's claims, 1 hold and 1 do not hold." in whole
    assert "Of 1 measurements of our own, 1 hold." in whole
    assert "| b | 0.500 | ± 0.100 over seeds |  | **does not hold** |" in text
    assert "| c (ours) |" in text


@pytest.mark.parametrize("verdict", ["does not hold", "holds"])
def test_the_page_of_the_docs_says_why_a_claim_does_not_hold(verdict):
    row = ("two-layers", 2, "a", "paper", 0.5, 0.1, "seeds", "at least 1", verdict)
    records = with_shipped(Records([]), plan.jobs([2], "paper"))
    verdicts = pd.DataFrame([row], columns=list(COLUMNS))
    text = explained(page([2], "paper", records, verdicts, {2: "x.png"}, {}), records, verdicts)
    said = "last 20 batches.\n\nExplanation: With fixed triggers, accuracy is 1.000 at triggers first"
    assert (said in text) == (verdict == "does not hold")


def test_scripts_say_what_they_draw():
    scripts = sorted(Path(__file__).parents[2].glob("analyses/figure_*.py"))
    assert [int(path.stem[-2:]) for path in scripts] == list(plan.FIGURES)
    for path in scripts:
        assert f"run({int(path.stem[-2:])}, __doc__)" in path.read_text()


def test_another_seed_of_a_preset_with_a_graft_keeps_the_embeddings_that_the_graft_belongs_to(tmp_path):
    config = with_seed(preset("late-keys-k5-grafted").config, 1).with_settings(["train.steps=1", "train.batch_size=8"])
    run = start(config, tmp_path / "run", progress=False)
    assert probes.recall(run, "W_O2").loc[0, "W_O2"] > 0.6
    assert config.train.data_seed == with_seed(preset("late-keys-k5").config, 1).train.data_seed
