"""A detector to keep and to use: trained, calibrated, and tied to the model it was made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, overload
from weakref import WeakKeyDictionary

from transformers import BatchEncoding

from anchorscope.detect.deployed.bind import Bound, bind
from anchorscope.detect.deployed.hub import trained_at, upload
from anchorscope.detect.deployed.located import Scored
from anchorscope.detect.deployed.saved import save_trained
from anchorscope.detect.deployed.score import score_all
from anchorscope.detect.deployed.trained import Trained
from anchorscope.detect.deployed.warn import Warned, warn_all
from anchorscope.detect.train import train
from anchorscope.detect.watching.watch import Watch
from anchorscope.errors import UserError, user_path
from anchorscope.models import load_model
from anchorscope.models.prompts import generate_inputs
from anchorscope.progress import Progress
from anchorscope.run_folder.view import RunView


@dataclass(frozen=True, kw_only=True)
class Detector(Trained):
    """A trained detector in use: it scores answers, is saved, loaded and shared.

    Examples:
        >>> import anchorscope as anc
        >>> detector = anc.Detector.load("detector")
        >>> detector.score(model, "What is the capital of France?").answer
        'Paris'

    """

    _bound: WeakKeyDictionary = field(
        init=False, default_factory=WeakKeyDictionary, repr=False, compare=False
    )  # by model and dataset

    @classmethod
    def of(cls, trained: Trained) -> Detector:
        """The detector that uses what was trained."""
        return cls(**{f.name: getattr(trained, f.name) for f in fields(Trained)})

    @classmethod
    def train(cls, run: RunView | str | Path, *, method: str = "auto", **options: Any) -> Detector:
        """A detector trained on the answers of a run.

        `method` is a kind's short name, or "auto" for the best on held-out answers. `options`:
        `datasets` (of the run), `folds`, `seed`, `resamples`, `risk` (a promised share of wrong
        answers among the accepted ones), `licence`, `progress`.

        Examples:
            >>> import anchorscope as anc
            >>> trained = anc.Detector.train("runs/atlas", method="probe", folds=3, resamples=100)
            >>> trained.name, trained.datasets
            ('probe', ('atlas',))

        """
        view = run if isinstance(run, RunView) else RunView.open(run, collected_ok=True)
        return cls.of(train(view, method=method, **options))

    @overload
    def score(
        self, model: Any, question: str, *, answer: str | None = None, dataset: str | None = None
    ) -> Scored: ...
    @overload
    def score(
        self,
        model: Any,
        question: Sequence[str],
        *,
        answer: Sequence[str | None] | None = None,
        dataset: str | None = None,
        progress: Progress | None = None,
    ) -> list[Scored]: ...
    def score(self, model, question, *, answer=None, dataset=None, progress=None):
        """The model's own answer with its probability of being wrong, both from the same pass.

        With `answer` that answer is scored instead. Lists give lists, in batches. `dataset` says
        as which of the training datasets the questions are asked, where these differ.

        Examples:
            >>> scored = detector.score(model, "What is the capital of France?")
            >>> scored.answer, 0 < scored.probability < 1, len(scored.belief) == model.blocks
            ('Paris', True, True)
            >>> detector.score(model, "What is the capital of France?", answer="Lyon").answer
            'Lyon'

        """
        bound = self.bind(model, dataset=dataset)
        if isinstance(question, str):
            given = None if answer is None else [answer]
            return score_all(self, bound, [question], answers=given)[0]
        return score_all(self, bound, list(question), answers=answer, progress=progress)

    @overload
    def warn(self, model: Any, question: str, *, dataset: str | None = None) -> Warned: ...
    @overload
    def warn(
        self, model: Any, question: Sequence[str], *, dataset: str | None = None
    ) -> list[Warned]: ...
    def warn(self, model, question, *, dataset=None):
        """How likely the answer will be wrong, from the question alone; lists give lists."""
        if self.before is None:
            raise UserError(
                "This detector has no warning before the answer: the run it was trained on kept no "
                "states of the question. Train one on a run of `anchorscope detect collect`."
            )
        asked = [question] if isinstance(question, str) else list(question)
        warned = warn_all(self.before, self.bind(model, dataset=dataset), asked, self.id)
        return warned[0] if isinstance(question, str) else warned

    def inputs(
        self, model: Any, questions: str | Sequence[str], *, dataset: str | None = None
    ) -> BatchEncoding:
        """The detector's prompts as inputs for `model.lm.generate(**inputs)`, padded on the left.

        `input_ids` and `attention_mask`, [question, token], on the model's device.
        """
        bound = self.bind(model, dataset=dataset)
        asked = [questions] if isinstance(questions, str) else list(questions)
        return generate_inputs(
            bound.model, [bound.checked_prompt(question).ids for question in asked]
        )

    def watch(self, model: Any, *, dataset: str | None = None) -> Watch:
        """A `with` block around your own `model.lm.generate(...)`; it gives the scores after."""
        return Watch(self, self.bind(model, dataset=dataset))

    def bind(self, model: Any, *, dataset: str | None = None) -> Bound:
        """The detector's prompt for this model, found once; an error where they do not fit.

        `dataset` is one of `datasets`; it may be left out where all of them are asked alike.
        """
        if isinstance(model, str | Path):
            raise UserError(
                f"The model was given by name ('{model}'), which would load it for every call. "
                f"Load it once: load_model('{model}', dtype='{self.model.get('dtype')}')."
            )
        model = load_model(model)
        found = self._bound.setdefault(model.lm, {})
        bound = found.get(dataset)
        if bound is None or bound.model.tokenizer is not model.tokenizer:
            bound = found[dataset] = bind(self, model, dataset=dataset)
        return bound

    def save(self, folder: str | Path) -> Path:
        """The folder, with weights, description and model card in it."""
        return save_trained(self, user_path(folder))

    @classmethod
    def load(cls, place: str | Path, *, revision: str | None = None) -> Detector:
        """The detector in a folder, or in a repository of the hub.

        Examples:
            >>> import anchorscope as anc
            >>> folder = detector.save("detector")
            >>> anc.Detector.load(folder).id == detector.id
            True

        """
        return cls.of(trained_at(place, revision=revision))

    def push(self, repository: str, *, private: bool = True, folder: str | Path) -> str:
        """The address of the hub repository that the saved folder was uploaded to."""
        return upload(self.save(folder), repository, private=private)
