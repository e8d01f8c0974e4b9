import json

import pytest

from induction_memory.errors import InputError
from induction_memory.model.config import ModelConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 0}, "model.d_model: expected 1 to 1000000, got 0"),
        ({"n_layers": 1.5}, "model.n_layers: expected 1 to 1000000, got 1.5"),
        ({"feed_forward": "gelu"}, "model.feed_forward: expected 'none', 'linear' or 'relu', got 'gelu'"),
        ({"n_heads": 3, "identity_queries": False}, "model.n_heads: expected a divisor of d_model = 128"),
        ({"n_heads": 4}, "model.identity_queries: expected false, or heads as wide as the model"),
        ({"trained": ("W_K3",)}, "model.trained: expected names out of W_E, W_pos"),
        ({"trained": ("W_Q1",)}, "model.trained: expected no W_Q when identity_queries is true"),
        ({"tied_output": True, "trained": ("W_U",)}, "model.trained: expected W_E instead of W_U"),
        ({"positions": "sinusoidal", "d_model": 5}, "model.d_model: expected an even number"),
        ({"layer_norm": "yes"}, "model.layer_norm: expected true or false, got 'yes'"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(changes, message, unchecked):
    with pytest.raises(InputError) as error:
        ModelConfig(**changes)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_unknown_keys_are_refused():
    with pytest.raises(InputError, match=r"model\.depth: expected one of d_model"):
        ModelConfig.from_dict({"depth": 3})


def test_configurations_survive_json():
    config = ModelConfig.full(n_heads=4, trained=("W_K1", "W_E"))
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_names_count_layers_from_one():
    names = ModelConfig.full(layer_norm=True).parameters
    assert names["W_K1"] == "blocks.0.attn.W_K"
    assert names["W_out2"] == "blocks.1.mlp.W_out"
    assert names["gamma_ff1"] == "blocks.0.ln2.w"
    assert ModelConfig().parameters["W_F"] == "blocks.1.mlp.W_F"
