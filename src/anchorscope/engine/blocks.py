"""States and outputs of a batch by pass, copied from the device to main memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from anchorscope.engine.interventions import Intervention
from anchorscope.engine.read import Row
from anchorscope.engine.transfer import HostCopy, to_device


class Block(NamedTuple):
    """States of a batch of questions under one pass, which a GPU may still be computing."""

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
    """Split a batch's states [row, layer, width] and output [row, 3] by pass.

    `ids` are the ids of the trunk's questions. Blocks stay whole: single rows would have to be
    joined again to be written.
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
