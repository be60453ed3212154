"""States under any interventions: rows batched, windows swept, memory watched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from torch import Tensor

from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.intervene import Row, read_batch
from anchorscope.engine.interventions import window_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import Trunk
from anchorscope.engine.windows import read_windows


def read_rows(
    lease: Lease, trunk: Trunk, rows: Sequence[Row], *, budget: Budget, depth: int | None = None
) -> Iterator[tuple[list[Row], Tensor]]:
    """Rows with their states [row, layer, width], a batch at a time; of `depth` layers or all."""
    for (width, _), group in groupby(sorted(rows, key=_kind), key=_kind):

        def work(batch: list[Row], width: int = width) -> Tensor:
            if width:
                return read_windows(lease, trunk, batch, width)[:, :depth]
            return read_batch(lease, trunk, batch, depth=depth)

        def length(row: Row, width: int = width) -> int:
            return len(row.ids) * (1 + width)

        yield from in_batches(
            group, work, length=length, then=lambda row: row.number, budget=budget
        )


def _kind(row: Row) -> tuple[int, str]:
    """Rows that go together; those cut after the softmax need its weights written out, slowly."""
    return _width(row), row.intervention.where


def _width(row: Row) -> int:
    """How many blocks a row's window has; 0 for a cut in all of them, or in none."""
    return 0 if row.intervention.answer_only else window_of(row.intervention.layers) or 0
