"""Score answers while your own `model.generate` writes them, from the states that it computes.

inputs = detector.inputs(model, questions)
with detector.watch(model) as seen:
    out = model.lm.generate(**inputs, max_new_tokens=16)
for scored in seen.scores(out, questions): ...

`StopWhenWrong` and `ScoreStreamer` score while the answer is written: the entity as far as it is
there. The detector was calibrated on whole answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import StoppingCriteria, TextIteratorStreamer

from anchorscope.detect.deployed.bind import Bound
from anchorscope.detect.deployed.located import (
    LocatedAnswer,
    Scored,
    locate_answer,
    on_host,
    unknown_answer,
)
from anchorscope.detect.watching.recorder import ForwardRecorder
from anchorscope.errors import UserError
from anchorscope.records import Answer

ScoreStates = Callable[[Sequence[LocatedAnswer], np.ndarray], list[Scored]]


class Watch:
    """Catches the states of all layers while the model writes; then scores.

    `score_states` is the detector's: it scores answers by their states [answer, layer, width].
    """

    def __init__(
        self, bound: Bound, score_states: ScoreStates, *, threshold: float, token_log_probs: bool
    ) -> None:
        self.bound, self.model, self.threshold = bound, bound.model, threshold
        self._score_states, self._token_log_probs = score_states, token_log_probs
        self._recorder = ForwardRecorder(self.model, token_log_probs=token_log_probs)

    def __enter__(self) -> Watch:
        self._recorder = ForwardRecorder(self.model, token_log_probs=self._token_log_probs)
        self._recorder.open()
        return self

    def __exit__(self, *error: object) -> None:
        self._recorder.close()

    def scores(
        self, sequences: Any, questions: Sequence[str], *, prompt_tokens: int | None = None
    ) -> list[Scored]:
        """The scored answers of what `generate` returned, [row, prompt + answer].

        The answer is the first line after the prompt. Each row must begin with the detector's own
        prompt for its question, as `detector.inputs` builds it: the probability was calibrated
        with that. `prompt_tokens` says how many columns another prompt takes instead.
        """
        ids = getattr(sequences, "sequences", sequences)
        return self._scored(ids, questions, self.answers_begin(ids, questions, prompt_tokens))

    def so_far(self, ids: Tensor, questions: Sequence[str], start: int) -> list[Scored]:
        """The scores of answers that are still being written, up to the last token fed.

        `ids` [row, prompt + answer] is what was chosen so far and `start` the column at which the
        answers begin (`answers_begin`). It costs no pass.
        """
        return self._scored(ids[:, : self._recorder.ids.shape[1]], questions, start)

    def answers_begin(
        self, ids: Tensor, questions: Sequence[str], prompt_tokens: int | None = None
    ) -> int:
        """The column at which the answers begin; an error where these are not the watched rows."""
        self._check_seen(ids, questions)
        start = self._prompt_end(ids, questions) if prompt_tokens is None else prompt_tokens
        if not 0 < start <= ids.shape[1]:
            raise UserError(
                f"prompt_tokens is {start}; accepted: 1 to {ids.shape[1]}, the columns of what "
                "generate returned."
            )
        return start

    def _scored(self, ids: Tensor, questions: Sequence[str], start: int) -> list[Scored]:
        """The scored answers that begin at column `start`."""
        answers = [
            self._located(ids[row, start:].tolist(), question, row, start)
            for row, question in enumerate(questions)
        ]
        clean = np.zeros((len(answers), self.model.blocks, self.model.parts.width), np.float32)
        for row, one in enumerate(answers):
            if one.exact_answer:
                state = self._state(ids[row], start + one.exact_answer[-1], row)
                clean[row] = on_host(state[None])[0]
        return self._score_states(answers, clean)

    def _check_seen(self, ids: Tensor, questions: Sequence[str]) -> None:
        """Raise a UserError where the sequences are not those that the watched passes wrote."""
        if isinstance(questions, str) or len(questions) != len(ids):
            count = 1 if isinstance(questions, str) else len(questions)
            raise UserError(
                f"{len(ids)} sequences and {count} questions were given. Give a list with one "
                "question for each sequence."
            )
        seen = self._recorder.ids
        if not seen.numel() or len(seen) != len(ids):
            raise UserError(
                f"{len(ids)} sequences were given, but the passes seen had {len(seen)} rows. Call "
                "generate inside the `with` block, without beams, and pass on what it returned."
            )
        # The last token of all is chosen but never fed.
        fed = ids[:, :-1].to(seen.device)
        if seen.shape[1] < fed.shape[1] or not torch.equal(seen[:, : fed.shape[1]], fed):
            raise UserError(
                "These sequences are not what the last passes in the `with` block wrote. Score "
                "each generate call before the next one, or give each its own block; begin it "
                "from an empty cache and without beams, and pass on what it returned as it is."
            )

    def _prompt_end(self, ids: Tensor, questions: Sequence[str]) -> int:
        """The column at which the answers begin, after the detector's own prompts."""
        ends = set()
        for row, question in enumerate(questions):
            prompt = list(self.bound.prompt(question).ids)
            padding = _padding_before(ids[row].tolist(), prompt)
            if padding is None:
                raise UserError(
                    f"Row {row} does not begin with the detector's prompt for {question!r}. Build "
                    "it with detector.inputs(model, questions). For a prompt of your own, which "
                    "the probability was not calibrated with, give prompt_tokens, the columns "
                    "it takes."
                )
            hidden = self._recorder.padding(row)
            if hidden is not None and hidden != padding:
                raise UserError(
                    f"The {padding} tokens of padding in front of row {row} were not masked. Give "
                    "generate the attention_mask as well, as detector.inputs(model, questions) "
                    "does."
                )
            ends.add(padding + len(prompt))
        if len(ends) > 1:
            raise UserError(
                "The prompts do not end in the same column. Pad them on the left, as "
                "detector.inputs(model, questions) does."
            )
        return ends.pop()

    def _located(self, ids: list[int], question: str, row: int, start: int) -> LocatedAnswer:
        stop = next((n for n, token in enumerate(ids) if token in self.bound.stop), len(ids))
        text = self.model.tokenizer.decode(ids[:stop], skip_special_tokens=True)
        answer = self._with_log_probs(unknown_answer(text, ids[:stop], row), row, start)
        return locate_answer(self.model, question, answer)

    def _with_log_probs(self, answer: Answer, row: int, start: int) -> Answer:
        """The answer with how likely its tokens were, where the detector reads that."""
        probabilities = self._recorder.probabilities
        if probabilities is None or not answer.token_ids:
            return answer
        found = [
            probabilities.at(row, position, token)
            for position, token in enumerate(answer.token_ids, start)
        ]
        known = [one for one in found if one is not None]
        if len(known) < len(found):
            raise UserError(
                "This detector reads how likely each token of an answer was, and the recorded "
                "passes do not tell. Let generate run with a cache, or use "
                "detector.score(model, question, answer=...)."
            )
        log_probs = tuple(one.log_prob for one in known)
        return replace(answer, log_probs=log_probs, first_entropy=known[0].entropy)

    def _state(self, ids: Tensor, at: int, row: int) -> Tensor:
        """The states [layer, width] at one position of a row; fed again where they are not kept."""
        seen = self._recorder.ids[row]
        caught = self._recorder.state(row, at) if at < len(seen) and seen[at] == ids[at] else None
        if caught is not None:
            return caught.cpu()
        return self._recorder.feed(ids[self._recorder.padding(row) or 0 : at + 1])


def _padding_before(ids: list[int], prompt: list[int]) -> int | None:
    """How many equal tokens come before the prompt in a row; None where it is not there."""
    for padding in range(len(ids) - len(prompt) + 1):
        if ids[padding : padding + len(prompt)] == prompt:
            return padding
        if ids[padding] != ids[0]:
            return None
    return None


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
        self.threshold = watch.threshold if threshold is None else threshold
        if not 0 <= self.threshold <= 1:
            raise UserError(f"threshold is {threshold}; accepted: a probability from 0 to 1.")
        self.watch, self.questions, self.stop = watch, list(questions), stop
        self.scored: list[Scored] = []
        self.history: list[tuple[float, ...]] = []
        self._prompt_tokens, self._start = prompt_tokens, 0

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Whether each row ends here, bool [row]."""
        if not self._start:
            self._start = self.watch.answers_begin(input_ids, self.questions, self._prompt_tokens)
        self.scored = self.watch.so_far(input_ids, self.questions, self._start)
        self.history.append(tuple(one.probability for one in self.scored))
        # No probability yet (NaN) is above no threshold.
        above = np.array(self.history[-1]) > self.threshold
        return torch.tensor(above & self.stop, device=input_ids.device)


class Piece(NamedTuple):
    """A piece of text as it was written, and the score of the answer up to it."""

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
        """Take the prompt, then each token or several."""
        self._ids.append(value.reshape(1, -1) if value.dim() < 2 else value)
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Queue the text with its score; an error goes to the reader as well."""
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
            return self.watch.scores(ids, [self.question], prompt_tokens=self._prompt_tokens)[0]
        if not self._start:
            self._start = self.watch.answers_begin(ids, [self.question], self._prompt_tokens)
        return self.watch.so_far(ids, [self.question], self._start)[0]
