"""Tiny series of Hugging Face checkpoints: weights that drift a little from step to step, as in training."""

from pathlib import Path

import torch

VOCAB, CONTEXT = 61, 32


def tiny(kind: str):
    """A model with random weights; `-shared` has heads that share keys and values."""
    import transformers

    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=2, n_positions=CONTEXT)
        return transformers.GPT2LMHeadModel(config)
    name, *shared = kind.split("-")
    family = {
        "neox": "GPTNeoX",
        "llama": "Llama",
        "olmo": "Olmo",
        "olmo2": "Olmo2",
        "qwen2": "Qwen2",
        "qwen3": "Qwen3",
        "gemma": "Gemma",
    }[name]
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"vocab_size": VOCAB, "max_position_embeddings": CONTEXT}
    if name != "neox":
        sizes |= {"num_key_value_heads": 1 if shared else 2, "head_dim": 8, "pad_token_id": 0, "eos_token_id": 1}
    return getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**sizes))


def write_series(kind: str, folder: Path, steps, shard: str = "8KB") -> Path:
    """A folder per step, in several shards; every parameter drifts by a fixed direction plus a little noise."""
    import transformers.utils.logging as bars

    bars.disable_progress_bar()
    model, generator = tiny(kind), torch.Generator().manual_seed(1)
    drift = {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}
    for number, step in enumerate(steps):
        if number:
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter += 0.005 * drift[name] + 0.001 * torch.randn(parameter.shape, generator=generator)
        model.save_pretrained(folder / f"step{step}", max_shard_size=shard)
    return folder
