"""The tokens that a GGUF file puts around every text: named in its header, or usual for its kind.

transformers does not read them, and a model that never saw a text without its first token answers
a fraction of what it knows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import processors
from transformers import AutoTokenizer

# Where the header is silent, llama.cpp goes by the kind of tokenizer: SentencePiece and WordPiece
# begin with BOS; byte-level BPE does not, but for these pre-tokenizers.
_BEGINS = {"llama", "bert"}
_ENDS = {"bert", "t5"}
_BPE_BEGINS = {
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano", "tekken", "chameleon",
}  # fmt: skip
_SENTENCEPIECE = {"bos": 1, "eos": 2}  # its usual numbers


class Around(NamedTuple):
    """Whether a text begins with BOS and ends with EOS."""

    bos: bool
    eos: bool


class Header(NamedTuple):
    """What a GGUF file says of its special tokens."""

    around: Around
    bos: int | None  # the token's number
    eos: int | None
    ends: tuple[int, ...]  # every token that ends an answer: of the text, the turn, the message


def read_header(path: Path) -> Header:
    """What the header of a GGUF file says, or what llama.cpp does where it says nothing."""
    from gguf import GGUFReader

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
    numbers = {of: named(f"{of}_token_id") for of in ("bos", "eos", "eot", "eom")}
    if kind == "llama":
        numbers = {of: _SENTENCEPIECE.get(of) if n is None else n for of, n in numbers.items()}
    ends = dict.fromkeys(int(n) for of, n in numbers.items() if of != "bos" and n is not None)
    return Header(around, numbers["bos"], numbers["eos"], tuple(ends))


def tokenizer_of(path: Path, header: Header) -> Any:
    """The tokenizer inside a GGUF file, with the tokens around a text that the file names."""
    said = header.around
    tokenizer = _inside(path, said)
    for name in ("bos", "eos"):
        number = getattr(header, name)
        if number is not None and getattr(tokenizer, f"{name}_token_id") != number:
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(number))
    bos, eos = said.bos and tokenizer.bos_token, said.eos and tokenizer.eos_token
    ids = tokenizer("a")["input_ids"]
    begins = bool(bos) == (ids[0] == tokenizer.bos_token_id)
    if not begins or bool(eos) != (ids[-1] == tokenizer.eos_token_id):
        _put_around(tokenizer, bos or None, eos or None)
    return tokenizer


def _inside(path: Path, said: Around) -> Any:
    """The tokenizer as transformers reads it, asked for what the file says of a text's ends."""
    # Other files of its folder are read as well, and code that they name is not run.
    where: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
    try:
        asked = {"add_bos_token": said.bos, "add_eos_token": said.eos}
        return AutoTokenizer.from_pretrained(path.parent, **where, **asked)
    except ValueError as error:
        if "_token = None" not in str(error):
            raise
        # transformers 5.0 refuses a token that the file does not name; it gets its name later.
        without = {"add_bos_token": False, "add_eos_token": False}
        return AutoTokenizer.from_pretrained(path.parent, **where, **without)


def _put_around(tokenizer: Any, bos: str | None, eos: str | None) -> None:
    """Sets the tokens around a text where the tokenizer's class does not do it when asked."""
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


def note_around(folder: Path, said: Around) -> None:
    """Writes what the file names into the folder's config, where it can be checked against text."""
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= {"add_bos_token": said.bos, "add_eos_token": said.eos}
    # The class that takes tokenizer.json as it is: others make its parts anew from the vocabulary,
    # and some releases of transformers choose the wrong one of them for a Llama.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    file.write_text(json.dumps(config, indent=2), encoding="utf-8")
