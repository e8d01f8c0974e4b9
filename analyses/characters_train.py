"""Train a small character-level language model on a text file, and keep checkpoints as Hugging Face folders.

    python analyses/characters_train.py input.txt --out runs/characters
    python analyses/characters_train.py input.txt --out runs/characters-repeats --repeats 0.5

A plain torch loop on a GPT-NeoX of transformers (Pythia's architecture: rotary positions, attention and feed-forward in
parallel). It knows nothing of induction_memory; `characters.py` reads what it leaves behind: step0/, step20/ ... with
configuration, weights and tokenizer. The last tenth of the text is held out. With `--repeats p`, a share p of the
training windows repeats a passage: from a random place on, the window starts again with its own first characters.
"""

import csv
import math
from pathlib import Path

import torch
import tyro
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast


def character_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """One token per character of the text, in the order of the characters."""
    characters = ["<unknown>", *sorted(set(text))]
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(characters)}, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unknown>", clean_up_tokenization_spaces=False
    )


def windows(tokens: Tensor, n: int, length: int, repeats: float, rng: torch.Generator) -> Tensor:
    """Random windows of the text; a share of them starts again at a random place between a quarter and a half."""
    starts = torch.randint(len(tokens) - length, (n,), generator=rng)
    batch = tokens[starts[:, None] + torch.arange(length)]
    again = torch.rand(n, generator=rng) < repeats
    place = torch.randint(length // 4, length // 2, (n,), generator=rng)
    source = torch.arange(length).expand(n, -1) % torch.where(again, place, length)[:, None]
    return batch.gather(1, source)


def kept_steps(steps: int) -> list[int]:
    """Dense where things happen early: 0, then about ten checkpoints for each factor of ten, and the last step."""
    grid = {round(20 * 10 ** (i / 12)) for i in range(60)}
    return sorted({0, steps, *(step // 10 * 10 for step in grid if step < steps)})


def loss_of(model: GPTNeoXForCausalLM, batch: Tensor) -> Tensor:
    logits = model(batch[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def main(
    text: tyro.conf.Positional[Path],
    /,
    out: Path,
    repeats: float = 0.0,
    steps: int = 2500,
    layers: int = 2,
    heads: int = 4,
    width: int = 128,
    context: int = 128,
    batch: int = 16,
    rate: float = 2e-3,
    seed: int = 0,
    threads: int = 1,
) -> None:
    """Train the model.

    Args:
        text: the text file.
        out: folder for the checkpoints.
        repeats: share of training windows that repeat a passage.
        steps: training steps.
        layers: blocks.
        heads: heads per block.
        width: dimension of the residual stream.
        context: characters per window.
        batch: windows per step.
        rate: AdamW's largest step size, after a warm-up of 200 steps and before a cosine decay to a tenth.
        seed: seed of the weights and of the windows.
        threads: threads of torch.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed + 1)
    written = text.read_text(encoding="utf-8")
    tokenizer = character_tokenizer(written)
    tokens = torch.tensor(tokenizer(written)["input_ids"])
    training, held_out = tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]
    config = GPTNeoXConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPTNeoXForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    fixed = windows(held_out, 64, context + 1, 0.0, torch.Generator().manual_seed(seed + 2))
    keep = set(kept_steps(steps))
    out.mkdir(parents=True, exist_ok=True)
    with (out / "loss.csv").open("w", newline="") as file:
        log = csv.writer(file)
        log.writerow(["step", "held_out_loss"])
        for step in range(steps + 1):
            if step in keep:
                with torch.no_grad():
                    log.writerow([step, loss_of(model, fixed).item()])
                file.flush()
                model.save_pretrained(out / f"step{step}")
                tokenizer.save_pretrained(out / f"step{step}")
            if step == steps:
                break
            decay = 0.55 + 0.45 * math.cos(math.pi * step / steps)
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / 200) * decay
            loss = loss_of(model, windows(training, batch, context + 1, repeats, rng))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
