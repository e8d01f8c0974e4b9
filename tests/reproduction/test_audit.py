"""The audit of what ships: what is measured anew cannot be changed by hand, and what is sealed cannot unnoticed."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analyses.tools import shipping
from induction_memory import load
from induction_memory.errors import InputError
from induction_memory.paper import auditing as module
from induction_memory.paper import records as record_files
from induction_memory.paper.auditing import AGREE, audit, distance, of_exact_steps
from induction_memory.paper.claims import memories
from induction_memory.paper.measurement import make_record
from induction_memory.paper.plan import FIGURES, TRAJECTORIES, jobs
from induction_memory.trajectory.search import SHIPPED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measured():
    """What the shipped trajectories give, by their records: docs/paper.md, which is run, measures all of them anew."""
    sealed, found = record_files.read_all(SHIPPED / "records"), {}
    for name, preset in TRAJECTORIES.items():
        record = sealed.one(preset)
        found[preset] = replace(record, probes=record.probes.loc[load(name).steps])
    return found


def measure_once(measured, one_step, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memories, "repeated", one_step)
    for place in (module, shipping):
        patch.setattr(place, "make_record", lambda _, name: measured[name.removesuffix("-seed-0")])


@pytest.fixture
def quick(measured, one_step, monkeypatch):
    """Nothing is measured twice."""
    measure_once(measured, one_step, monkeypatch)


@pytest.fixture(scope="module")
def intact(measured, one_step):
    """The audit of what ships."""
    with pytest.MonkeyPatch.context() as patch:
        measure_once(measured, one_step, patch)
        return audit()


@pytest.fixture
def copy(tmp_path) -> Path:
    """What ships, its records to be changed."""
    for name in TRAJECTORIES:
        (tmp_path / name).symlink_to(SHIPPED / name)
    shutil.copytree(SHIPPED / "records", tmp_path / "records")
    return tmp_path


def change(folder: Path, record: str, name: str, value: float) -> None:
    """Change one number of the last step by hand."""
    path = folder / "records" / record / "record.json"
    about = json.loads(path.read_text())
    about["last"][name] = value
    path.write_text(json.dumps(about))


def test_what_ships_is_sealed_and_every_row_has_its_source(intact):
    found = intact
    assert found.problems == []
    assert set(found.compared["trajectory"]) == set(TRAJECTORIES)
    assert set(found.verdicts["source"]) == {"recomputed", "sealed"}
    assert "no run" not in set(found.verdicts["verdict"])
    assert "0 problems" in found.summary


@pytest.mark.parametrize("figure", FIGURES)
def test_one_figure_is_judged_as_among_all_of_them_and_measures_its_own_runs_alone(quick, intact, figure):
    found = audit(figures=[figure])
    among_all = intact.verdicts.loc[(intact.verdicts["figure"] == figure).to_numpy()].reset_index(drop=True)
    pd.testing.assert_frame_equal(found.verdicts, among_all, check_dtype=False)
    shown = {job.name for job in jobs([figure], "paper")}
    assert set(found.compared["record"]) == shown & set(intact.compared["record"])


def test_a_number_changed_by_hand_flips_no_verdict_and_is_named(quick, intact, copy):
    before = intact.verdicts
    change(copy, "figure-11-seed-0", "effective_heads_induction", 1.0)
    change(copy, "figure-2-fixed-seed-0", "induction_mass2", 0.1)
    found = audit(copy)
    assert found.verdicts["verdict"].tolist() == before["verdict"].tolist()
    assert found.broken == ["figure-11-seed-0", "figure-2-fixed-seed-0"]
    named = " ".join(found.problems)
    assert re.search(r"four-heads: differs from its record by 0\.\d+ \(effective_heads_induction\)", named)
    assert "vanilla-fixed: differs from its record" in named


def test_a_trajectory_without_its_record_is_a_problem(quick, copy):
    shutil.rmtree(copy / "records" / "figure-11-seed-0")
    assert any("four-heads" in problem and "no record" in problem for problem in audit(copy).problems)


def test_a_trajectory_that_is_not_there_is_a_problem(quick, copy):
    (copy / "four-heads").unlink()
    assert audit(copy).problems == [f"four-heads: not in {copy}, so it was not measured again"]


def test_a_sealed_record_that_was_changed_is_named_beside_its_rows(quick, copy):
    path = copy / "records" / "figure-4-bigram-seed-0" / "metrics.csv"
    path.write_text(path.read_text().replace("0.", "0.9", 1))
    found = audit(copy)
    assert found.problems == ["figure-4-bigram-seed-0: its record differs from its checksum"]
    rows = found.verdicts.loc[found.verdicts["claim"] == "generalises"]
    assert rows["source"].tolist() == ["recomputed", "seal broken", "seal broken"]


def test_recomputed_rows_do_not_depend_on_any_sealed_number(quick, intact, copy):
    """Every number of every record is replaced by another; the rows that say "recomputed" do not move."""
    rng = np.random.default_rng(0)
    before = intact.verdicts.set_index(["claim", "measure"])
    for name, record in record_files.read_all(copy / "records").items():
        probes = record.probes * 0 + rng.uniform(0.1, 0.9, record.probes.shape)
        metrics = record.metrics.drop(columns="step")
        metrics = (metrics * 0 + rng.uniform(0.1, 0.9, metrics.shape)).assign(step=record.metrics["step"])
        last = {key: float(rng.uniform(0.1, 0.9)) for key in record.last}
        scrambled = replace(record, probes=probes, metrics=metrics, last=last)
        record_files.write(scrambled, copy / "records" / name)
    after = audit(copy).verdicts.set_index(["claim", "measure"])
    recomputed = before[before["source"] == "recomputed"]
    assert len(recomputed) > 25
    assert recomputed.equals(after.loc[recomputed.index])
    sealed = before.index.difference(recomputed.index).intersection(after.index)  # without a fall no share is judged
    same = np.isclose(before.loc[sealed, "value"], after.loc[sealed, "value"])
    kept = set(sealed[same].get_level_values("claim"))
    # A share of runs may come out the same, and the last steps of a branch are its own, whatever came before.
    assert kept <= {"second-before-first", "two-layers"}
    assert set(after.loc[sealed, "source"]) == {"seal broken"}


def test_without_runs_the_audit_fails(one_step_once, tmp_path):
    found = audit(tmp_path)
    assert "no run" in set(found.verdicts["verdict"])
    assert len(found.problems) == 1 + len(TRAJECTORIES)
    assert "measurements could not be checked" in found.problems[0]


def test_a_shipped_run_agrees_with_its_record():
    """One of those that docs/paper.md measures."""
    run = load("four-heads")
    kept = record_files.read(SHIPPED / "records" / "figure-11-seed-0")
    assert distance(kept, of_exact_steps(run, make_record(run, kept.name)))[0] <= AGREE


def test_a_seal_covers_every_file(copy):
    records = copy / "records"
    assert record_files.broken_records(records) == set()
    (records / "figure-3-seed-0" / "probes.csv").unlink()
    shutil.copytree(records / "figure-3-seed-1", records / "new")
    assert record_files.broken_records(records) == {"figure-3-seed-0", "new"}
    (records / record_files.SEALS).unlink()
    assert "figure-3-seed-1" in record_files.broken_records(records)


def test_the_distance_names_the_column_that_differs(measured):
    record = measured["figure-3"]
    assert distance(record, record)[0] == 0
    other = record.probes.copy()
    other.iloc[3, other.columns.get_loc("W_O2")] += 0.25
    assert distance(replace(record, probes=other), record) == (pytest.approx(0.25), "W_O2")
    shorter = replace(record, metrics=record.metrics.iloc[:-1])
    assert distance(shorter, record)[0] == np.inf


def test_records_get_the_measures_that_are_younger_than_they_are(quick, tmp_path):
    shutil.copytree(SHIPPED / "vanilla-fixed", tmp_path / "vanilla-fixed", ignore=shutil.ignore_patterns(".cache"))
    place = tmp_path / "records" / "figure-2-fixed-seed-0"
    shutil.copytree(SHIPPED / "records" / place.name, place)
    whole, younger = record_files.read(place), "copying, rank 0"
    older = {name: value for name, value in whole.last.items() if name != younger}
    record_files.write(replace(whole, last=older), place)
    assert shipping.complete(["vanilla-fixed"], tmp_path) == [place.name]
    assert record_files.read(place).last == pytest.approx(dict(whole.last), abs=1e-6)
    assert record_files.broken_records(tmp_path / "records") == set()
    assert shipping.complete(["vanilla-fixed"], tmp_path) == []
    record_files.write(replace(whole, last={**whole.last, "loss": 1.0}), place)
    with pytest.raises(
        InputError, match=r"^vanilla-fixed: expected the numbers of its record within 1e-05, got .*loss"
    ):
        shipping.complete(["vanilla-fixed"], tmp_path)
