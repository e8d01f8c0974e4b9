"""Models that others trained: a local Hugging Face folder as a TransformerLens model.

TransformerBridge loads any architecture that it knows, and its logits equal those of transformers to 1e-6. This module
works around four habits of the libraries: they draw a tensor at random if the files lack it, they look on the network
for files that a folder lacks, some need a tokenizer in the folder, and models hold references to themselves, so that
only a garbage collection frees them.
"""

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from induction_memory.errors import InputError, require

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def boot(folder: Path, inner: nn.Module | None = None) -> nn.Module:
    """The model in a folder with config.json and weights, on the CPU in float32; nothing is fetched.

    `inner` is the transformers model of the folder, if it is loaded already.
    """
    from transformer_lens.model_bridge import TransformerBridge

    gc.collect()
    own = has_tokenizer(folder)
    inner = load_whole(folder) if inner is None else inner
    try:
        with offline():
            tokenizer = None if own else _stand_in()
            model = TransformerBridge.boot_transformers(str(folder), device="cpu", hf_model=inner, tokenizer=tokenizer)
    except Exception as error:
        raise _unloadable(folder, error) from error
    if not own:
        model.tokenizer = None
    return model.eval()


def load_whole(folder: Path) -> nn.Module | None:
    """The transformers model in a folder, all of whose weights are in its files.

    None if it is not a causal language model: the bridge knows other classes too.
    """
    from transformers import AutoModelForCausalLM

    _require_readable(folder)
    try:
        with offline():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:
        if "Unrecognized configuration class" in str(error):
            return None
        raise _unloadable(folder, error) from error
    model, found = loaded
    lost = sorted(map(str, found["missing_keys"]))
    require(not lost, str(folder), "files with all tensors of the model", f"none with {', '.join(lost[:3])}")
    return model


def _unloadable(folder: Path, error: Exception) -> InputError:
    """An error of transformers, safetensors or TransformerLens about a folder's files, in one line."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return InputError(f"{folder}: expected a model that TransformerBridge can load, got: {reason}")


def _require_readable(folder: Path) -> None:
    """Refuse a checkpoint if a weight file, or the list of them, cannot be read; the error names the file."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: expected a safetensors file, got {str(error).splitlines()[0]}") from error
    for path in sorted(folder.glob("*.index.json")):
        try:
            files = {Path(name) for name in json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path}: expected a list of weight files, got {type(error).__name__}") from error
        lost = sorted(str(name) for name in files if name.name != str(name) or not (folder / name).is_file())
        require(not lost, str(path), "files of its folder", ", ".join(map(repr, lost)))


def _stand_in() -> Any:
    """A tokenizer of one word, because TransformerBridge refuses some architectures without a tokenizer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"?": 0}, unk_token="?")))


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder contains a tokenizer."""
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
