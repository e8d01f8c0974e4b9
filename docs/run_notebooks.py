"""Run the notebooks on the shipped runs, and store or compare their outputs.

    python docs/run_notebooks.py                     # run all, compare with the stored outputs
    python docs/run_notebooks.py memories --write    # run one and store its outputs in memories.ipynb

A notebook is a pair: NAME.md is written by hand, NAME.ipynb follows from it and holds the outputs. All run in one
kernel, whose names are cleared in between, so that torch is imported once.
"""

import argparse
import base64
import os
import struct
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

sys.path.insert(0, str(Path(__file__).parent))
from blocks import ROOT, alike

FOLDER = ROOT / "docs" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")
SET_UP = """
%reset -f
import os, torch
os.chdir({folder!r})
torch.set_num_threads(1)
"""


def execute(names):
    """Name and executed notebook, one after the other."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "JUPYTER_PLATFORM_DIRS": "1"}
    manager, client = start_new_kernel(kernel_name="python3", env=env)
    try:
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "checkpoints").symlink_to(ROOT / "checkpoints")
                client.execute_interactive(SET_UP.format(folder=folder), timeout=300)
                yield name, _run(jupytext.read(FOLDER / f"{name}.md"), manager, client)
                client.execute_interactive(f"os.chdir({str(ROOT)!r})", timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _run(notebook, manager, client):
    runner = NotebookClient(notebook, timeout=600, km=manager)
    runner.kc = client
    runner.reset_execution_trackers()
    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{index}"
        runner.execute_cell(cell, index)
        if cell.cell_type == "code":
            cell.metadata.pop("execution", None)
            cell.execution_count = None
            cell.outputs = [output for output in cell.outputs if not progress(output)]
            for output in cell.outputs:
                if "execution_count" in output:
                    output["execution_count"] = None
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "jupytext": {"formats": "ipynb,md:myst"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},  # for lines that begin with ! or %
    }
    nbformat.validate(notebook)
    return notebook


def differences(stored, fresh):
    """What two executions of a notebook show differently: text and numbers as shown, pictures by kind and size."""
    found = []
    codes = [[cell for cell in book.cells if cell.cell_type == "code"] for book in (stored, fresh)]
    for number, (old, new) in enumerate(zip(*codes, strict=True), start=1):
        if old.source != new.source:
            found.append(f"cell {number}: another source")
            continue
        one, other = ([shown(output) for output in cell.outputs if not progress(output)] for cell in (old, new))
        if len(one) != len(other):
            found.append(f"cell {number}: {len(one)} outputs, now {len(other)}")
        found += [f"cell {number}: {a} is now {b}" for a, b in zip(one, other, strict=False) if not same(a, b)]
    return found


def progress(output):
    """Whether an output is a line of progress: on standard error, or a display that was emptied at its end."""
    emptied = output.get("output_type") == "display_data" and not any(output.get("data", {}).values())
    return output.get("name") == "stderr" or emptied


def shown(output):
    """An output as what is compared: its kinds, its text, and the size of its picture."""
    if output.output_type == "stream":
        return {"stream"}, output.text, None
    if output.output_type == "error":
        return {"error"}, f"{output.ename}: {output.evalue}", None
    picture = base64.b64decode(output.data["image/png"])[16:24] if "image/png" in output.data else None
    size = struct.unpack(">II", picture) if picture else None
    is_object = "object at 0x" in output.data.get("text/plain", "") or len(output.data.get("text/plain", "")) > 5000
    return set(output.data), "" if is_object or picture else output.data.get("text/plain", ""), size


def same(one, other):
    sizes = (one[2] is None) == (other[2] is None) and (
        one[2] is None or all(abs(a - b) <= 0.03 * max(a, b) for a, b in zip(one[2], other[2], strict=True))
    )
    return one[0] == other[0] and alike(one[1], other[1]) and sizes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    wrong, start = [], time.time()
    for name, notebook in execute(arguments.names):
        path = FOLDER / f"{name}.ipynb"
        if arguments.write:
            nbformat.write(notebook, path)
        else:
            wrong += [f"{name}: {line}" for line in differences(nbformat.read(path, as_version=4), notebook)]
        print(f"{name}: {time.time() - start:.0f} s", flush=True)
        start = time.time()
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
