"""The model and the detector behind the server: one question checked, many scored, one streamed.

Streaming does not generate in a way of its own: `Detector.score` writes and scores the answer as it
does for an unstreamed request, and reports each token. So both give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.deployed.located import Scored, on_host
from anchorscope.detect.deployed.running import RunningScore
from anchorscope.engine.decode import OnToken
from anchorscope.models import Model
from anchorscope.models.parts import longest_row
from anchorscope.serve.protocol import usage_of
from anchorscope.web.guard import ApiError

_HALF = "\ufffd"  # what half a character decodes to


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
    """A detector and its model. One thread at a time may call it."""

    detector: Detector
    model: Model
    dataset: str | None = None  # of the detector's, as which questions are asked, where they differ
    _running: RunningScore = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._running = RunningScore(self.detector)

    @property
    def facts(self) -> dict[str, Any]:
        """The detector's name and threshold, which every answer carries."""
        return {"method": self.detector.name, "threshold": self.detector.threshold}

    def warm(self) -> None:
        """Score one question, so that a model and a detector that do not fit fail now."""
        self.score([self.detector.examples[0].question])

    def check(self, question: str) -> None:
        """Raise an ApiError for a question that does not fit the model's window with its answer."""
        prompt, limit = len(self._bound.prompt(question).ids), self._bound.answerer.max_tokens
        window = longest_row(self.model.lm)
        if window is not None and prompt + limit > window:
            message = (
                f"The prompt has {prompt} tokens and the answer may have {limit}; {self.model.name}"
                f" reads {window}. Ask a shorter question."
            )
            raise ApiError(400, message, param="messages", code="context_length_exceeded")

    def score(self, questions: Sequence[str], *, on_token: OnToken | None = None) -> list[Scored]:
        """The model's own answers with their scores, in batches; see `Detector.score`."""
        return self.detector.score(
            self.model, list(questions), dataset=self.dataset, on_token=on_token
        )

    def stream(self, question: str, send: Callable[[Piece], None]) -> Done:
        """The answer as `score` gives it; `send` gets each token as it is fed."""
        deltas = Deltas(self.model.tokenizer)
        layers = [layer - 1 for layer in self._running.layers]

        def on_token(token: int, states: Tensor) -> None:
            running = self._running.fields(on_host(states[layers][None])[0])
            send(Piece(deltas.add(token), running))

        (scored,) = self.score([question], on_token=on_token)
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
        # Found once, then kept by the detector.
        return self.detector.bind(self.model, dataset=self.dataset)


class Deltas:
    """What each new token adds to the text; spaces and half characters wait for what follows."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._sent = ""

    def add(self, token: int) -> str:
        """The text that this token adds; may be empty."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True).lstrip()
        # An answer is stripped at its end, and the next token may complete a character.
        return self._beyond(text.rstrip(_HALF).rstrip())

    def rest(self, answer: str) -> str:
        """What is missing when the whole answer is known."""
        return self._beyond(answer)

    def _beyond(self, text: str) -> str:
        if not text.startswith(self._sent):
            return ""
        new, self._sent = text[len(self._sent) :], text
        return new
