"""Which characters of an answer each of its tokens covers: as brute force, in linear time."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from kit.tiny import tiny_tokenizer
from kit.tiny_gguf import write_gguf

from anchorscope.answers.generate import answer_offsets
from anchorscope.models import load_model
from anchorscope.records import Answer, Span

TEXTS = [
    "", " ", " India", "  two  spaces ", " São Tomé and Príncipe", " 東京 🗼 und 👩‍👩‍👧‍👦!",
    "a\n\nb . , 'll n't",
    " Zoë’s naïve café — “Ωμέγα” 한국어 ไทย عربى " * 6, "🗼" * 40, "plain words of an answer " * 20,
]  # fmt: skip


def brute_force(tokenizer: Any, ids: tuple[int, ...], text: str) -> list[Span]:
    """Every beginning of the answer decoded."""
    decoded = [tokenizer.decode(ids[:n], skip_special_tokens=True) for n in range(len(ids) + 1)]
    lead = len(decoded[-1]) - len(decoded[-1].lstrip())
    ends = [min(max(len(part) - lead, 0), len(text)) for part in decoded[1:]]
    return [Span(min(a, b), b) for a, b in zip([0, *ends], ends, strict=False)]


def check(tokenizer: Any, ids: tuple[int, ...]) -> None:
    text = tokenizer.decode(ids, skip_special_tokens=True).strip()
    answer = Answer(id="x", text=text, token_ids=ids, log_probs=(0.0,) * len(ids),
                    first_entropy=0.0, finished=True)  # fmt: skip
    model: Any = SimpleNamespace(tokenizer=tokenizer)
    assert answer_offsets(model, answer) == brute_force(tokenizer, ids, text), ids


@pytest.fixture(params=["bundled", "bytes", "sentencepiece"])
def tokenizer(request, tmp_path, monkeypatch) -> Any:
    if request.param == "bundled":
        return request.getfixturevalue("bundled").tokenizer
    if request.param == "bytes":
        return tiny_tokenizer()
    monkeypatch.setenv("ANCHORSCOPE_CACHE", str(tmp_path / "cache"))
    return load_model(write_gguf(tmp_path / "tiny.gguf"), device="cpu").tokenizer


def test_offsets_are_those_of_every_beginning_decoded(tokenizer):
    for text in TEXTS:
        check(tokenizer, tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))


def test_offsets_of_tokens_in_any_order_too(tokenizer):
    """Torn characters, special tokens and spaces wherever they come."""
    draw = random.Random(0)
    size = min(len(tokenizer), 49152)
    torn = [i for text in TEXTS for i in tokenizer(text, add_special_tokens=False)["input_ids"]]
    for length in (1, 2, 7, 40, 120):
        for _ in range(6):
            ids = [draw.choice([draw.randrange(size), draw.choice(torn)]) for _ in range(length)]
            check(tokenizer, tuple(ids))
