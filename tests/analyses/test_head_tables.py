"""The tables behind docs/heads.md: sealed, and enough to make the page."""

import shutil
from pathlib import Path

import pytest

from analyses.tools import heads_study
from induction_memory.errors import InputError
from induction_memory.paper import records
from induction_memory.trajectory.search import SHIPPED

TABLES = SHIPPED / records.HEADS


@pytest.mark.slow
def test_the_page_of_heads_is_the_one_that_the_shipped_tables_give():
    page = Path(__file__).parents[2] / "docs" / "heads.md"
    assert heads_study.read(TABLES).page(SHIPPED / records.FOLDER) == page.read_text(encoding="utf-8")


def test_a_study_is_read_as_it_was_written(tmp_path):
    study = heads_study.read(TABLES)
    heads_study.write(study, tmp_path / "heads")
    again = heads_study.read(tmp_path / "heads")
    assert (again.config, again.command, again.accuracies) == (study.config, study.command, study.accuracies)
    assert again.found.shares.equals(study.found.shares)
    assert records.broken_files(tmp_path / "heads") == []


def test_a_changed_a_missing_and_an_added_table_are_named(tmp_path):
    folder = tmp_path / "heads"
    shutil.copytree(TABLES, folder)
    assert records.broken_files(folder) == []
    (folder / "roles.parquet").unlink()
    (folder / "study.json").write_text("{}")
    shutil.copy(folder / "runs.parquet", folder / "more.parquet")
    assert records.broken_files(folder) == ["more.parquet", "roles.parquet", "study.json"]
    with pytest.raises(InputError, match="expected the tables of the study of heads"):
        heads_study.read(folder)
    assert records.broken_files(tmp_path / "nowhere") == []
