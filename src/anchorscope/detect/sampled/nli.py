"""An NLI model that says which answers mean the same: each entails the other."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from anchorscope.detect.material import Material, Text
from anchorscope.detect.sampled.answers import Entailed, SampledAnswers
from anchorscope.detect.sampled.meaning import groups
from anchorscope.errors import UserError

_ROWS = 64  # pairs that go through the model at once


@dataclass(frozen=True)
class Nli:
    """A sequence classifier with a class for entailment."""

    lm: Any
    tokenizer: Any
    entailment: int

    @classmethod
    def load(cls, name: str) -> Nli:
        """The NLI model of this name or folder; a UserError where there is none."""
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        try:
            # Left open, a terminal would be asked whether code that comes with it may be run.
            lm = AutoModelForSequenceClassification.from_pretrained(name, trust_remote_code=False)
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise UserError(
                f"No NLI model could be loaded from '{name}' ({str(error).splitlines()[0]}). "
                "Give a hub id or a folder, such as microsoft/deberta-large-mnli."
            ) from error
        labels = {str(of).lower(): int(n) for n, of in lm.config.id2label.items()}
        if "entailment" not in labels:
            raise UserError(
                f"'{name}' has no class 'entailment' (it has {', '.join(labels)}). "
                "Give a model that was trained for natural-language inference."
            )
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(lm.eval().to(device), tokenizer, labels["entailment"])

    @torch.inference_mode()
    def entails(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether each first text entails its second one: its likeliest class is entailment."""
        found: list[bool] = []
        for start in range(0, len(pairs), _ROWS):
            part = pairs[start : start + _ROWS]
            first, second = (list(side) for side in zip(*part, strict=True))
            fed = self.tokenizer(
                first,
                second,
                padding=True,
                truncation=True,
                split_special_tokens=True,  # "[SEP]" in an answer parts nothing
                return_tensors="pt",
            ).to(self.lm.device)
            found += (self.lm(**fed).logits.argmax(dim=-1) == self.entailment).tolist()
        return found

    def entailed(self, text: Text, sampled: SampledAnswers) -> Entailed:
        """The groups of the greedy answer and the drawn ones; the same words are asked once."""
        begun = time.perf_counter()
        said = [f"{text.question} {answer}" for answer in (text.answer, *sampled.texts)]
        pairs = list(itertools.permutations(dict.fromkeys(said), 2))
        holds = dict(zip(pairs, self.entails(pairs), strict=True))

        def same(one: str, other: str) -> bool:
            return one == other or (holds[one, other] and holds[other, one])

        ms = (time.perf_counter() - begun) * 1000
        return Entailed(meaning=groups(said, same), passes=len(pairs), ms=ms)


def with_entailment(material: Material, nli: Nli) -> Material:
    """The material with the NLI model's groups beside each question's drawn answers."""
    texts = [
        text
        if text.sampled is None
        else replace(text, sampled=replace(text.sampled, nli=nli.entailed(text, text.sampled)))
        for text in material.texts
    ]
    return replace(material, texts=tuple(texts), memo={})
