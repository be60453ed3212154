"""States of whole sequences, and trunks for rows: what every piece of evidence reads from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.host import to_host
from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import Prefix, Trunk, grow_trunk, read_prefix, shared_prefix
from anchorscope.records import Sample


def budget_of(lease: Lease, *, gradients: bool = False) -> Budget:
    """How many tokens go through the model at once on its device.

    A quarter of them where gradients are taken: a graph holds the activations of all blocks.
    """
    usual = Budget.of(lease.model.device)
    return Budget(usual.tokens // 4) if gradients else usual


def prefix_of(lease: Lease, samples: Sequence[Sample]) -> Prefix:
    """The tokens in front of all these samples' questions, read once."""
    stop = min(sample.question_tokens[0] for sample in samples)
    return read_prefix(lease, shared_prefix([sample.prompt_ids for sample in samples], stop=stop))


def read_ends(
    lease: Lease, prefix: Prefix, sequences: Mapping[str, Sequence[int]], *, budget: Budget
) -> dict[str, np.ndarray]:
    """The clean state [layer, width] at the last token of each sequence, by id."""
    found: dict[str, np.ndarray] = {}
    for front, ids in _by_prefix(prefix, sequences):

        def work(batch: list[str], front: Prefix = front) -> Tensor:
            whole = [sequences[id] for id in batch]
            return grow_trunk(lease, front, whole, room=0, head=False).last.states

        def length(id: str, front: Prefix = front) -> int:
            return len(sequences[id]) - len(front)

        for batch, states in in_batches(ids, work, length=length, then=str, budget=budget):
            found |= dict(zip(batch, to_host(states), strict=True))
    return {id: found[id] for id in sequences}


def trunks(
    lease: Lease, prefix: Prefix, samples: Sequence[Sample], *, budget: Budget
) -> Iterator[tuple[list[Sample], Trunk]]:
    """Samples with the clean trunk of their prompts, a batch at a time."""

    def work(batch: list[Sample]) -> Trunk:
        prompts = [sample.prompt_ids for sample in batch]
        return grow_trunk(lease, prefix, prompts, room=0, head=False).trunk

    def length(sample: Sample) -> int:
        return len(sample.prompt_ids) - len(prefix)

    yield from in_batches(samples, work, length=length, then=lambda s: s.id, budget=budget)


def _by_prefix(
    prefix: Prefix, sequences: Mapping[str, Sequence[int]]
) -> Iterator[tuple[Prefix, list[str]]]:
    """The ids of the sequences that share as much of the prefix, and that much of it.

    A patched question can begin with another token than any of the run's, and one that swallows
    the space before it changes the prefix's own last token.
    """
    by_length: dict[int, list[str]] = {}
    for id, ids in sequences.items():
        alike = [a == b for a, b in zip(prefix.ids, ids[:-1], strict=False)]
        by_length.setdefault([*alike, False].index(False), []).append(id)
    for length, ids in sorted(by_length.items(), reverse=True):
        yield _shortened(prefix, length), ids


def _shortened(prefix: Prefix, length: int) -> Prefix:
    """The first tokens of a prefix: what comes later never changed their keys and values."""
    if length == len(prefix):
        return prefix
    if not length or prefix.pairs is None:
        return Prefix((), None)
    pairs = tuple((key[:, :, :length], value[:, :, :length]) for key, value in prefix.pairs)
    return Prefix(prefix.ids[:length], pairs)
