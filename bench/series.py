"""A series of 20 checkpoints that others trained: memory against one model, time against a loop that boots each.

The checkpoints are GPT-NeoX folders of Pythia-14m's shape, written for the occasion. Each way runs in a process of its
own and takes the standard head scores of every checkpoint. Memory is the peak above what the imports need.
"""

import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 20


def write(folder: Path) -> None:
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    sizes: Any = {"hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 512}
    model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=50304, max_position_embeddings=128, **sizes))
    for step in range(STEPS):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.01 * torch.randn_like(parameter)
        model.save_pretrained(folder / f"step{step}")


def measure(way: str, folder: str) -> dict[str, float]:
    """Seconds and peak memory of one way, in this process."""
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    import induction_memory as im
    from induction_memory.model.bridge import offline

    torch.set_num_threads(1)
    scores = im.probes.head_scores
    series = im.revisions(folder, keep=False)
    if way == "one":
        series = series.at(0)
    gc.collect()
    _forget_peak()
    before, began = _memory("VmRSS"), time.perf_counter()
    if way == "loop":
        with offline():
            for step in range(STEPS):
                gc.collect()
                scores(TransformerBridge.boot_transformers(f"{folder}/step{step}", device="cpu"))
    else:
        scores(series, step="all")
    return {"seconds": time.perf_counter() - began, "peak": _memory("VmHWM") - before}


def rows() -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        found = {way: _child(way, folder) for way in ("one", "loop", "series")}
    one, loop, series = found["one"], found["loop"], found["series"]
    mega = 1e6
    return [
        {
            "work": f"series of {STEPS} checkpoints: peak memory, against one model (MB)",
            "baseline_seconds": f"{one['peak'] / mega:.0f} MB",
            "seconds": f"{series['peak'] / mega:.0f} MB",
            "ratio": series["peak"] / one["peak"],
            "at_least": "<= 2.5x",
            "aim": "1.5x",
        },
        {
            "work": f"series of {STEPS} checkpoints: head scores, against a loop that boots each",
            "baseline_seconds": loop["seconds"],
            "seconds": series["seconds"],
            "ratio": series["seconds"] / loop["seconds"],
            "at_least": "<= 1.1x",
            "aim": "1x",
        },
    ]


def _child(way: str, folder: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.series", way, folder]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def _memory(field: str) -> float:
    """Memory of this process in bytes: `VmRSS` now, `VmHWM` the largest since `_forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return float(status.split(f"{field}:")[1].split()[0]) * 1024


def _forget_peak() -> None:
    """Imports need more memory than one small model: without this their peak would hide the model's."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
