"""Which heads carry the flow from E_Q: knock out single heads, whole blocks, and the top heads.

The top heads of a question are ranked on the half of the questions it is not in: ranked on
itself, the best of many noisy heads would look like a strong one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import pandas as pd

from anchorscope.config import Config, Where
from anchorscope.engine.batches import Budget
from anchorscope.engine.decode import Prefix
from anchorscope.engine.interventions import CLEAN, Intervention, generator, positions_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import read_rows, row_for
from anchorscope.evidence.pieces import Piece, PieceInputs, Tables
from anchorscope.evidence.saliency import read_saliency
from anchorscope.evidence.shards import HeldOut, Shards, readable, trunks
from anchorscope.pathways.effects import delta_p, flips
from anchorscope.records import Sample
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.samples import evidence_name
from anchorscope.stats.intervals import group_means
from anchorscope.stats.ranking import spearman

BLOCKS = 3  # whose heads are knocked out one at a time
QUESTIONS = 64  # of each dataset: every head of every block is a row of its own
TOP = (4, 8)  # how many of the strongest heads are cut together
_KEY = ["block", "head", "set", "layer"]


class HeadSet(NamedTuple):
    """Heads to knock out together, and the names of their rows."""

    block: int  # from 1; 0: of several blocks
    head: int  # from 0; -1: all of the block; -n: n heads of several blocks
    set: str  # "" for a single head, "block", "top4" ...
    heads: tuple[tuple[int, int], ...]  # (block from 1, head from 0)


def one_by_one(blocks: Sequence[int], heads: int) -> list[HeadSet]:
    """Every head of these blocks alone, then each block's heads together."""
    alone = [HeadSet(b, h, "", ((b, h),)) for b in blocks for h in range(heads)]
    whole = [HeadSet(b, -1, "block", tuple((b, h) for h in range(heads))) for b in blocks]
    return alone + whole


def top_sets(scores: pd.DataFrame, ids: Sequence[str], sizes: Sequence[int] = TOP) -> list[HeadSet]:
    """The heads whose knockout lowers ΔP most on the questions `ids`, in sets of `sizes`.

    `scores` holds the logits of single heads, which are ranked by their mean ΔP. A size that would
    be all of the heads or more is left out.
    """
    single = scores[(scores["set"] == "") & scores["id"].isin(list(ids))]
    logits = (np.asarray(single[name]) for name in ("logit_clean", "logit_knockout"))
    effects = single.assign(effect=delta_p(*logits)).groupby(["block", "head"])["effect"]
    # Stable over ordered pairs: of equal effects the lower block and head come first.
    ranked = cast(pd.Series, effects.mean()).sort_values(kind="stable").index.to_list()
    heads = tuple((int(block), int(head)) for block, head in ranked)
    return [HeadSet(0, -size, f"top{size}", heads[:size]) for size in sizes if size < len(heads)]


def read_heads(
    shards: Shards,
    blocks: Mapping[str, Sequence[int]],
    held_out: Mapping[str, HeldOut],
    *,
    where: Where = "pre",
    limit: int = 128,
) -> None:
    """Store logits under every set of heads in evidence/heads.

    `blocks` and `held_out` are by dataset. `limit` questions of each dataset are read. Single heads
    are stored first, under evidence/head-scores: the top heads are ranked over all shards of a
    dataset.
    """
    chosen: dict[str, list[str]] = {}  # in the order that also halves them
    for name in blocks:
        ids = [sample.id for sample in readable(shards.of_dataset(name), held_out[name])]
        chosen[name] = choose_questions(ids, limit=limit, seed=shards.seed)
    heads = shards.lease.model.lm.config.get_text_config().num_attention_heads

    def read_sets(
        dataset: str, samples: list[Sample], sets: Mapping[str, list[HeadSet]]
    ) -> pd.DataFrame:
        own = [sample for sample in samples if sample.id in sets]
        if not own:
            return pd.DataFrame(columns=list(table_columns.HEADS_ROWS))
        probe = held_out[dataset]
        return sweep(shards.lease, shards.prefix(dataset), own, sets, probe, where=where)

    def read_single_heads(number: int, dataset: str, samples: list[Sample]) -> None:
        sets = {id: one_by_one(blocks[dataset], heads) for id in chosen.get(dataset, ())}
        shards.save_table("head-scores", number, read_sets(dataset, samples, sets))

    def read_top_heads(number: int, dataset: str, samples: list[Sample]) -> None:
        scores = shards.rows("head-scores", dataset)
        own = pd.read_parquet(shards.store.file(evidence_name("head-scores", number)))
        table = read_sets(dataset, samples, by_other_half(scores, chosen.get(dataset, [])))
        both = [frame for frame in (own, table) if len(frame)]
        shards.save_table("heads", number, pd.concat(both, ignore_index=True) if both else own)

    shards.each("single heads", lambda n: [evidence_name("head-scores", n)], read_single_heads)
    shards.each("top heads", lambda n: [evidence_name("heads", n)], read_top_heads)


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

    `sets` are the sets of heads of each sample, by id. Only logits leave the device.
    """
    records: list[tuple] = []
    budget = Budget.of(lease.model)
    for batch, trunk in trunks(lease, prefix, samples, budget=budget):
        rows = [
            row_for(trunk, positions_of(sample), number, cut)
            for number, sample in enumerate(batch)
            for cut in (CLEAN, *(_cut(each, where) for each in sets[sample.id]))
        ]
        logits: dict[tuple[int, str], float] = {}  # by number in the trunk, and intervention
        for done, states in read_rows(lease, trunk, rows, budget=budget, depth=held_out.layer):
            found = held_out.logits([batch[row.number].id for row in done], states).tolist()
            keys = ((row.number, row.intervention.name) for row in done)
            logits |= dict(zip(keys, found, strict=True))
        for number, sample in enumerate(batch):
            for each in sets[sample.id]:
                key = (sample.id, sample.question.dataset, *each[:3], held_out.layer)
                cut = logits[number, _cut(each, where).name]
                records.append((*key, logits[number, CLEAN.name], cut))
    return pd.DataFrame(records, columns=list(table_columns.HEADS_ROWS))


def _cut(each: HeadSet, where: Where) -> Intervention:
    return Intervention(name=f"{each.block}:{each.head}", heads=each.heads, where=where)


def by_other_half(scores: pd.DataFrame, ids: Sequence[str]) -> dict[str, list[HeadSet]]:
    """The top sets of each question, ranked on the half it is not in."""
    first, second = ids[::2], ids[1::2]
    if not second:
        return {}
    from_first, from_second = top_sets(scores, first), top_sets(scores, second)
    return {**dict.fromkeys(first, from_second), **dict.fromkeys(second, from_first)}


def choose_questions(ids: Sequence[str], *, limit: int, seed: int) -> list[str]:
    """Draw `limit` questions; only seed and ids decide which, and their order."""
    return sorted(ids, key=lambda id: (generator(seed, "heads", id).random(), id))[:limit]


def strongest_blocks(saliency: pd.DataFrame, layer: int) -> list[int]:
    """The blocks up to `layer` through which the probe's loss is most sensitive to E_Q."""
    own = saliency.loc[(saliency["loss"] == "probe") & (saliency["source"] == "exact")]
    wide = own.pivot(index="id", columns="layer", values="saliency").to_numpy()[:, :layer]
    strongest = np.argsort(-wide.mean(axis=0), kind="stable")[:BLOCKS]
    return sorted(int(block) + 1 for block in strongest)


def _read(shards: Shards, held_out: Mapping[str, HeldOut], config: Config) -> None:
    read_saliency(shards, held_out)  # it shows which blocks to test
    blocks = {
        name: strongest_blocks(shards.rows("saliency", name), probe.layer)
        for name, probe in held_out.items()
    }
    read_heads(shards, blocks, held_out, where=config.where, limit=QUESTIONS)


def heads_table(inputs: PieceInputs) -> pd.DataFrame:
    """One row per head or set of heads and layer read: mean ΔP over all samples, share of flips.

    Made from the rows of evidence/heads: one per question, head (or set) and layer. Entities are
    drawn for the intervals.
    """
    rows = inputs.rows["heads"]
    logits = [rows[name].to_numpy() for name in ("logit_clean", "logit_knockout")]
    used = rows.assign(effect=delta_p(*logits, delta=inputs.unit), flip=flips(*logits))
    wide = used.pivot(index="id", columns=_KEY, values="effect")
    effect, by_id = wide.to_numpy(dtype=float), inputs.readings.entity_by_id
    means = group_means(
        effect,
        ~np.isnan(effect),
        seed=inputs.config.seed,
        resamples=inputs.config.resamples,
        entity=np.array([by_id.get(str(id), str(id)) for id in wide.index]),
    )
    flipped = used.pivot(index="id", columns=_KEY, values="flip").to_numpy(dtype=float)
    return inputs.table(
        "heads",
        (
            (*cast(tuple, key), n, value, low, high, float(np.nanmean(flipped[:, place])))
            for place, (key, value, low, high, n) in enumerate(
                zip(wide.columns, *means, strict=True)
            )
        ),
    )


def heads_agreement(table: pd.DataFrame, *, seed: int = 0, resamples: int = 1000) -> pd.DataFrame:
    """One row per pair of datasets: Spearman's correlation of single heads' ΔP over the heads.

    A head read at several layers counts with its mean; heads are drawn for the interval.
    """
    single = table[(table["head"] >= 0) & (table["set"].fillna("") == "")]
    effect = single.pivot_table(index=["block", "head"], columns="dataset", values="delta_p")
    rows = []
    for one, other in itertools.combinations(list(dict.fromkeys(table["dataset"])), 2):
        if one in effect and other in effect:
            both = effect[[one, other]].dropna().to_numpy()
            correlation = spearman(both[:, 0], both[:, 1], seed=seed, resamples=resamples)
            rows.append((one, other, *correlation))
    return pd.DataFrame(rows, columns=list(table_columns.EVIDENCE["heads_agreement"]))


def _across(tables: Tables, config: Config) -> Tables:
    if "heads" not in tables:
        return {}
    agreement = heads_agreement(tables["heads"], seed=config.seed, resamples=config.resamples)
    return {"heads_agreement": agreement}


PIECE = Piece(
    tables=lambda inputs: [lambda: {"heads": heads_table(inputs)}] if inputs.rows else [],
    across=_across,
    rows=("heads",),
    stages=("single heads", "top heads"),
    read_with_probes=_read,
)
