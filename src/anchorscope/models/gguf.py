"""Convert a GGUF file into a folder of safetensors, once: the second start takes seconds.

transformers converts the weights and the tokenizer. It does not read which tokens the file puts
around every text, and without its first token a model answers far worse: these tokens come from the
file's header, or are the usual ones for its kind of tokenizer.
"""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import struct
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from filelock import FileLock
from tokenizers import processors
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from anchorscope.errors import UserError
from anchorscope.models.locate import file_hash, folder_of
from anchorscope.run_folder.disk import sync_folder

log = logging.getLogger(__name__)
_CHECKSUMS = "checksums.json"
# Raised for a file that is no GGUF file, is cut off, or holds what transformers cannot convert.
_UNREADABLE = (
    ValueError, KeyError, IndexError, TypeError, NotImplementedError, OverflowError, MemoryError,
    struct.error, ImportError, RuntimeError,
)  # fmt: skip


def convert_once(path: Path) -> Path:
    """Convert the GGUF file at `path` into a folder of safetensors, once; return the folder.

    Every file of the folder is checked at each call; where one is damaged, it is converted again.
    """
    folder = folder_of(path)
    if damaged_file(folder) is None:
        return folder
    partial = folder.with_name(f"{folder.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            damaged = damaged_file(folder)
            if damaged is None:  # another process has converted it meanwhile
                return folder
            if folder.exists():
                log.warning(
                    "The cached conversion of %s is damaged (%s); it is converted again.",
                    path,
                    damaged,
                )
            for place in (partial, folder):
                shutil.rmtree(place, ignore_errors=True)
            try:
                _convert(path, partial)
                partial.rename(folder)
                sync_folder(folder.parent)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except _UNREADABLE as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(". ")
        raise UserError(
            f"The GGUF file {path} could not be read: {line}. Accepted: whole GGUF files, of an "
            "architecture and a quantisation that transformers can convert; or give the model's "
            "folder."
        ) from error
    except OSError as error:
        raise UserError(
            f"The GGUF file {path} could not be converted into {folder}: {error}. "
            "Free some disk, or point ANCHORSCOPE_CACHE at a folder with room."
        ) from error
    return folder


def _convert(path: Path, folder: Path) -> None:
    """Write model and tokenizer into a new folder, and the hashes of all its files."""
    # Read the header first: a truncated file, or one that is not GGUF, fails at once.
    header = read_header(path)
    where: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
    # transformers before 5.18 unpacks every weight by default, and has no such config.
    packing = getattr(transformers, "GgufConfig", None)
    unpacked = {} if packing is None else {"quantization_config": packing(dequantize=True)}
    # transformers' bar over the tensors cannot be turned off; warnings go through logging, which
    # holds the real stderr.
    with redirect_stderr(io.StringIO()):
        # float16 holds a dequantised weight to 2^-11 of itself; bfloat16 would only to 2^-8.
        lm = AutoModelForCausalLM.from_pretrained(
            path.parent, dtype=torch.float16, **unpacked, **where
        )
    lm.generation_config.eos_token_id = list(header.ends) or None
    lm.save_pretrained(folder)
    options: dict[str, Any] = {"add_bos_token": header.begins, "add_eos_token": header.closes}
    # AutoTokenizer would read the whole file once more to find its class, which is replaced below.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path.parent, **where, **options)
    _set_special_tokens(tokenizer, header)
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | options  # for `doctor` to check
    # This class reads tokenizer.json unchanged: others rebuild its parts from the vocabulary, and
    # some releases of transformers choose the wrong one of them for a Llama.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    file.write_text(json.dumps(config, indent=2), encoding="utf-8")
    hashes = {file.name: file_hash(file) for file in sorted(folder.iterdir())}
    (folder / _CHECKSUMS).write_text(json.dumps(hashes, indent=2))
    for file in folder.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    sync_folder(folder)


def damaged_file(folder: Path) -> str | None:
    """The first file of a converted folder that has changed or is missing; None if none has."""
    try:
        hashes = dict(json.loads((folder / _CHECKSUMS).read_text()))
    except (OSError, ValueError, TypeError):
        return _CHECKSUMS
    for name, expected in hashes.items():
        if not (folder / name).is_file() or file_hash(folder / name) != expected:
            return name
    return None


# --- The tokens around a text ---


# Without an entry in the header llama.cpp goes by the kind of tokenizer: SentencePiece and
# WordPiece begin with BOS; byte-level BPE does so only with these pre-tokenizers.
_BEGINS = {"llama", "bert"}
_ENDS = {"bert", "t5"}
_BPE_BEGINS = {
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano", "tekken", "chameleon",
}  # fmt: skip
_SENTENCEPIECE = {"bos": 1, "eos": 2}  # its usual ids


class Header(NamedTuple):
    """The special tokens that a GGUF file names."""

    begins: bool  # whether a text begins with BOS
    closes: bool  # whether it ends with EOS
    bos: int | None  # token id
    eos: int | None
    ends: tuple[int, ...]  # every token that ends an answer: of the text, the turn, the message


def read_header(path: Path) -> Header:
    """Read the special tokens from a GGUF header; where it names none, llama.cpp's defaults."""
    fields = _read_fields(path)

    def named(name: str) -> Any:
        return fields.get(f"tokenizer.ggml.{name}")

    kind, before = named("model"), named("pre")
    bos, eos = named("add_bos_token"), named("add_eos_token")
    usual = kind in _BEGINS or before in _BPE_BEGINS
    ids = {role: named(f"{role}_token_id") for role in ("bos", "eos", "eot", "eom")}
    if kind == "llama":
        ids = {role: _SENTENCEPIECE.get(role) if id is None else id for role, id in ids.items()}
    ends = dict.fromkeys(int(id) for role, id in ids.items() if role != "bos" and id is not None)
    return Header(
        begins=usual if bos is None else bool(bos),
        closes=kind in _ENDS if eos is None else bool(eos),
        bos=ids["bos"],
        eos=ids["eos"],
        ends=tuple(ends),
    )


def _read_fields(path: Path) -> dict[str, Any]:
    try:
        # Ten times as fast as the gguf package, which makes an array of every token.
        from transformers.integrations.gguf.reader import read_gguf_metadata
    except ImportError:  # transformers before 5.18
        from gguf import GGUFReader

        return {name: field.contents() for name, field in GGUFReader(str(path)).fields.items()}
    return read_gguf_metadata(str(path))[0]


def _set_special_tokens(tokenizer: Any, header: Header) -> None:
    """Set a tokenizer's special tokens to those of the file, and put them around a text."""
    for name in ("bos", "eos"):
        number = getattr(header, name)
        if number is not None and getattr(tokenizer, f"{name}_token_id") != number:
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(number))
    bos = tokenizer.bos_token if header.begins else None
    eos = tokenizer.eos_token if header.closes else None
    ids = tokenizer("a")["input_ids"]
    begins, ends = ids[0] == tokenizer.bos_token_id, ids[-1] == tokenizer.eos_token_id
    if begins == bool(bos) and ends == bool(eos):
        return
    # The tokenizer's class ignores its options for these tokens. A template that transformers made
    # is replaced; a ByteLevel processor, which corrects offsets, stays in front.
    backend = tokenizer.backend_tokenizer
    around_text: Any = processors.TemplateProcessing(
        single=" ".join(token for token in (bos, "$A", eos) if token),
        special_tokens=[(t, tokenizer.convert_tokens_to_ids(t)) for t in (bos, eos) if t],
    )
    if isinstance(backend.post_processor, processors.ByteLevel):
        around_text = processors.Sequence([backend.post_processor, around_text])
    backend.post_processor = around_text
