"""The evidence read from the model, a shard at a time, into the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from anchorscope.engine.interventions import Intervention, Keys, Where
from anchorscope.evidence.donors import Donor, choose_donors
from anchorscope.evidence.held_out import HeldOut
from anchorscope.evidence.patched import PATCHES, Asking, patches
from anchorscope.evidence.reading import budget_of, read_ends, trunks
from anchorscope.evidence.salience import LOSSES, SOURCES, saliency
from anchorscope.evidence.shards import Shards, evidence_name, readable
from anchorscope.extract import marked_of
from anchorscope.records import Sample
from anchorscope.states import shard_name

BETAS = (1.0, -1.0, 2.0, -2.0)  # added to attention scores for Pathway Reweighting
_SALIENCY = ["id", "dataset", "loss", "source", "layer", "saliency"]


def window_knockouts(keys: Keys, where: Where) -> tuple[Intervention, ...]:
    """The knockouts that show at which depth the flow runs: for the ordinary extraction."""
    cut = partial(Intervention, keys=keys, where=where)
    return (cut(name="window-5", layers="window:5"), cut(name="single", layers="single"))


def reweightings() -> tuple[Intervention, ...]:
    """The passes with β added on the edges from E_Q to E_A, for the ordinary extraction.

    `reweight+1.0` adds to the scores before the softmax. `rescale+1.0` multiplies the weights by
    the exponential of β after it.
    """
    before = [Intervention(name=f"reweight{b:+.1f}", boost=b) for b in BETAS]
    after = [Intervention(name=f"rescale{b:+.1f}", boost=b, where="post") for b in BETAS[:2]]
    return (*before, *after)


def collect_patching(shards: Shards, asking: Asking) -> None:
    """States of patched samples, `patch-*`, and who gave what: evidence/donors."""
    budget = budget_of(shards.lease)
    donors: dict[str, list[Donor]] = {}

    def files(number: int) -> list[str]:
        return [*(shard_name(name, number) for name in PATCHES), evidence_name("donors", number)]

    def work(number: int, dataset: str, samples: list[Sample]) -> None:
        everybody = shards.of_dataset(dataset)
        if dataset not in donors:
            donors[dataset] = choose_donors(everybody, seed=shards.seed)
        pool = {sample.id: sample for sample in everybody}
        usable = [sample for sample in samples if sample.usable]
        sequences, table = patches(asking, usable, donors[dataset], pool)
        for name in PATCHES:
            prefix = shards.prefix(dataset)
            states = read_ends(shards.lease, prefix, sequences[name], budget=budget)
            shards.save_states(name, number, states)
        shards.save_table("donors", number, table)

    shards.each("patching", files, work)


def collect_saliency(shards: Shards, held_out: Mapping[str, HeldOut]) -> None:
    """Saliency by loss, source and block: evidence/saliency. `held_out` is by dataset."""
    lease = shards.lease

    def work(number: int, dataset: str, samples: list[Sample]) -> None:
        read, frames = readable(samples, held_out.get(dataset)), []
        grown, graded = budget_of(lease), budget_of(lease, gradients=True)
        for batch, trunk in trunks(lease, shards.prefix(dataset), read, budget=grown):
            wrong = [int(sample.verdict == "wrong") for sample in batch]
            marks = [marked_of(sample) for sample in batch]
            found = saliency(lease, trunk, marks, wrong, held_out[dataset], budget=graded)
            frames.append(_long(batch, found))
        empty = pd.DataFrame(columns=_SALIENCY)
        shards.save_table(
            "saliency", number, pd.concat(frames, ignore_index=True) if frames else empty
        )

    shards.each("saliency", lambda n: [evidence_name("saliency", n)], work)


def _long(samples: Sequence[Sample], found: np.ndarray) -> pd.DataFrame:
    """Saliency [question, loss, source, block] as one row a number."""
    question, loss, source, block = (index.ravel() for index in np.indices(found.shape))
    columns = {
        "id": np.array([sample.id for sample in samples], dtype=object)[question],
        "dataset": [samples[0].question.dataset] * len(question),
        "loss": np.array(LOSSES)[loss],
        "source": np.array(SOURCES)[source],
        "layer": block + 1,
        "saliency": found.ravel(),
    }
    return pd.DataFrame(columns, columns=_SALIENCY)
