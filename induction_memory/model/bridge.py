"""Models that others trained: a local Hugging Face folder as a TransformerLens model.

TransformerBridge loads any architecture that it knows, and its logits equal those of transformers to 1e-6. Three of its
habits are mended here: it looks on the network for what a folder lacks, it invents a tokenizer for a folder without
one, and its models hold references to themselves, so that they are freed only by a collection.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from induction_memory.errors import InputError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def boot(folder: Path, inner: nn.Module | None = None) -> nn.Module:
    """The model in a folder with config.json and weights, on the CPU in float32; nothing is fetched.

    `inner` is the transformers model of the folder, if it is loaded already.
    """
    from transformer_lens.model_bridge import TransformerBridge

    gc.collect()
    own = has_tokenizer(folder)
    with offline():
        try:
            tokenizer = None if own else _stand_in()
            model = TransformerBridge.boot_transformers(str(folder), device="cpu", hf_model=inner, tokenizer=tokenizer)
        except (OSError, ValueError, KeyError, RuntimeError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise InputError(f"{folder}: expected a model that TransformerBridge can load, got: {reason}") from error
    if not own:
        model.tokenizer = None
    return model.eval()


def _stand_in() -> Any:
    """A tokenizer of one word: without any, TransformerBridge refuses the folder of some architectures."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"?": 0}, unk_token="?")))


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder brings a tokenizer of its own."""
    return any((folder / name).exists() for name in _TOKENIZER_FILES)


@contextmanager
def offline() -> Iterator[None]:
    """Inside the block: no network and no progress bars of the Hugging Face libraries."""
    import transformers.utils.logging as bars
    from huggingface_hub import constants

    before, shown = constants.HF_HUB_OFFLINE, bars.is_progress_bar_enabled()
    constants.HF_HUB_OFFLINE = True
    bars.disable_progress_bar()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
        if shown:
            bars.enable_progress_bar()
