"""No code of a folder of checkpoints runs, whatever the folder says and whoever answers a question."""

import json

import pytest

from induction_memory.errors import InputError
from induction_memory.trajectory.series import revisions
from tests.trajectory.series import write_series

CODE = """
open({target!r}, "w").write("ran")
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
class Config(GPT2Config):
    model_type = "mine"
class Model(GPT2LMHeadModel):
    config_class = Config
class Tokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A series whose classes stand in a file that leaves a trace when it runs; every question is answered with yes."""
    folder = write_series("gpt2", tmp_path / "series", [0]) / "step0"
    trace = tmp_path / "trace"
    (folder / "code.py").write_text(CODE.format(target=str(trace)))
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "architectures": ["Model"]}
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    named = {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": ["code.Tokenizer", "code.Tokenizer"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "tokenizer.json").write_text("{}")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    return revisions(tmp_path / "series"), trace


@pytest.mark.parametrize("ask", ["model", "context", "encode"])
def test_the_code_of_a_folder_never_runs(hostile, ask):
    series, trace = hostile
    call = {"model": lambda: series.model(0), "context": series.context, "encode": lambda: series.encode("text")}[ask]
    with pytest.raises(InputError, match="step0: expected a model that TransformerBridge can load") as refused:
        call()
    assert "\n" not in str(refused.value)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vocab_size": 0}, "config.json: expected a vocab_size"),
        ({"model_type": "nothing-known"}, "step0: expected a model"),
        ([], "step0: expected a model"),
        ({"vocab_size": "many"}, "expected a"),
    ],
)
def test_a_broken_configuration_is_told_in_one_line(changed, message, tmp_path):
    folder = write_series("gpt2", tmp_path, [0]) / "step0"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed if changed else []))
    with pytest.raises(InputError, match=message) as refused:
        revisions(tmp_path).context()
    assert "\n" not in str(refused.value)
