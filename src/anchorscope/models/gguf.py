"""Convert a GGUF file into a folder of safetensors, once: the second start takes seconds.

transformers converts the weights and the tokenizer. It does not read which tokens the file puts
around every text, and a model that never saw a text without its first token answers a fraction of
what it knows: these come from the file's header, or are those usual for its kind of tokenizer.
"""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import struct
from contextlib import redirect_stderr
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import torch
import transformers
from gguf import GGUFReader
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from anchorscope.errors import UserError
from anchorscope.models.locate import file_hash, folder_of
from anchorscope.run_folder.disk import sync_folder

log = logging.getLogger(__name__)
_CHECKSUMS = "checksums.json"

if not hasattr(gguf, "__version__"):  # on Python 3.10 the first releases of transformers 5 ask it
    setattr(gguf, "__version__", version("gguf"))  # noqa: B010 - it declares none

# Raised for a file that is no GGUF file, is cut off, or holds what transformers cannot convert.
_UNREADABLE = (
    ValueError, KeyError, IndexError, TypeError, NotImplementedError, OverflowError, MemoryError,
    struct.error, ImportError, RuntimeError,
)  # fmt: skip


def convert_once(path: Path) -> Path:
    """The folder of safetensors that holds the same model as the GGUF file at `path`.

    Every file of it is checked each time; where one is damaged, the conversion is made again.
    """
    folder = folder_of(path)
    damaged = damaged_file(folder)
    if damaged is not None:
        if folder.exists():
            log.warning(
                "The cached conversion of %s is damaged (%s); it is converted again.", path, damaged
            )
        _convert(path, folder)
    return folder


def _put(partial: Path, folder: Path) -> None:
    """Give a finished conversion its name, unless another process was first.

    A whole folder stays, since another process may be reading it; a damaged one is replaced.
    """
    if folder.exists() and damaged_file(folder) is not None:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        partial.rename(folder)
    except OSError:
        if damaged_file(folder) is not None:
            raise
    sync_folder(folder.parent)


def _convert(path: Path, folder: Path) -> None:
    """Write beside the final name and rename, so that a torn conversion is never read."""
    # transformers before 5.18 unpacks every weight by default.
    packed = getattr(transformers, "GgufConfig", None)
    unpack = {"quantization_config": packed(dequantize=True)} if packed else {}
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        # The header first: a file that is cut off, or no GGUF file, fails at once.
        header = read_header(path)
        # transformers' bar over the tensors cannot be turned off; warnings go through logging,
        # which holds the real stderr.
        with redirect_stderr(io.StringIO()):
            # float16 holds a dequantised weight to 2^-11 of itself; bfloat16 would only to 2^-8.
            lm = AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                dtype=torch.float16,
                trust_remote_code=False,
                **unpack,
            )
        lm.generation_config.eos_token_id = list(header.ends) or None
        partial.mkdir(parents=True, exist_ok=True)
        lm.save_pretrained(partial)
        _read_tokenizer(path, header).save_pretrained(partial)
        _note_around(partial, header.around)
        seal_folder(partial)
        _put(partial, folder)
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
    finally:
        shutil.rmtree(partial, ignore_errors=True)


# --- Whether a converted folder is whole ---


def seal_folder(folder: Path) -> None:
    """Write the hashes of all files of a converted folder, and flush all of it to the disk."""
    files = sorted(folder.iterdir())
    checksums = folder / _CHECKSUMS
    checksums.write_text(json.dumps({file.name: file_hash(file) for file in files}, indent=2))
    for file in (*files, checksums):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    sync_folder(folder)


def damaged_file(folder: Path) -> str | None:
    """The first file of a converted folder that is not as it was written; None if all are."""
    try:
        hashes = dict(json.loads((folder / _CHECKSUMS).read_text()))
    except (OSError, ValueError, TypeError):
        return _CHECKSUMS
    for name, expected in hashes.items():
        file = folder / name
        if not file.is_file() or file_hash(file) != expected:
            return name
    return None


# --- The tokens around a text ---


# Without an entry in the header llama.cpp goes by the kind of tokenizer: SentencePiece and
# WordPiece begin with BOS; byte-level BPE does not, but for these pre-tokenizers.
_BEGINS = {"llama", "bert"}
_ENDS = {"bert", "t5"}
_BPE_BEGINS = {
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano", "tekken", "chameleon",
}  # fmt: skip
_SENTENCEPIECE = {"bos": 1, "eos": 2}  # its usual ids


class Around(NamedTuple):
    """Whether a text begins with BOS and ends with EOS."""

    bos: bool
    eos: bool


class Header(NamedTuple):
    """The special tokens that a GGUF file names."""

    around: Around
    bos: int | None  # token id
    eos: int | None
    ends: tuple[int, ...]  # every token that ends an answer: of the text, the turn, the message


def read_header(path: Path) -> Header:
    """The header of a GGUF file; where it names no tokens, those that llama.cpp uses."""
    fields = GGUFReader(str(path)).fields

    def named(name: str) -> Any:
        field = fields.get(f"tokenizer.ggml.{name}")
        return None if field is None else field.contents()

    kind, before = named("model"), named("pre")
    bos, eos = named("add_bos_token"), named("add_eos_token")
    usual = kind in _BEGINS or before in _BPE_BEGINS
    around = Around(
        usual if bos is None else bool(bos), kind in _ENDS if eos is None else bool(eos)
    )
    ids = {role: named(f"{role}_token_id") for role in ("bos", "eos", "eot", "eom")}
    if kind == "llama":
        ids = {role: _SENTENCEPIECE.get(role) if id is None else id for role, id in ids.items()}
    ends = dict.fromkeys(int(id) for role, id in ids.items() if role != "bos" and id is not None)
    return Header(around, ids["bos"], ids["eos"], tuple(ends))


def _read_tokenizer(path: Path, header: Header) -> Any:
    """The tokenizer inside a GGUF file, with the tokens around a text that the file names."""
    around = header.around
    tokenizer = _stock_tokenizer(path, around)
    for name in ("bos", "eos"):
        number = getattr(header, name)
        if number is not None and getattr(tokenizer, f"{name}_token_id") != number:
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(number))
    bos, eos = around.bos and tokenizer.bos_token, around.eos and tokenizer.eos_token
    ids = tokenizer("a")["input_ids"]
    begins = bool(bos) == (ids[0] == tokenizer.bos_token_id)
    if not begins or bool(eos) != (ids[-1] == tokenizer.eos_token_id):
        _put_around(tokenizer, bos or None, eos or None)
    return tokenizer


def _stock_tokenizer(path: Path, around: Around) -> Any:
    """The tokenizer as transformers reads it, with its own options for the tokens around a text."""
    # transformers reads other files of the folder as well; it does not run code that they name.
    where: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
    try:
        options = {"add_bos_token": around.bos, "add_eos_token": around.eos}
        return AutoTokenizer.from_pretrained(path.parent, **where, **options)
    except ValueError as error:
        if "_token = None" not in str(error):
            raise
        # transformers 5.0 refuses a token that the file does not name; it gets its name later.
        without = {"add_bos_token": False, "add_eos_token": False}
        return AutoTokenizer.from_pretrained(path.parent, **where, **without)


def _put_around(tokenizer: Any, bos: str | None, eos: str | None) -> None:
    """Set the tokens around a text where the tokenizer's class ignores its options for them."""
    backend = tokenizer.backend_tokenizer
    single = [token for token in (bos, "$A", eos) if token]
    special = [(t, tokenizer.convert_tokens_to_ids(t)) for t in (bos, eos) if t]
    around_text = processors.TemplateProcessing(single=" ".join(single), special_tokens=special)
    # A template that transformers made is replaced; what mends offsets stays in front.
    before = backend.post_processor
    keeps = isinstance(before, processors.ByteLevel)
    backend.post_processor = (
        processors.Sequence([before, around_text]) if before and keeps else around_text
    )


def _note_around(folder: Path, around: Around) -> None:
    """Write the tokens around a text into the folder's config, for `doctor` to check."""
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= {"add_bos_token": around.bos, "add_eos_token": around.eos}
    # The class that takes tokenizer.json as it is: others rebuild its parts from the vocabulary,
    # and some releases of transformers choose the wrong one of them for a Llama.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    file.write_text(json.dumps(config, indent=2), encoding="utf-8")
