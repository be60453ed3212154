"""The model and the detector behind the server: one question checked, many scored, one streamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.deployed.located import Scored
from anchorscope.detect.deployed.running import RunningScore
from anchorscope.models import Model
from anchorscope.models.rotary import longest_row
from anchorscope.serve.deltas import Deltas
from anchorscope.serve.listen import listening
from anchorscope.serve.protocol import usage_of
from anchorscope.web.guard import ApiError


@dataclass(frozen=True)
class Piece:
    """What a new token adds to an answer: text, and the belief so far."""

    text: str
    running: dict[str, Any] | None = None


@dataclass(frozen=True)
class Done:
    """A whole answer: its score, its token counts, why it ended, and text not yet streamed."""

    scored: Scored
    usage: dict[str, int]
    finish: str  # stop, or length: the detector's limit of tokens
    rest: str = ""


@dataclass
class Served:
    """A detector and its model. One thread at a time may call it: a model is lent once."""

    detector: Detector
    model: Model
    dataset: str | None = None  # of the detector's, as which questions are asked, where they differ
    _running: RunningScore = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._running = RunningScore(self.detector)

    @property
    def facts(self) -> dict[str, Any]:
        """What every answer says of the detector."""
        return {"method": self.detector.name, "threshold": self.detector.threshold}

    def warm(self) -> None:
        """Proves model and detector on one question; an error where they do not fit."""
        self.score([self.detector.examples[0].question])

    def check(self, question: str) -> None:
        """Refuses a question that does not fit the model's window with its answer."""
        prompt, limit = len(self._bound.prompt(question).ids), self._bound.answerer.max_tokens
        window = longest_row(self.model.lm)
        if window is not None and prompt + limit > window:
            message = (
                f"The prompt has {prompt} tokens and the answer may have {limit}; {self.model.name}"
                f" reads {window}. Ask a shorter question."
            )
            raise ApiError(400, message, param="messages", code="context_length_exceeded")

    def score(self, questions: Sequence[str]) -> list[Scored]:
        """The model's own answers with their scores, in batches."""
        return self.detector.score(self.model, list(questions), dataset=self.dataset)

    def stream(self, question: str, tell: Callable[[Piece], None]) -> Done:
        """The answer as `score` gives it; `tell` hears each token as it is fed."""
        deltas, bound = Deltas(self.model.tokenizer), self._bound

        def heard(token: int, states: np.ndarray) -> None:
            tell(Piece(deltas.add(token), self._running.fields(states)))

        layers, limit = self._running.layers, bound.answerer.max_tokens
        with listening(self.model, heard, layers=layers, stop=bound.stop, limit=limit):
            (scored,) = self.score([question])
        return self.done(scored, rest=deltas.rest(scored.answer))

    def done(self, scored: Scored, *, rest: str = "") -> Done:
        """A scored answer with its token counts, which are those of its text."""
        bound, limit = self._bound, self._bound.answerer.max_tokens
        prompt = len(bound.prompt(scored.question).ids)
        # Text that is coded again may have more tokens than were written; those have a limit.
        answer = min(len(bound.answer_tokens(scored.question, scored.answer)), limit)
        finish = "length" if answer == limit else "stop"
        return Done(scored, usage_of(prompt, answer), finish, rest)

    @property
    def _bound(self) -> Any:
        return self.detector.bind(
            self.model, dataset=self.dataset
        )  # found once, then kept by the detector
