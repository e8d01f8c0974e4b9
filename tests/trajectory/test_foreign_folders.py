"""Folders that others wrote: every tensor is used or named, damage is told in one line, and nothing is stale."""

import json
import os
import re

import pytest
import torch
from safetensors.torch import load_file, save, save_file

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.model.bridge import boot
from tests.trajectory.series import tiny

SIZES = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 5}
GPT2 = SIZES | {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
T5 = {"model_type": "t5", "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 5}
BROKEN = {
    "no fields": "{}",
    "a list": "[]",
    "no JSON": "{",
    "unknown type": '{"model_type": "nosuch"}',
    "a wrong field": json.dumps(GPT2 | {"n_head": "x"}),
    "no tokens": json.dumps(GPT2 | {"vocab_size": 0}),
    "no heads": json.dumps(GPT2 | {"n_head": 0}),
    "no language model": json.dumps(T5),
    "a number of architectures": json.dumps(GPT2 | {"architectures": 3}),
    "no architecture": json.dumps(GPT2 | {"architectures": []}),
    "a billion layers": json.dumps(GPT2 | {"n_layer": 10**9}),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_folder_that_is_no_model_is_refused_in_one_line(tmp_path, kind):
    folder = tmp_path / "step10"
    folder.mkdir()
    (folder / "config.json").write_text(BROKEN[kind], encoding="utf-8")
    save_file({"a": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(InputError) as told:
        im.ablate(im.revisions(tmp_path), heads="all")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("which", ["config.json", "model.safetensors"])
def test_a_pipe_is_no_file(tmp_path, which):
    (tmp_path / "config.json").write_text(json.dumps(GPT2), encoding="utf-8")
    (tmp_path / which).unlink(missing_ok=True)
    os.mkfifo(tmp_path / which)
    with pytest.raises(InputError):
        boot(tmp_path)


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
FOREIGN = {
    "qwen3 as llama": (LLAMA, "expected files with tensors of the model alone, got also model.layers"),
    "one layer of two": ({"num_hidden_layers": 1}, "expected files with tensors of the model alone, got also model.l"),
    "three layers of two": ({"num_hidden_layers": 3}, "expected files with all tensors of the model, got none with m"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_weights_of_another_model_are_refused_and_found_by_verify(tmp_path, kind):
    changes, says = FOREIGN[kind]
    for step in (10, 20, 30):
        folder = tmp_path / f"step{step}"
        tiny("qwen3" if kind == "qwen3 as llama" else "llama").save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | changes if step < 30 else config), encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(says)):
        boot(tmp_path / "step10")
    refused = [line for line in im.verify(tmp_path) if ": refused: " in line]
    assert [line.partition(":")[0] for line in refused] == ["step 10", "step 20"]
    assert all(says in line and str(tmp_path) not in line for line in refused)


def test_norms_that_the_configuration_lacks_are_refused(tmp_path):
    model = im.build(im.ModelConfig(d_model=16, n_ctx=16, layer_norm=True), seed=0)
    torch.save(model.state_dict(), tmp_path / "step10.pt")
    run = im.load(tmp_path, model=im.ModelConfig(d_model=16, n_ctx=16))
    with pytest.raises(InputError, match=r"expected parameters of the model's configuration alone, got blocks.0.ln1"):
        run.model(10)


def test_a_replaced_file_of_equal_size_and_time_gives_the_new_value(tmp_path):
    config = im.ModelConfig(d_model=16, n_ctx=16)
    file = tmp_path / "step10.safetensors"
    save_file({name: value.contiguous() for name, value in im.build(config, seed=0).state_dict().items()}, file)
    run, before = im.load(tmp_path, model=config), file.stat()
    first, name = run.identity(10), "blocks.0.attn.W_K"
    old = run.state(10)[name]
    values = load_file(file)
    values[name] = values[name] + 1
    file.write_bytes(save(values))  # in place, as `cp` and some versions of save_file do
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    assert run.identity(10) != first
    torch.testing.assert_close(run.state(10)[name], old + 1)
