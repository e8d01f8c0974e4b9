"""`make release`: check what `python -m build` made, and try the wheel in an empty environment.

    python -m tests.release dist
    python -m tests.release dist --tag v0.1.0     # instead of trying it: may it be published under this tag?

The environment is empty but for what the wheel asks for, at the versions of constraints.txt. The wheel is used from a
folder without the source tree: the README's code and commands must work on the run that it brings, a mistake is refused
in one line, and for a run that only the source has, that line says how to get it.
"""

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import induction_memory
from induction_memory.trajectory.search import SOURCE

ROOT = Path(__file__).parents[1]
IN_WHEEL = ("py.typed", "views/page/static/", "trajectory/data/induction-small/manifest.json", "task/data/")
IN_SOURCE = ("LICENSE", "README.md", "pyproject.toml", "induction_memory/__init__.py")
LARGEST = 4_000_000
CAPTURED: dict[str, Any] = {"capture_output": True, "text": True, "check": False}


def problems(dist: Path) -> list[str]:
    """What is wrong with the two archives, one line each."""
    found = []
    wheels, sources = list(dist.glob("*.whl")), list(dist.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sources) != 1:
        return [f"{dist}: expected one wheel and one source archive, got {len(wheels)} and {len(sources)}"]
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
    found += [
        f"wheel: no {part}" for part in IN_WHEEL if not any(n.startswith(f"induction_memory/{part}") for n in names)
    ]
    found += [f"wheel: holds {n}" for n in names if n.split("/")[0] not in ("induction_memory", _info(names))]
    found += [f"wheel: {wheels[0].stat().st_size:,} bytes"] * (wheels[0].stat().st_size > LARGEST)
    version = induction_memory.__version__
    found += [f"wheel: no 'Version: {version}' in its metadata"] * (f"\nVersion: {version}\n" not in metadata)
    found += ["wheel: no description"] * ("# induction_memory" not in metadata)
    with tarfile.open(sources[0]) as source:
        inside = {name.partition("/")[2] for name in source.getnames()}
    return found + [f"source archive: no {part}" for part in IN_SOURCE if part not in inside]


def _info(names: list[str]) -> str:
    return next(name.split("/")[0] for name in names if ".dist-info/" in name)


def unreleased(changelog: str, version: str) -> bool:
    """Whether the changelog's section of a version has no date yet."""
    return re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", changelog, re.M) is None


def uses(readme: str) -> tuple[str, list[str]]:
    """What the README tells a reader to do: the code of its four uses, and its commands of an installed package."""
    code = re.search(r"```python\n(.*?)```", readme, re.S)
    assert code is not None, "README.md shows no Python"
    return code[1], re.findall(r"^induction-memory .*$", readme, re.M)


def tried(wheel: Path) -> list[str]:
    """What the wheel does wrong in an empty environment."""
    code, commands = uses((ROOT / "README.md").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        env = {"PATH": os.environ["PATH"], "HOME": name} | {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
        pins = Path(name, "constraints.txt")
        tested = [sys.executable, str(ROOT / "tests" / "pins.py"), "tested"]
        pins.write_text(subprocess.run(tested, check=True, capture_output=True, text=True).stdout)
        env["PIP_CONSTRAINT"] = str(pins)
        subprocess.run([sys.executable, "-m", "venv", f"{name}/venv"], check=True)
        for what in ("torch", str(wheel.resolve())):  # torch first, for the build at hand
            subprocess.run([f"{name}/venv/bin/pip", "install", "-q", what], check=True, cwd=name, env=env)

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([f"{name}/venv/bin/{words[0]}", *words[1:]], cwd=name, env=env, **CAPTURED)

        ended = {line: run(*shlex.split(line)) for line in (*commands, "induction-memory --help")}
        ended["the four uses"] = run("python", "-c", f"{code}\nprint(im.__file__)")
        mistake = run("induction-memory", "probe", "random-triggers")
        missing = [one for one in ("map.html", "map.png") if not Path(name, one).is_file()]
    found = [
        f"{what}: exit code {one.returncode}: {one.stderr[-200:]}" for what, one in ended.items() if one.returncode
    ]
    found += [f"no {one} was drawn" for one in missing]
    found += ["the package comes from elsewhere"] * (f"{name}/venv" not in ended["the four uses"].stdout)
    found += [f"a mistake: exit code {mistake.returncode}"] * (mistake.returncode != 2)
    found += ["a mistake: more than one line"] * (len(mistake.stderr.strip().splitlines()) != 1)
    return found + ["a shipped run: no word of how to get it"] * ("git clone " not in mistake.stderr)


def main(dist: Path, tag: str | None) -> int:
    version, changelog = induction_memory.__version__, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    wrong = problems(dist)
    if tag is None:
        wrong += [] if wrong else tried(next(dist.glob("*.whl")))
    else:
        wrong += [f"the tag {tag} is not v{version}"] * (tag != f"v{version}")
        wrong += [f"CHANGELOG.md has no date for {version}"] * unreleased(changelog, version)
        wrong += ["the organisation is still a placeholder"] * ("ORGANISATION" in SOURCE)
    for path in sorted(dist.iterdir()):
        print(f"{path}  {path.stat().st_size:,} bytes")
    print("\n".join(wrong) or ("checked, and tried in an empty environment" if tag is None else "ready"))
    if unreleased(changelog, version):
        print(f"not a release yet: CHANGELOG.md has no date for {version}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[3] if sys.argv[2:3] == ["--tag"] else None))
