"""A run's shards, as evidence goes through them: what is on disk is not done again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import Prefix
from anchorscope.evidence.held_out import HeldOut
from anchorscope.evidence.reading import prefix_of
from anchorscope.progress import Progress, Quiet
from anchorscope.records import Sample
from anchorscope.samples import from_frame
from anchorscope.states import save_states, shard_name
from anchorscope.store import Store


def evidence_name(piece: str, number: int) -> str:
    """The name of a shard's table in the run folder."""
    return f"evidence/{piece}/{number:05d}.parquet"


def stored_shards(store: Store, count: int) -> list[list[Sample]]:
    """The samples of every shard of a run, as its answers were stored."""
    files = (store.file(f"answers/{number:05d}.parquet") for number in range(count))
    return [from_frame(pd.read_parquet(file)) for file in files]


@dataclass
class Shards:
    """The model, the run folder, and the samples of each of its shards."""

    lease: Lease
    store: Store
    samples: Sequence[Sequence[Sample]]  # by shard: of one dataset each, in the files' order
    seed: int
    progress: Progress = field(default_factory=Quiet)
    _prefix: dict[str, Prefix] = field(default_factory=dict, repr=False)

    def of_dataset(self, name: str) -> list[Sample]:
        """All samples of a dataset, over its shards."""
        return [s for shard in self.samples for s in shard if s.question.dataset == name]

    def numbers(self, dataset: str) -> list[int]:
        """The shards that hold a dataset."""
        return [n for n, shard in enumerate(self.samples) if shard[0].question.dataset == dataset]

    def prefix(self, dataset: str) -> Prefix:
        """The tokens in front of every question of a dataset; one dataset's is kept at a time."""
        if dataset not in self._prefix:
            found = prefix_of(self.lease, self.of_dataset(dataset))
            self._prefix.clear()
            self._prefix[dataset] = found
        return self._prefix[dataset]

    def each(
        self,
        stage: str,
        files: Callable[[int], Sequence[str]],
        work: Callable[[int, str, list[Sample]], None],
    ) -> None:
        """Does `work` with every shard's number, dataset and samples that lacks one of its files.

        Samples without a state under the clean pass are left out, as everywhere.
        """
        self.progress.start(stage, sum(map(len, self.samples)))
        for number, shard in enumerate(self.samples):
            if not all(self.store.has(name) for name in files(number)):
                read = [s for s in shard if s.exact_answer and s.exact_question]
                work(number, shard[0].question.dataset, read)
            self.progress.advance(len(shard))

    def save_states(self, name: str, number: int, states: Mapping[str, np.ndarray]) -> None:
        """Stores states [layer, width] by id under an intervention's name."""
        model = self.lease.model
        shape = (0, model.blocks, model.parts.width)
        stacked = np.stack(list(states.values())) if states else np.empty(shape, np.float32)
        save_states(self.store, shard_name(name, number), list(states), stacked)

    def save_table(self, piece: str, number: int, table: pd.DataFrame) -> None:
        """Stores a shard's table under evidence/."""
        self.store.write(evidence_name(piece, number), table.to_parquet)


def readable(samples: Sequence[Sample], held_out: HeldOut | None) -> list[Sample]:
    """The samples that a probe holds out: judged right or wrong, and in a fold."""
    known = {} if held_out is None else held_out.fold
    return [sample for sample in samples if sample.usable and sample.id in known]
