"""Windows of blocks: the knockout in the w blocks that end at k, for every k in one pass.

A window that starts at block s leaves the layers below s as they are, so it can start from the
clean states there. One clean row and w slots go through the blocks together. Before block s the
slot s mod w is set back to the clean row: its window begins. After block s + w - 1 it holds the
state of that layer under that window, and is free for the next. The first window also gives the
layers 1..w-1, whose windows are cut short at block 1. So a sweep over all k costs w + 1 rows of
suffix tokens instead of one pass for each k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from anchorscope.engine.intervene import Row, read_batch
from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import Trunk


def read_windows(lease: Lease, trunk: Trunk, rows: Sequence[Row], width: int) -> Tensor:
    """States [row, layer, width]: layer k under the cut in the `width` blocks that end at k."""
    blocks = lease.model.blocks
    clean = [replace(row, blocks=range(0)) for row in rows]
    everywhere = [replace(row, blocks=range(blocks)) for row in rows]
    states = read_batch(lease, trunk, [*clean, *everywhere * width], set_back=_Slots(rows, width))
    states = states.view(1 + width, len(rows), blocks, -1)
    # From 0: the window that ends at block k began at k - width + 1, or with the first block.
    slots = [1 + max(0, k - width + 1) % width for k in range(blocks)]
    return torch.stack([states[slot, :, k] for k, slot in enumerate(slots)], dim=1)


class _Slots:
    """Sets the slot whose window begins at a block back to the clean rows."""

    def __init__(self, rows: Sequence[Row], width: int) -> None:
        self.tokens = sum(len(row.ids) for row in rows)
        self.width = width

    def __call__(self, block: int, hidden: Tensor) -> Tensor:
        """The packed hidden states [1, token, width] that the block is given."""
        start = self.tokens * (1 + block % self.width)
        hidden = hidden.clone()
        hidden[:, start : start + self.tokens] = hidden[:, : self.tokens]
        return hidden
