"""The tables behind docs/heads.md: sealed, and enough to make the page."""

import shutil
from pathlib import Path

import pytest

from induction_memory.errors import InputError
from induction_memory.paper import auditing, records
from induction_memory.trajectory.search import SHIPPED

TABLES = SHIPPED / auditing.FOLDER


@pytest.mark.slow
def test_the_page_of_heads_is_the_one_that_the_shipped_tables_give():
    page = Path(__file__).parents[2] / "docs" / "heads.md"
    assert auditing.read(TABLES).page(SHIPPED / records.FOLDER) == page.read_text(encoding="utf-8")


def test_a_study_is_read_as_it_was_written(tmp_path):
    study = auditing.read(TABLES)
    auditing.write(study, tmp_path / "heads")
    again = auditing.read(tmp_path / "heads")
    assert (again.config, again.command, again.accuracies) == (study.config, study.command, study.accuracies)
    assert again.found.shares.equals(study.found.shares)
    assert auditing.broken_seals(tmp_path / "heads") == []


def test_a_changed_a_missing_and_an_added_table_are_named(tmp_path):
    folder = tmp_path / "heads"
    shutil.copytree(TABLES, folder)
    assert auditing.broken_seals(folder) == []
    (folder / "roles.parquet").unlink()
    (folder / "study.json").write_text("{}")
    shutil.copy(folder / "runs.parquet", folder / "more.parquet")
    assert auditing.broken_seals(folder) == ["heads/more.parquet", "heads/roles.parquet", "heads/study.json"]
    with pytest.raises(InputError, match="expected the tables of the study of heads"):
        auditing.read(folder)
    assert auditing.broken_seals(tmp_path / "nowhere") == []
