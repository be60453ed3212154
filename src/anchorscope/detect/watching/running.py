"""A score while the answer is being written: a stopping criterion and a streamer for `generate`.

with detector.watch(model) as seen:
    flag = StopWhenWrong(seen, questions)
    out = model.lm.generate(**detector.inputs(model, questions), stopping_criteria=[flag])

What is said of an unfinished answer is the detector's score of the entity as far as it is written.
The detector was calibrated on whole answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import StoppingCriteria, TextIteratorStreamer

from anchorscope.detect.deployed.located import Scored
from anchorscope.detect.watching.watch import Watch
from anchorscope.errors import UserError


class StopWhenWrong(StoppingCriteria):
    """Ends an answer once its probability of being wrong is above the threshold.

    `threshold` is the detector's own where none is given; with `stop=False` it only looks on.
    `scored` are the answers so far, and `history` the probabilities [row] after each pass.
    """

    def __init__(
        self,
        watch: Watch,
        questions: Sequence[str],
        *,
        threshold: float | None = None,
        stop: bool = True,
        prompt_tokens: int | None = None,
    ) -> None:
        own = watch.trained.threshold
        self.threshold = own if threshold is None else threshold
        if not 0 <= self.threshold <= 1:
            raise UserError(f"threshold is {threshold}; accepted: a probability from 0 to 1.")
        self.watch, self.questions, self.stop = watch, list(questions), stop
        self.scored: list[Scored] = []
        self.history: list[tuple[float, ...]] = []
        self._prompt_tokens, self._start = prompt_tokens, 0

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Whether each row ends here, bool [row]."""
        if not self._start:
            options = (input_ids, self.questions, self._prompt_tokens)
            self._start = self.watch.answers_begin(*options)
        self.scored = self.watch.so_far(input_ids, self.questions, self._start)
        self.history.append(tuple(one.probability for one in self.scored))
        # No probability yet (NaN) is above no threshold.
        above = np.array(self.history[-1]) > self.threshold
        return torch.tensor(above & self.stop, device=input_ids.device)


class Piece(NamedTuple):
    """A piece of text as it was written, and what the detector says of the answer up to it."""

    text: str
    scored: Scored


class ScoreStreamer(TextIteratorStreamer):
    """The pieces of one answer with the score so far; the last piece has the whole answer's.

    Iterate over it while `generate(..., streamer=streamer)` runs in another thread.
    """

    def __init__(
        self,
        watch: Watch,
        question: str,
        *,
        prompt_tokens: int | None = None,
        timeout: float | None = None,
    ) -> None:
        tokenizer = watch.model.tokenizer
        super().__init__(tokenizer, skip_prompt=True, timeout=timeout, skip_special_tokens=True)
        self.watch, self.question = watch, question
        self._prompt_tokens, self._start = prompt_tokens, 0
        self._ids: list[Tensor] = []  # the prompt, then what was chosen, [1, token] each

    def put(self, value: Tensor) -> None:
        """Takes the prompt, then each token or several."""
        self._ids.append(value.reshape(1, -1) if value.dim() < 2 else value)
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Hands on the text with its score; an error goes to the reader as well."""
        try:
            if text or stream_end:
                self.text_queue.put(Piece(text, self._score(stream_end)), timeout=self.timeout)
        except Exception as error:
            self.text_queue.put(error, timeout=self.timeout)
            raise
        if stream_end:
            self.text_queue.put(self.stop_signal, timeout=self.timeout)

    def __next__(self) -> Any:
        """The next piece; raises what scoring it raised."""
        value = super().__next__()
        if isinstance(value, Exception):
            raise value
        return value

    def _score(self, whole: bool) -> Scored:
        ids = torch.cat([part.cpu() for part in self._ids], dim=1)
        if whole:
            options = {"prompt_tokens": self._prompt_tokens}
            return self.watch.scores(ids, [self.question], **options)[0]
        if not self._start:
            options = (ids, [self.question], self._prompt_tokens)
            self._start = self.watch.answers_begin(*options)
        return self.watch.so_far(ids, [self.question], self._start)[0]
