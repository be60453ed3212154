"""The states of some questions under one pass, on their way from the device to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from anchorscope.answers.generate import Answered
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.passes import CAUGHT
from anchorscope.engine.rows import Row
from anchorscope.engine.transfer import Arriving, sent
from anchorscope.records import Sample


class Block(NamedTuple):
    """The states of some questions, which a GPU may still be making."""

    ids: list[str]
    states: Arriving  # [question, layer, width]
    output: Tensor | None = None  # [question, 3], the model's own; None where the pass has none


class Blocks:
    """The blocks of each pass, in the order they came."""

    def __init__(self, names: Sequence[str]) -> None:
        self._of: dict[str, list[Block]] = {name: [] for name in names}

    def __getitem__(self, name: str) -> list[Block]:
        return self._of[name]

    def add(self, blocks: Mapping[str, Block], *, before: Sequence[Block]) -> list[Block]:
        """Takes one block of each pass; a GPU then keeps none of those `before`.

        It has done them by now, and goes on with these while the next ones are prepared.
        """
        for block in before:
            block.states.settle()
        for name, block in blocks.items():
            self._of[name].append(block)
        return list(blocks.values())


def caught(samples: Sequence[Sample], answered: Answered) -> dict[str, Block]:
    """States by name, of each sample that has a probe position; empty where none has one."""
    rows = [n for n, s in enumerate(samples) if s.exact_answer and s.exact_question]
    if not rows:
        return {}
    assert answered.also is not None
    last = [samples[n].exact_answer[-1] - len(samples[n].prompt_ids) for n in rows]
    device = answered.states.device
    at = sent(rows, device)
    states = (answered.states[at, sent(last, device)], answered.also[at])
    ids = [samples[n].id for n in rows]
    return {name: Block(ids, Arriving(of)) for name, of in zip(CAUGHT, states, strict=True)}


def by_pass(
    passes: Sequence[Intervention],
    ids: Sequence[str],
    batch: Sequence[Row],
    states: Tensor,
    output: Tensor | None,
) -> dict[str, Block]:
    """States [row, layer, width] and output [row, 3] of a batch, pass by pass.

    `ids` are those of the questions that the batch is about.

    Row by row they would have to be put together again to be written.
    """
    blocks = {}
    for cut in passes:
        own = [n for n, row in enumerate(batch) if row.intervention is cut]
        if own:
            named = [ids[batch[n].number] for n in own]
            at = sent(own, states.device)
            own_output = None if output is None else output[at]
            blocks[cut.name] = Block(named, Arriving(states[at]), own_output)
    return blocks
