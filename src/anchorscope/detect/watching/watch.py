"""For people who call `model.generate` themselves: the states are caught as they pass.

inputs = detector.inputs(model, questions)
with detector.watch(model) as seen:
    out = model.lm.generate(**inputs, max_new_tokens=16)
for scored in seen.scores(out, questions): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorscope.detect.deployed.bind import Bound
from anchorscope.detect.deployed.located import (
    LocatedAnswer,
    Scored,
    States,
    locate_answer,
    on_host,
    scored_answers,
    unknown_answer,
)
from anchorscope.detect.deployed.trained import Trained
from anchorscope.detect.watching.passing import Passing
from anchorscope.errors import UserError
from anchorscope.records import Answer


class Watch:
    """Catches the states of one layer or several while the model writes; then scores."""

    def __init__(self, trained: Trained, bound: Bound) -> None:
        self.trained, self.bound, self.model = trained, bound, bound.model
        self.needed = trained.method.needs()
        if set(self.needed) - {"clean"}:
            raise UserError(
                f"'{trained.name}' needs more than the states that pass by. "
                "Use detector.score(model, question, answer=...) for it."
            )
        # All layers where beliefs are shown; one at least, to see that the model was used.
        everything = tuple(range(1, bound.model.blocks + 1))
        self.layers = self.needed.get("clean") or (1,)
        self.layers = self.layers if trained.beliefs is None else everything
        self._passing = self._record()

    def _record(self) -> Passing:
        return Passing(self.model, self.layers, chances=self.trained.method.reads_tokens)

    def __enter__(self) -> Watch:
        self._passing = self._record()
        self._passing.open()
        return self

    def __exit__(self, *error: object) -> None:
        self._passing.close()

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
        return self._scored(ids[:, : self._passing.ids.shape[1]], questions, start)

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
        rows = [row for row, one in enumerate(answers) if one.exact_answer]
        clean = np.empty((0, len(self.layers), 0), dtype=np.float32)
        if rows:
            read = [self._state(ids[n], start + answers[n].exact_answer[-1], n) for n in rows]
            clean = on_host(torch.stack(read))
        place = {layer: at for at, layer in enumerate(self.layers)}
        states: States = {
            ("clean", layer): clean[:, place[layer]] for layer in self.needed.get("clean", ())
        }
        return scored_answers(self.trained, answers, rows, states, clean)

    def _check_seen(self, ids: Tensor, questions: Sequence[str]) -> None:
        """Raise a UserError where the sequences are not those that the watched passes wrote."""
        if isinstance(questions, str) or len(questions) != len(ids):
            count = 1 if isinstance(questions, str) else len(questions)
            raise UserError(
                f"{len(ids)} sequences and {count} questions were given. Give a list with one "
                "question for each sequence."
            )
        seen = self._passing.ids
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
            self._check_masked(row, padding)
            ends.add(padding + len(prompt))
        if len(ends) > 1:
            raise UserError(
                "The prompts do not end in the same column. Pad them on the left, as "
                "detector.inputs(model, questions) does."
            )
        return ends.pop()

    def _check_masked(self, row: int, padding: int) -> None:
        hidden = self._passing.padding(row)
        if hidden is not None and hidden != padding:
            raise UserError(
                f"The {padding} tokens of padding in front of row {row} were not masked. Give "
                "generate the attention_mask as well, as detector.inputs(model, questions) does."
            )

    def _located(self, ids: list[int], question: str, row: int, start: int) -> LocatedAnswer:
        stop = next((n for n, token in enumerate(ids) if token in self.bound.stop), len(ids))
        text = self.model.tokenizer.decode(ids[:stop], skip_special_tokens=True)
        answer = self._with_chances(unknown_answer(text, ids[:stop], row), row, start)
        return locate_answer(self.model, question, answer)

    def _with_chances(self, answer: Answer, row: int, start: int) -> Answer:
        """The answer with how likely its tokens were, where the detector reads that."""
        if self._passing.chances is None or not answer.token_ids:
            return answer
        tokens = enumerate(answer.token_ids, start)
        chances = [self._passing.chances.of(row, at, token) for at, token in tokens]
        if None in chances:
            raise UserError(
                f"'{self.trained.name}' reads how likely each token of an answer was, and the "
                "passes seen do not tell. Let generate run with a cache, or use "
                "detector.score(model, question, answer=...)."
            )
        known = [of for of in chances if of is not None]
        log_probs = tuple(of.log_prob for of in known)
        return replace(answer, log_probs=log_probs, first_entropy=known[0].entropy)

    def _state(self, ids: Tensor, at: int, row: int) -> Tensor:
        """The states [layer, width] at one position of a row; fed again where they are not kept."""
        seen = self._passing.ids[row]
        caught = self._passing.state(row, at) if at < len(seen) and seen[at] == ids[at] else None
        if caught is not None:
            return caught.cpu()
        return self._passing.feed(ids[self._passing.padding(row) or 0 : at + 1])


def _padding_before(ids: list[int], prompt: list[int]) -> int | None:
    """How many equal tokens stand in front of the prompt in a row; None where it is not there."""
    for padding in range(len(ids) - len(prompt) + 1):
        if ids[padding : padding + len(prompt)] == prompt:
            return padding
        if ids[padding] != ids[0]:
            return None
    return None
