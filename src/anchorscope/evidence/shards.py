"""Go through a run's shards to store evidence, with the model and the held-out probe.

Shards whose files are on disk are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pandas as pd
from torch import Tensor

from anchorscope.answers.prompted import common_prefix
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import GrownTrunk, Prefix, Trunk, grow_trunk, read_prefix
from anchorscope.engine.lease import Lease
from anchorscope.engine.transfer import to_host
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.progress import Progress, Quiet
from anchorscope.records import Sample
from anchorscope.run_folder.samples import evidence_name, stored_rows
from anchorscope.run_folder.states import save_states, shard_name
from anchorscope.run_folder.store import Store

Result = TypeVar("Result")


@dataclass
class Shards:
    """The model, the run folder, and the samples of each of its shards."""

    lease: Lease
    store: Store
    samples: Sequence[Sequence[Sample]]  # by shard: of one dataset each, in the files' order
    seed: int
    progress: Progress = field(default_factory=Quiet)
    only: tuple[str, int] | None = None  # the one stage and shard to read; None: all
    _prefix: dict[str, Prefix] = field(default_factory=dict, repr=False)

    def of_dataset(self, name: str) -> list[Sample]:
        """All samples of a dataset, over its shards."""
        return [s for shard in self.samples for s in shard if s.question.dataset == name]

    def prefix(self, dataset: str) -> Prefix:
        """The shared prefix of a dataset's prompts; only the latest dataset's is kept."""
        if dataset not in self._prefix:
            prefix = prefix_of(self.lease, self.of_dataset(dataset))
            self._prefix.clear()
            self._prefix[dataset] = prefix
        return self._prefix[dataset]

    def each(
        self,
        stage: str,
        files: Callable[[int], Sequence[str]],
        work: Callable[[int, str, list[Sample]], None],
    ) -> None:
        """Call `work` with number, dataset and samples of each shard that lacks one of its files.

        Samples without a state under the clean pass are left out, as everywhere.
        """
        numbers = range(len(self.samples))
        if self.only is not None:
            numbers = [self.only[1]] if self.only[0] == stage else []
        self.progress.start(stage, sum(len(self.samples[n]) for n in numbers))
        for number in numbers:
            shard = self.samples[number]
            if not all(self.store.has(name) for name in files(number)):
                read = [s for s in shard if s.exact_answer and s.exact_question]
                work(number, shard[0].question.dataset, read)
            self.progress.advance(len(shard))

    def save_states(self, name: str, number: int, states: Mapping[str, np.ndarray]) -> None:
        """Store states [layer, width] by id under an intervention's name."""
        model = self.lease.model
        shape = (0, model.blocks, model.parts.width)
        stacked = np.stack(list(states.values())) if states else np.empty(shape, np.float32)
        save_states(self.store, shard_name(name, number), list(states), stacked)

    def rows(self, piece: str, dataset: str) -> pd.DataFrame:
        """The rows that a piece stored of a dataset, over all shards."""
        own = [n for n, shard in enumerate(self.samples) if shard[0].question.dataset == dataset]
        return stored_rows(self.store, piece, dataset, own)

    def save_table(self, piece: str, number: int, table: pd.DataFrame) -> None:
        """Store a shard's table under evidence/."""
        self.store.write(evidence_name(piece, number), table.to_parquet)


def readable(samples: Sequence[Sample], held_out: HeldOut | None) -> list[Sample]:
    """The samples that a probe holds out: judged right or wrong, and in a fold."""
    folds = {} if held_out is None else held_out.fold
    return [sample for sample in samples if sample.usable and sample.id in folds]


def prefix_of(lease: Lease, samples: Sequence[Sample]) -> Prefix:
    """Compute the shared prefix of these samples' prompts, which ends before the question."""
    return read_prefix(lease, common_prefix(samples))


def over_prompts(
    lease: Lease,
    prefix: Prefix,
    prompts: Mapping[str, Sequence[int]],
    work: Callable[[GrownTrunk], Result],
    *,
    budget: Budget,
    head: bool = False,
) -> Iterator[tuple[list[str], Result]]:
    """Yield batches of prompt ids with the result of `work` on their trunk."""
    rows = prefix.rows_within(
        budget.trunk,
        room=max(map(len, prompts.values()), default=0) - len(prefix),
        segmented=lease.fused,
    )
    yield from in_batches(
        prompts,
        lambda ids: work(grow_trunk(lease, prefix, [prompts[id] for id in ids], head=head)),
        length=lambda id: len(prompts[id]) - len(prefix),
        then=str,
        budget=budget,
        rows=rows,
    )


def read_ends(
    lease: Lease, prefix: Prefix, sequences: Mapping[str, Sequence[int]], *, budget: Budget
) -> dict[str, np.ndarray]:
    """The clean state [layer, width] at the last token of each sequence, by id."""
    states_by_id: dict[str, np.ndarray] = {}
    for front, ids in _by_prefix(prefix, sequences):
        own = {id: sequences[id] for id in ids}
        for batch, states in over_prompts(
            lease, front, own, lambda grown: grown.last.states, budget=budget
        ):
            states_by_id |= dict(zip(batch, to_host(states), strict=True))
    return {id: states_by_id[id] for id in sequences}


def trunks(
    lease: Lease, prefix: Prefix, samples: Sequence[Sample], *, budget: Budget
) -> Iterator[tuple[list[Sample], Trunk]]:
    """Samples with the clean trunk of their prompts, a batch at a time."""
    by_id = {sample.id: sample for sample in samples}
    prompts = {sample.id: sample.prompt_ids for sample in samples}
    for ids, trunk in over_prompts(lease, prefix, prompts, lambda g: g.trunk, budget=budget):
        yield [by_id[id] for id in ids], trunk


def _by_prefix(
    prefix: Prefix, sequences: Mapping[str, Sequence[int]]
) -> Iterator[tuple[Prefix, list[str]]]:
    """Group sequences by how much of the prefix they share: that part of it, and their ids.

    A patched question can begin with another token than any of the run's, and a token that includes
    the space before it changes the prefix's own last token.
    """
    by_length: dict[int, list[str]] = {}
    for id, ids in sequences.items():
        alike = [a == b for a, b in zip(prefix.ids, ids[:-1], strict=False)]
        by_length.setdefault([*alike, False].index(False), []).append(id)
    for length, ids in sorted(by_length.items(), reverse=True):
        # What comes later never changed the keys and values of the first tokens.
        pairs = tuple(
            (key[:, :, :length], value[:, :, :length]) for key, value in prefix.pairs or ()
        )
        yield Prefix(prefix.ids[:length], pairs if length else None), ids


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The paper probe of a dataset at one layer; each question is read by the fold without it."""

    probes: ProbeSet
    fold: Mapping[str, int]  # by question id
    layer: int  # k, from 1

    def logits(self, ids: Sequence[str], states: Tensor) -> Tensor:
        """The logit of z = 1 [question] from states [question, layer, width]."""
        fold = [self.fold[id] for id in ids]
        return self.probes.tensor_logits(states, probe="paper", layer=self.layer, fold=fold)
