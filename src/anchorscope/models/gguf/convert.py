"""GGUF files: turned once into a folder of safetensors, so that the second start takes seconds."""

from __future__ import annotations

import os
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from anchorscope.errors import UserError
from anchorscope.models.converted_folder import folder_of
from anchorscope.models.gguf.read_once import read_once
from anchorscope.models.gguf.tokens import note_around, read_header, tokenizer_of

# What comes of a file that is no GGUF file, is cut off, or holds what transformers cannot convert.
_UNREADABLE = (
    ValueError, KeyError, IndexError, TypeError, NotImplementedError, OverflowError, MemoryError,
    struct.error, ImportError, RuntimeError,
)  # fmt: skip


def converted(path: Path) -> Path:
    """The folder of safetensors that holds the same model as the GGUF file at `path`."""
    folder = folder_of(path)
    if not (folder / "config.json").exists():
        _convert(path, folder)
    return folder


def _dense() -> dict[str, Any]:
    """The option that unpacks every weight; transformers before 5.18 did so without being asked."""
    config = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": config(dequantize=True)} if config else {}


def _put(partial: Path, folder: Path) -> None:
    """Gives a finished conversion its name, unless another process was first."""
    try:
        partial.rename(folder)
    except OSError:
        # Never taken away where it is whole: somebody may be reading it.
        if not (folder / "config.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)


def _convert(path: Path, folder: Path) -> None:
    """Writes beside the final name and renames, so that a torn conversion is never read."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        with read_once(half=True):
            # The header first: a file that is none, or is cut off, is told in no time.
            header = read_header(path)
            # float16 holds a dequantised weight to 2^-11 of itself; bfloat16 would only to 2^-8.
            lm = AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                dtype=torch.float16,
                trust_remote_code=False,
                **_dense(),
            )
            lm.generation_config.eos_token_id = list(header.ends) or None
            partial.mkdir(parents=True, exist_ok=True)
            # The disk takes gigabytes while the tokenizer is made of some 300,000 strings.
            with ThreadPoolExecutor(1) as beside:
                written = beside.submit(lm.save_pretrained, partial)
                tokenizer = tokenizer_of(path, header)
            written.result()
        tokenizer.save_pretrained(partial)
        note_around(partial, header.around)
        _put(partial, folder)
    except _UNREADABLE as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(". ")
        raise UserError(
            f"The GGUF file {path} could not be read: {said}. Accepted: whole GGUF files, of an "
            "architecture and a quantisation that transformers can convert; or give the model's "
            "folder."
        ) from error
    except OSError as error:
        raise UserError(
            f"The GGUF file {path} could not be converted into {folder}: {error}. "
            "Free some disk, or point ANCHORSCOPE_CACHE at a folder with room."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
