"""Prompts: the names of special tokens in a question stay text, and the question is where it is."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from anchorscope.models.prompts import PromptPart, guarded_tokens, make_prompts, tokenise
from anchorscope.records import Shot
from torture.fuzz.target import Target
from torture.fuzz.texts import part, seeded, text

LLAMA_3 = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
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


class Asked(NamedTuple):
    """A tokenizer where `make_prompts` looks for one."""

    tokenizer: Any
    name: str


@cache
def llama_like() -> Asked:
    """Bytes and Llama 3's special tokens, put around a text as Llama 3 does."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(
        models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _made(backend, LLAMA_3, LLAMA_3_TEMPLATE, bos="<|begin_of_text|>")


@cache
def gemma_like() -> Asked:
    """Characters and a mark for blanks (sentencepiece's way); turns not called special."""
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
) -> Asked:
    special = special or names
    backend.add_tokens([AddedToken(n, special=n in special, normalized=False) for n in names])
    backend.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token=names[1])
    tokenizer.chat_template = template
    return Asked(tokenizer, names[0])


@cache
def bundled() -> Asked:
    """The bundled model's tokenizer."""
    from anchorscope.models import load_model

    model = load_model("bundled", device="cpu")
    return Asked(model.tokenizer, model.name)


def check_prompts(given: tuple[str, Shot, str, str]) -> None:
    """As many guarded tokens as around a harmless question, the question's text in its place."""
    question, shot, style, which = given
    asked: Any = {"llama": llama_like, "gemma": gemma_like, "bundled": bundled}[which]()
    guarded = guarded_tokens(asked.tokenizer)
    plain = Shot(question="One?", answer="Two")
    prompt, harmless = (
        make_prompts(asked, [q], shots=[s], style=style)[0]
        for q, s in ((question, shot), ("Who?", plain))
    )
    assert _count(prompt.ids, guarded) == _count(harmless.ids, guarded), "a question wrote a token"
    own = [
        id
        for id, (a, b) in zip(prompt.ids, prompt.offsets, strict=True)
        if a < prompt.question.stop and b > prompt.question.start
    ]
    assert not set(own) & guarded.keys()
    if which == "llama":  # of bytes: what was asked comes back whole
        assert asked.tokenizer.decode(own) == question
    said = tokenise(asked.tokenizer, [[PromptPart(question + shot.answer, False)]], special=False)[
        0
    ]
    assert not _count(said.ids, guarded)


def _count(ids: tuple[int, ...], guarded: dict[int, str]) -> list[int]:
    return [id for id in ids if id in guarded]


def _asked(names: tuple[str, ...]) -> Any:
    def make(r: Random) -> tuple[str, Shot, str, str]:
        texts = (
            " ".join((text(r) + r.choice(LLAMA_3 + GEMMA + ("x",))).split()) or "x" for _ in "12"
        )
        shot = Shot(question=next(texts), answer=" ".join(part(r).split()) or "x")
        return next(texts), shot, r.choice(("chat", "text")), r.choice(names)

    return make


TARGETS = (
    Target(name="prompts", inputs=seeded(_asked(("llama", "gemma"))), check=check_prompts, share=5),
    Target(
        name="prompts, bundled", inputs=seeded(_asked(("bundled",))), check=check_prompts, share=1
    ),
)
