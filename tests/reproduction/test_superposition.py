"""The residual stream as a sum of embeddings: it is the model's own stream, and a trained head shows the mechanism."""

import pytest
import torch

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.paper.superposition import attention_of, residual, superposition


@pytest.mark.parametrize("source", ["trained", "random"])
def test_the_embeddings_add_up_to_the_models_stream(source):
    small = ModelConfig.simplified(d_model=16, n_ctx=8)
    model = im.load("induction-small").model() if source == "trained" else build(small, 3)
    tokens = torch.tensor([5, 3, 7, 5, 1, 3])
    _, cache = model.run_with_cache(tokens.unsqueeze(0))
    between = cache["blocks.1.hook_resid_pre"]
    streams = [cache["blocks.0.hook_resid_pre"], between, between + cache["blocks.1.hook_attn_out"]]
    for layer, expected in enumerate(streams):
        torch.testing.assert_close(residual(model, tokens, layer), expected[0], rtol=1e-4, atol=1e-4)


def test_coefficients_are_sums_of_attention():
    model, tokens = build(ModelConfig.simplified(d_model=16, n_ctx=8), 3), torch.tensor([5, 3, 5, 5])
    first, second = attention_of(model, tokens)
    table = superposition(model, tokens).set_index(["layer", "position", "embedding"])["coefficient"]
    assert table[1, 3, "w_1(5)"] == pytest.approx(float(first[3, 0] + first[3, 2] + first[3, 3]))
    assert table[2, 3, "w_2(p 1)"] == pytest.approx(float(second[3, 1]))
    assert table[2, 3, "w_2(w_1(3))"] == pytest.approx(float(sum(second[3, s] * first[s, 1] for s in range(1, 4))))
    assert table[0, 2, "w_E(5)"] == table[2, 2, "p(2)"] == 1


def test_models_with_other_writers_are_refused():
    for config, message in (
        (ModelConfig.full(d_model=16, n_ctx=8, n_heads=2), "one head and no LayerNorm"),
        (ModelConfig.full(d_model=16, n_ctx=8), "no feed-forward before the last layer"),
    ):
        with pytest.raises(InputError, match=message):
            superposition(build(config, 0), torch.tensor([1, 2]))
