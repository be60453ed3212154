"""The model and the detector behind the server: one question checked, many scored, one streamed.

Streaming does not generate in a way of its own: `Detector.score` writes and scores the answer as it
does for an unstreamed request, and hooks record the passes. So both give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.deployed.located import Scored, on_host
from anchorscope.detect.deployed.running import RunningScore
from anchorscope.inspection.question import OnToken
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

    def score(self, questions: Sequence[str]) -> list[Scored]:
        """The model's own answers with their scores, in batches."""
        return self.detector.score(self.model, list(questions), dataset=self.dataset)

    def stream(self, question: str, send: Callable[[Piece], None]) -> Done:
        """The answer as `score` gives it; `send` gets each token as it is fed."""
        deltas, bound = Deltas(self.model.tokenizer), self._bound

        def on_token(token: int, states: np.ndarray) -> None:
            send(Piece(deltas.add(token), self._running.fields(states)))

        layers, limit = self._running.layers, bound.answerer.max_tokens
        with recorded_tokens(self.model, on_token, layers=layers, stop=bound.stop, limit=limit):
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


class _TokenRecorder:
    """Follow the passes of one answer: prompt, then one token each, then what a method reads.

    The head chooses. Once it has chosen a token that ends the answer, or the limit is reached, what
    passes is no longer the answer.
    """

    def __init__(
        self, on_token: OnToken, *, layers: int, stop: Collection[int], limit: int
    ) -> None:
        self._on_token, self._layers = on_token, layers
        self._stop, self._limit = stop, limit
        self._open, self._ended, self._count = False, False, 0
        self._token: int | None = None
        self._states: list[Tensor] = []

    def chosen(self, module: Any, args: tuple, logits: Tensor) -> None:
        """The head's choice after the prompt or after a token."""
        if not self._ended:
            token = int(logits.reshape(-1, logits.shape[-1])[-1].argmax())
            self._open, self._ended = True, token in self._stop

    def fed(self, module: Any, args: tuple) -> None:
        """The ids that go in: one alone is a token of the answer."""
        self._token, self._states = None, []
        if self._open and not self._ended and args[0].numel() == 1:
            self._token = int(args[0].reshape(-1)[0])

    def passed(self, module: Any, args: tuple, output: Any) -> None:
        """The state after a block; the last one that is wanted completes the token."""
        if self._token is None:
            return
        hidden = output[0] if isinstance(output, tuple | list) else output
        self._states.append(hidden.reshape(-1, hidden.shape[-1])[-1].detach().to("cpu"))
        if len(self._states) < self._layers:
            return
        token, self._token = self._token, None
        self._count += 1
        states = on_host(torch.stack(self._states)[None])[0]
        self._ended = self._count >= self._limit
        self._on_token(token, states)


@contextmanager
def recorded_tokens(
    model: Model, on_token: OnToken, *, layers: Sequence[int], stop: Collection[int], limit: int
) -> Iterator[None]:
    """A block in which `on_token` gets each answer token with its states at these layers."""
    recorder = _TokenRecorder(on_token, layers=len(layers), stop=stop, limit=limit)
    embedding: Any = model.lm.get_input_embeddings()
    with ExitStack() as back:
        back.callback(embedding.register_forward_pre_hook(recorder.fed).remove)
        for layer in layers:
            block = model.parts.blocks[layer - 1]
            back.callback(block.register_forward_hook(recorder.passed).remove)
        back.callback(model.parts.head.register_forward_hook(recorder.chosen).remove)
        yield
