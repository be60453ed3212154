"""A detector to keep and to use: trained, calibrated, and tied to the model it was made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from weakref import WeakKeyDictionary

import numpy as np

from anchorscope.detect.calibrate import Platt
from anchorscope.detect.card import model_card
from anchorscope.detect.files import Stored, read_folder, write_folder
from anchorscope.detect.hub import fetch, upload
from anchorscope.detect.material import Material
from anchorscope.detect.method import Method
from anchorscope.detect.methods import METHODS
from anchorscope.errors import UserError
from anchorscope.progress import Progress

if TYPE_CHECKING:
    from anchorscope.detect.watch import Watch
    from anchorscope.models import Model


@dataclass(frozen=True, kw_only=True)
class Scored:
    """An answer and how likely it is wrong."""

    question: str
    answer: str
    exact: str  # the part of the answer that was read: E_A
    probability: float  # of being wrong, calibrated; NaN where there is nothing to read
    score: float  # before calibration, higher = more likely wrong
    flagged: bool  # probability above the detector's threshold
    why: str = ""  # why there is no probability


@dataclass(frozen=True, kw_only=True)
class Example:
    """A question and the very tokens it was asked with: the prompt, and a test of the tokenizer."""

    question: str
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Detector:
    """A fitted detector with everything that is needed to use it on new questions."""

    name: str  # short name of the method: probe, mop, pr, ...
    method: Method
    model: dict[str, Any]  # name, source, revision, weights, dtype, blocks, width
    prompt: dict[str, Any]  # style, shots, max_tokens, finder, dataset
    examples: tuple[Example, ...]
    threshold: float  # of the probability
    calibrated_on: str
    trained_on: dict[str, Any]  # datasets and counts
    evaluation: dict[str, Any]  # the numbers it was accepted with
    licence: dict[str, str]
    _bound: WeakKeyDictionary = field(default_factory=WeakKeyDictionary, repr=False, compare=False)

    @property
    def tokens(self) -> str:
        return "the last token of the answer entity (E_A)"

    @overload
    def score(self, model: Any, question: str, *, answer: str | None = None) -> Scored: ...
    @overload
    def score(
        self,
        model: Any,
        question: Sequence[str],
        *,
        answer: Sequence[str | None] | None = None,
        progress: Progress | None = None,
    ) -> list[Scored]: ...
    def score(self, model, question, *, answer=None, progress=None):
        """The model's own answer with its probability of being wrong, both from the same pass.

        With `answer` that answer is scored instead. Lists give lists, in batches.
        """
        from anchorscope.detect.score import score_all

        if isinstance(question, str):
            given = None if answer is None else [answer]
            return score_all(self, model, [question], answers=given)[0]
        return score_all(self, model, list(question), answers=answer, progress=progress)

    def watch(self, model: Model) -> Watch:
        """A `with` block around your own `model.lm.generate(...)`; it gives the scores after."""
        from anchorscope.detect.watch import Watch

        return Watch(self, model)

    def scored(self, material: Material) -> tuple[np.ndarray, np.ndarray]:
        """Score and calibrated probability of each answer of the material, [question] each."""
        score = self.method.decision_function(material)
        return score, self.method.calibration_.probability(score)

    def save(self, folder: str | Path) -> Path:
        """The folder, with weights, description and model card in it."""
        folder = Path(folder).expanduser()
        about = {
            name: getattr(self, name)
            for name in ("name", "model", "prompt", "threshold", "calibrated_on", "trained_on",
                         "evaluation", "licence", "tokens")
        }  # fmt: skip
        about["method"] = self.method.about()
        about["calibration"] = asdict(self.method.calibration_)
        about["examples"] = [asdict(one) for one in self.examples]
        write_folder(folder, Stored(self.method.tensors(), about), model_card(self))
        return folder

    @classmethod
    def load(cls, place: str | Path, *, revision: str | None = None) -> Detector:
        """The detector in a folder, or in a repository of the hub."""
        tensors, about = read_folder(fetch(place, revision=revision))
        if about["name"] not in METHODS:
            raise UserError(
                f"The detector in '{place}' is of a kind '{about['name']}' that this version does "
                "not know. Update anchorscope."
            )
        method = METHODS[about["name"]]().restore(tensors, about["method"])
        method.calibration_ = Platt(**about["calibration"])
        examples = tuple(
            Example(question=e["question"], prompt_ids=tuple(e["prompt_ids"]))
            for e in about["examples"]
        )
        plain = ("name", "model", "prompt", "threshold", "calibrated_on", "trained_on",
                 "evaluation", "licence")  # fmt: skip
        return cls(method=method, examples=examples, **{key: about[key] for key in plain})

    def push(self, repository: str, *, private: bool = True, folder: str | Path) -> str:
        """The address of the hub repository that the saved folder was uploaded to."""
        return upload(self.save(folder), repository, private=private)

    def with_licence(self, **fields: str) -> Detector:
        """The same detector with other licence fields."""
        return replace(self, licence={**self.licence, **fields})
