"""What `make release` checks of the two archives and of the changelog."""

import tarfile
import zipfile

import induction_memory
from tests import release


def archives(folder, left_out="", extra=()):
    """A wheel and a source archive that hold what a release holds, but for one part."""
    version = induction_memory.__version__
    inside = [
        f"induction_memory/{part}x" if part.endswith("/") else f"induction_memory/{part}" for part in release.IN_WHEEL
    ]
    with zipfile.ZipFile(folder / "induction_memory-py3-none-any.whl", "w") as wheel:
        for name in [*inside, *extra]:
            if left_out not in name or not left_out:
                wheel.writestr(name, "")
        wheel.writestr("induction_memory.dist-info/METADATA", f"Name: x\nVersion: {version}\n\n# induction_memory\n")
    with tarfile.open(folder / "induction_memory.tar.gz", "w:gz") as source:
        for name in release.IN_SOURCE:
            if left_out not in name or not left_out:
                source.addfile(tarfile.TarInfo(f"induction_memory-{version}/{name}"))
    return folder


def test_whole_archives_pass(tmp_path):
    assert release.problems(archives(tmp_path)) == []


def test_a_missing_marker_a_missing_licence_and_a_stray_folder_are_named(tmp_path):
    for number, (left_out, extra, line) in enumerate(
        (
            ("py.typed", (), "wheel: no py.typed"),
            ("LICENSE", (), "source archive: no LICENSE"),
            ("", ("tests/__init__.py",), "wheel: holds tests/__init__.py"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert release.problems(archives(folder, left_out, extra)) == [line]


def test_an_empty_folder_is_no_release(tmp_path):
    assert release.problems(tmp_path)[0].endswith("expected one wheel and one source archive, got 0 and 0")


def test_a_version_is_released_when_its_section_has_a_date():
    assert release.unreleased("# Changelog\n\n## 0.1.0 (unreleased)\n", "0.1.0")
    assert not release.unreleased("# Changelog\n\n## 0.1.0 (2026-12-01)\n", "0.1.0")
    assert release.unreleased("# Changelog\n\n## 0.1.1 (2026-12-01)\n", "0.1.0")


def test_the_uses_of_the_readme_are_found_and_need_only_the_run_inside_the_package():
    code, commands = release.uses((release.ROOT / "README.md").read_text(encoding="utf-8"))
    assert code.count("im.") >= 4
    assert [line.split()[1] for line in commands] == ["attention", "probe", "attention", "ablate", "why"]
    assert all("induction-small" in line for line in (*commands, code))


def test_only_the_tag_of_the_version_is_published(tmp_path, capsys):
    assert release.main(archives(tmp_path), "v9") == 1
    assert f"the tag v9 is not v{induction_memory.__version__}" in capsys.readouterr().out
