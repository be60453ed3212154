"""States and outputs of some questions, on their way from the device to main memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from anchorscope.engine.interventions import Intervention
from anchorscope.engine.read import Row
from anchorscope.engine.transfer import HostCopy, to_device


class Block(NamedTuple):
    """The states of some questions, which a GPU may still be making."""

    ids: list[str]
    states: HostCopy  # [question, layer, width]
    output: Tensor | None = None  # [question, 3], the model's own; None where the pass has none


Blocks = dict[str, list[Block]]  # of each pass, in the order they came


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
            at = to_device(own, states.device)
            own_output = None if output is None else output[at]
            blocks[cut.name] = Block(named, HostCopy(states[at]), own_output)
    return blocks
