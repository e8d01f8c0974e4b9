"""`make release`: check what `python -m build` made, and try the wheel in an empty environment.

    python -m tests.release dist

The environment is empty but for what the wheel asks for, at the versions of constraints.txt. The wheel is used from a
folder without the source tree: it must load the run that it brings, run a command, and refuse a mistake in one line.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import induction_memory

ROOT = Path(__file__).parents[1]
IN_WHEEL = ("py.typed", "views/page/static/", "trajectory/data/induction-small/manifest.json", "task/data/")
IN_SOURCE = ("LICENSE", "README.md", "pyproject.toml", "induction_memory/__init__.py")
LARGEST = 4_000_000


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


def tried(wheel: Path) -> list[str]:
    """What the wheel does wrong in an empty environment."""
    with tempfile.TemporaryDirectory() as name:
        env = {"PATH": os.environ["PATH"], "HOME": name} | {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
        env["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
        run = {"cwd": name, "env": env, "capture_output": True, "text": True}
        subprocess.run([sys.executable, "-m", "venv", f"{name}/venv"], check=True)
        for what in ("torch", str(wheel.resolve())):  # torch first, for the build at hand
            subprocess.run([f"{name}/venv/bin/pip", "install", "-q", what], check=True, cwd=name, env=env)
        command = f"{name}/venv/bin/induction-memory"
        help_ = subprocess.run([command, "--help"], **run)
        probe = subprocess.run([command, "probe", "induction-small", "--format", "csv"], **run)
        mistake = subprocess.run([command, "probe", "no-such-run"], **run)
        load = "import induction_memory as im; print(im.__file__, len(im.load('induction-small').steps))"
        python = subprocess.run([f"{name}/venv/bin/python", "-c", load], **run)
    found = [f"--help: exit code {help_.returncode}: {help_.stderr[-200:]}"] * (help_.returncode != 0)
    found += [f"probe: exit code {probe.returncode}: {probe.stderr[-200:]}"] * (probe.returncode != 0)
    found += ["probe: no W_O2 in its table"] * ("W_O2" not in probe.stdout)
    found += [f"a mistake: exit code {mistake.returncode}"] * (mistake.returncode != 2)
    found += ["a mistake: more than one line"] * (len(mistake.stderr.strip().splitlines()) != 1)
    right = python.stdout.split()[1:] == ["5"] and f"{name}/venv" in python.stdout
    return found + [f"Python: {python.stdout}{python.stderr[-200:]}"] * (not right)


def main(dist: Path) -> int:
    wrong = problems(dist)
    wrong += [] if wrong else tried(next(dist.glob("*.whl")))
    for path in sorted(dist.iterdir()):
        print(f"{path}  {path.stat().st_size:,} bytes")
    print("\n".join(wrong) or "checked, and tried in an empty environment")
    if unreleased((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), induction_memory.__version__):
        print(f"not a release yet: CHANGELOG.md has no date for {induction_memory.__version__}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
