"""For people who call `model.generate` themselves: the states are caught as they pass.

with detector.watch(model) as seen:
    out = model.lm.generate(**inputs, max_new_tokens=16)
for scored in seen.scores(out, questions): ...
"""

from __future__ import annotations

from collections.abc import Sequence
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
from anchorscope.errors import UserError


class Watch:
    """Catches the states of one layer or several while the model writes; then scores."""

    def __init__(self, trained: Trained, bound: Bound) -> None:
        self.trained, self.model, self._stop = trained, bound.model, bound.stop
        self.needed = trained.method.needs()
        if set(self.needed) - {"clean"} or trained.method.reads_tokens:
            raise UserError(
                f"'{trained.name}' needs more than the states that pass by. "
                "Use detector.score(model, question, answer=...) for it."
            )
        # All layers where beliefs are shown; one at least, to count the tokens written.
        everything = tuple(range(1, bound.model.blocks + 1))
        self.layers = self.needed.get("clean") or (1,)
        self.layers = self.layers if trained.beliefs is None else everything
        self._hooks: list[Any] = []
        self._steps: dict[int, list[Tensor]] = {}

    def __enter__(self) -> Watch:
        self._steps = {layer: [] for layer in self.layers}
        for layer in self.layers:
            block = self.model.parts.blocks[layer - 1]
            self._hooks.append(block.register_forward_hook(self._catch(layer)))
        return self

    def __exit__(self, *error: object) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def scores(self, sequences: Tensor, questions: Sequence[str]) -> list[Scored]:
        """The scored answers of what `generate` returned, [row, prompt + answer].

        The answer is the first line after the prompt. The prompt is yours: the probability was
        calibrated with the detector's own.
        """
        prompt = self._prompt_length(sequences, questions)
        answers = [
            self._located(sequences[row, prompt:].tolist(), question, row)
            for row, question in enumerate(questions)
        ]
        rows = [row for row, one in enumerate(answers) if one.exact_answer]
        clean = np.empty((0, len(self.layers), 0), dtype=np.float32)
        if rows:
            read = [self._state(n, answers[n].exact_answer[-1], sequences, prompt) for n in rows]
            clean = on_host(torch.stack(read))
        place = {layer: at for at, layer in enumerate(self.layers)}
        states: States = {
            ("clean", layer): clean[:, place[layer]] for layer in self.needed.get("clean", ())
        }
        return scored_answers(self.trained, answers, rows, states, clean)

    def _catch(self, layer: int) -> Any:
        def hook(module: Any, args: tuple, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            # Of the prompt only the last token matters, and only for counting.
            self._steps[layer].append(hidden[:, -1].detach())

        return hook

    def _prompt_length(self, sequences: Tensor, questions: Sequence[str]) -> int:
        steps = self._steps.get(self.layers[0], [])
        rows = {len(step) for step in steps}
        if not steps or rows != {len(sequences)}:
            raise UserError(
                f"{len(sequences)} sequences were given, but the passes seen had {sorted(rows)} "
                "rows. Call generate once inside the `with` block, without beams, with "
                "use_cache=True, and pass on what it returned."
            )
        if len(questions) != len(sequences):
            raise UserError(f"{len(sequences)} sequences and {len(questions)} questions.")
        # Each pass chose one token: the first from the prompt, the others from the one before.
        return sequences.shape[1] - len(steps)

    def _located(self, ids: list[int], question: str, row: int) -> LocatedAnswer:
        stop = next((n for n, token in enumerate(ids) if token in self._stop), len(ids))
        text = self.model.tokenizer.decode(ids[:stop], skip_special_tokens=True)
        return locate_answer(self.model, question, unknown_answer(text, ids[:stop], row))

    @torch.no_grad()
    def _state(self, row: int, at: int, sequences: Tensor, prompt: int) -> Tensor:
        """The states [layer, width] of answer token `at`, fed in the pass after it was chosen."""
        if at + 1 < len(self._steps[self.layers[0]]):
            return torch.stack([self._steps[layer][at + 1][row] for layer in self.layers])
        # The last token that was allowed is chosen but never fed: it is fed here.
        return self._feed(sequences[row, : prompt + at + 1])

    def _feed(self, ids: Tensor) -> Tensor:
        """The states [layer, width] at the last token of one sequence."""
        pad = self.model.tokenizer.pad_token_id
        kept = ids[int((ids != pad).int().argmax()) :] if pad is not None else ids
        caught: list[Tensor] = []

        def hook(module: Any, args: tuple, output: Any) -> None:
            caught.append((output[0] if isinstance(output, tuple) else output)[0, -1])

        blocks = [self.model.parts.blocks[layer - 1] for layer in self.layers]
        handles = [block.register_forward_hook(hook) for block in blocks]
        try:
            self.model.parts.decoder(input_ids=kept[None], use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack(caught)
