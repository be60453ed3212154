"""Tokenizers with the special tokens and chat templates of Llama 3 and of Gemma."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

LLAMA_3 = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>",
)  # fmt: skip
LLAMA_3_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


class NamedTokenizer(NamedTuple):
    """A tokenizer where `make_prompts` looks for one."""

    tokenizer: Any
    name: str


@cache
def llama_like() -> NamedTokenizer:
    """Byte tokens, and Llama 3's special tokens around a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(
        models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _made(backend, LLAMA_3, LLAMA_3_TEMPLATE, bos="<|begin_of_text|>")


@cache
def gemma_like() -> NamedTokenizer:
    """Character tokens with sentencepiece's mark for blanks; turns are not called special."""
    letters = {chr(code): n + 3 for n, code in enumerate(range(0x20, 0x17F))} | {"▁": 2, "<unk>": 0}
    backend = Tokenizer(models.BPE(vocab={**letters, "\n": 1}, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    return _made(backend, GEMMA, GEMMA_TEMPLATE, bos="<bos>", special=GEMMA[:3])


def _made(
    backend: Tokenizer,
    names: tuple[str, ...],
    template: str,
    *,
    bos: str,
    special: tuple[str, ...] = (),
) -> NamedTokenizer:
    special = special or names
    backend.add_tokens([AddedToken(n, special=n in special, normalized=False) for n in names])
    backend.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token=names[1])
    tokenizer.chat_template = template
    return NamedTokenizer(tokenizer, names[0])
