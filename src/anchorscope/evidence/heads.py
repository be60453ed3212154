"""Which heads carry the flow from E_Q: logits with one head knocked out, a block's, the top ones.

The top heads of a question are ranked on the half of the questions it is not in: ranked on
itself, the best of many noisy heads would look like a strong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.config import Config, Where
from anchorscope.engine.batches import Budget
from anchorscope.engine.interventions import Intervention, positions_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN
from anchorscope.engine.read import read_from_clean
from anchorscope.engine.rows import Row, row_for
from anchorscope.engine.trunk import Prefix, Trunk
from anchorscope.errors import UserError
from anchorscope.evidence.heads_table import (
    HeadSet,
    heads_agreement,
    heads_table,
    one_by_one,
    top_sets,
)
from anchorscope.evidence.patching_donors import generator
from anchorscope.evidence.pieces import Piece, PieceInputs, Tables
from anchorscope.evidence.saliency import read_saliency
from anchorscope.evidence.shards import HeldOut, Shards, budget_of, evidence_name, readable, trunks
from anchorscope.records import Sample
from anchorscope.run_folder import table_columns

BLOCKS = 3  # whose heads are knocked out one at a time
QUESTIONS = 64  # of each dataset: every head of every block is a row of its own


def read_heads(
    shards: Shards,
    blocks: Mapping[str, Sequence[int]],
    held_out: Mapping[str, HeldOut],
    *,
    where: Where = "pre",
    limit: int = 128,
) -> None:
    """Logits under every set of heads: evidence/heads. `blocks` and `held_out` are by dataset.

    `limit` questions of each dataset are read. Single heads are stored first, under
    evidence/head-scores: the top heads are ranked over all shards of a dataset.
    """
    for dataset in blocks:
        _check_blocks(blocks[dataset], held_out[dataset])
    asked = {name: _asked(shards, name, held_out[name], limit) for name in blocks}
    heads = shards.lease.model.lm.config.get_text_config().num_attention_heads

    def swept(
        dataset: str, samples: list[Sample], sets: Mapping[str, list[HeadSet]]
    ) -> pd.DataFrame:
        here = [sample for sample in samples if sample.id in sets]
        if not here:
            return pd.DataFrame(columns=list(table_columns.HEADS_ROWS))
        prefix, probe = shards.prefix(dataset), held_out[dataset]
        return sweep(shards.lease, prefix, here, sets, probe, where=where)

    def alone(number: int, dataset: str, samples: list[Sample]) -> None:
        sets = {id: one_by_one(blocks[dataset], heads) for id in asked.get(dataset, ())}
        shards.save_table("head-scores", number, swept(dataset, samples, sets))

    def together(number: int, dataset: str, samples: list[Sample]) -> None:
        scores = _scores(shards, dataset)
        own = pd.read_parquet(shards.store.file(evidence_name("head-scores", number)))
        table = swept(dataset, samples, by_other_half(scores, asked.get(dataset, [])))
        both = [frame for frame in (own, table) if len(frame)]
        shards.save_table("heads", number, pd.concat(both, ignore_index=True) if both else own)

    shards.each("single heads", lambda n: [evidence_name("head-scores", n)], alone)
    shards.each("top heads", lambda n: [evidence_name("heads", n)], together)


def sweep(
    lease: Lease,
    prefix: Prefix,
    samples: Sequence[Sample],
    sets: Mapping[str, Sequence[HeadSet]],
    held_out: HeldOut,
    *,
    where: Where = "pre",
) -> pd.DataFrame:
    """A row for each sample and set of heads, with the held-out probe's logits.

    `sets` are each sample's, by id. Only logits leave the device.
    """
    rows: list[dict[str, Any]] = []
    budget = budget_of(lease)
    for batch, trunk in trunks(lease, prefix, samples, budget=budget):
        work = [
            row_for(positions_of(sample), number, cut, blocks=lease.model.blocks,
                    turn_at=len(prefix), seed=0)
            for number, sample in enumerate(batch)
            for cut in (CLEAN, *(_knockout(of, where) for of in sets[sample.id]))
        ]  # fmt: skip
        logits = _logits(lease, trunk, work, [s.id for s in batch], held_out, budget)
        rows += [
            _record(sample, of, held_out.layer, logits, number)
            for number, sample in enumerate(batch)
            for of in sets[sample.id]
        ]
    return pd.DataFrame(rows, columns=list(table_columns.HEADS_ROWS))


def _logits(
    lease: Lease,
    trunk: Trunk,
    rows: Sequence[Row],
    ids: Sequence[str],
    held_out: HeldOut,
    budget: Budget,
) -> dict[tuple[int, str], float]:
    """The logit of each row, by the sample's number in the trunk and the intervention's name."""
    logits: dict[tuple[int, str], float] = {}
    for done, states in read_from_clean(lease, trunk, rows, budget=budget, depth=held_out.layer):
        found = held_out.logits([ids[row.number] for row in done], states).tolist()
        logits |= {
            (row.number, row.intervention.name): logit
            for row, logit in zip(done, found, strict=True)
        }
    return logits


def _record(
    sample: Sample, of: HeadSet, layer: int, logits: Mapping[tuple[int, str], float], number: int
) -> dict[str, Any]:
    return {
        "id": sample.id,
        "dataset": sample.question.dataset,
        "block": of.block,
        "head": of.head,
        "set": of.set,
        "layer": layer,
        "logit_clean": logits[number, CLEAN.name],
        "logit_knockout": logits[number, of.name],
    }


def _knockout(of: HeadSet, where: Where) -> Intervention:
    return Intervention(name=of.name, heads=of.heads, where=where)


def _asked(shards: Shards, dataset: str, held_out: HeldOut, limit: int) -> list[str]:
    """The questions that are read, in the order that also halves them."""
    ids = [sample.id for sample in readable(shards.of_dataset(dataset), held_out)]
    return first_of(ids, limit=limit, seed=shards.seed)


def by_other_half(scores: pd.DataFrame, ids: Sequence[str]) -> dict[str, list[HeadSet]]:
    """The top sets of each question, ranked on the half it is not in."""
    first, second = ids[::2], ids[1::2]
    if not second:
        return {}
    from_first, from_second = top_sets(scores, first), top_sets(scores, second)
    return {**dict.fromkeys(first, from_second), **dict.fromkeys(second, from_first)}


def _scores(shards: Shards, dataset: str) -> pd.DataFrame:
    """The single heads of all shards of a dataset."""
    files = (shards.store.file(evidence_name("head-scores", n)) for n in shards.numbers(dataset))
    return pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)


def _check_blocks(blocks: Sequence[int], held_out: HeldOut) -> None:
    """An error where a block cannot move the layer that is read."""
    if not blocks or not all(1 <= block <= held_out.layer for block in blocks):
        raise UserError(
            f"Heads of the blocks {list(blocks)} were asked for, read at layer {held_out.layer}. "
            f"Accepted: one block or more from 1 to {held_out.layer}."
        )


def first_of(ids: Sequence[str], *, limit: int, seed: int) -> list[str]:
    """The first `limit` questions in an order that seed and ids alone decide."""
    return sorted(ids, key=lambda id: (generator(seed, "heads", id).random(), id))[:limit]


def strongest_blocks(saliency: pd.DataFrame, layer: int) -> list[int]:
    """The blocks up to `layer` through which the probe's loss is most sensitive to E_Q."""
    own = saliency.loc[(saliency["loss"] == "probe") & (saliency["source"] == "exact")]
    wide = own.pivot(index="id", columns="layer", values="saliency").to_numpy()[:, :layer]
    strongest = np.argsort(-wide.mean(axis=0), kind="stable")[:BLOCKS]
    return sorted(int(block) + 1 for block in strongest)


def _read(shards: Shards, held_out: Mapping[str, HeldOut], config: Config) -> None:
    read_saliency(shards, held_out)  # it says which blocks to look into
    blocks = {
        name: strongest_blocks(shards.rows("saliency", name), of.layer)
        for name, of in held_out.items()
    }
    read_heads(shards, blocks, held_out, where=config.where, limit=QUESTIONS)


def _tables(inputs: PieceInputs) -> Tables:
    if "heads" not in inputs.rows:
        return {}
    how = {
        "seed": inputs.config.seed,
        "resamples": inputs.config.resamples,
        "entity_by_id": inputs.readings.entity_by_id,
    }
    rows = inputs.rows["heads"]
    return {"heads": heads_table(rows, model=inputs.model, unit=inputs.unit, **how)}


def _across(tables: Tables, config: Config) -> Tables:
    if "heads" not in tables:
        return {}
    agreement = heads_agreement(tables["heads"], seed=config.seed, resamples=config.resamples)
    return {"heads_agreement": agreement}


PIECE = Piece(
    tables=_tables,
    across=_across,
    rows=("heads",),
    stages=("single heads", "top heads"),
    read_with_probes=_read,
)
