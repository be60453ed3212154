"""The model's own output on disk: log-probability and rank of each answer under each pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from anchorscope.records import Sample
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.table_columns import OUTPUT_ROWS


def output_name(intervention: str, number: int) -> str:
    """The name of a shard's file in the run folder."""
    return f"outputs/{intervention}/{number:05d}.parquet"


def load_outputs(
    store: Store, samples: Sequence[Sample], passes: Sequence[str], *, shards: int
) -> pd.DataFrame:
    """One row per sample and pass that has an output; the clean one is what the samples hold.

    Passes without files, as in runs of earlier versions and in states that were extracted
    elsewhere, are left out.
    """
    ids = [sample.id for sample in samples]
    frames = [clean_output(samples)]
    for name in passes:
        files = [output_name(name, number) for number in range(shards)]
        for file in filter(store.has, files):
            rows = pd.read_parquet(store.file(file))
            frames.append(rows.loc[rows["id"].isin(ids)].assign(**{"pass": name}))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(OUTPUT_ROWS))


def clean_output(samples: Sequence[Sample]) -> pd.DataFrame:
    """The output of the clean pass, noted when the answers were written: greedy, so of rank 1."""
    rows = []
    for sample in samples:
        if sample.exact_answer and sample.answer.log_probs:
            count = sample.exact_answer[-1] + 1 - len(sample.prompt_ids)
            log_probs = sample.answer.log_probs[:count]
            rows.append((sample.id, "clean", log_probs[0], float(np.mean(log_probs)), 1.0))
    return pd.DataFrame(rows, columns=list(OUTPUT_ROWS))
