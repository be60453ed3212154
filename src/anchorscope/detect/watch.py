"""For people who call `model.generate` themselves: the states are caught as they pass.

with detector.watch(model) as seen:
    out = model.lm.generate(**inputs, max_new_tokens=16)
for scored in seen.scores(out, questions): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from anchorscope.detect.binding import bind
from anchorscope.detect.detector import Scored
from anchorscope.detect.score import scored_rows
from anchorscope.detect.written import Found, find_exact, on_host, unknown_answer
from anchorscope.errors import UserError

if TYPE_CHECKING:
    from anchorscope.detect.detector import Detector


class Watch:
    """Catches the states of one layer or several while the model writes; then scores."""

    def __init__(self, detector: Detector, model: Any) -> None:
        bound = bind(detector, model)
        self.detector, self.model, self._stop = detector, bound.model, bound.stop
        needed = detector.method.needs()
        if set(needed) - {"clean"} or detector.method.reads_tokens:
            raise UserError(
                f"'{detector.name}' needs more than the states that pass by. "
                "Use detector.score(model, question, answer=...) for it."
            )
        # A detector of text alone still has to know how many tokens were written.
        self.layers = needed.get("clean") or (1,)
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
        found = [
            self._found(sequences[row, prompt:].tolist(), question, row)
            for row, question in enumerate(questions)
        ]
        rows = [row for row, one in enumerate(found) if one.exact]
        states: dict[tuple[str, int], np.ndarray] = {}
        if rows:
            last = [found[row].exact[-1] for row in rows]
            for layer in self.layers:
                states["clean", layer] = on_host(
                    torch.stack(
                        [
                            self._state(layer, row, at, sequences, prompt)
                            for row, at in zip(rows, last, strict=True)
                        ]
                    )
                )
        return scored_rows(self.detector, found, [found[row] for row in rows], states)

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

    def _found(self, ids: list[int], question: str, row: int) -> Found:
        stop = next((n for n, token in enumerate(ids) if token in self._stop), len(ids))
        text = self.model.tokenizer.decode(ids[:stop], skip_special_tokens=True)
        return find_exact(self.model, question, unknown_answer(text, ids[:stop], row))

    @torch.no_grad()
    def _state(self, layer: int, row: int, at: int, sequences: Tensor, prompt: int) -> Tensor:
        """The state of answer token `at`, which was fed in the pass after it was chosen."""
        steps = self._steps[layer]
        if at + 1 < len(steps):
            return steps[at + 1][row]
        # The last token that was allowed is chosen but never fed: it is fed here.
        return self._feed(layer, sequences[row, : prompt + at + 1])

    def _feed(self, layer: int, ids: Tensor) -> Tensor:
        pad = self.model.tokenizer.pad_token_id
        kept = ids[int((ids != pad).int().argmax()) :] if pad is not None else ids
        caught: list[Tensor] = []

        def hook(module: Any, args: tuple, output: Any) -> None:
            caught.append((output[0] if isinstance(output, tuple) else output)[0, -1])

        handle = self.model.parts.blocks[layer - 1].register_forward_hook(hook)
        try:
            self.model.parts.decoder(input_ids=kept[None], use_cache=False)
        finally:
            handle.remove()
        return caught[0]
