"""Saliency: |A · ∂L/∂A| on the edges from the question to the exact answer tokens.

Attention out of E_A can change only what comes after the prompt, and the prompt's keys and values
do not depend on the answer. So a row that holds the answer's tokens on the clean trunk gives the
exact gradient from a pass over a few tokens. The graph of a micro-batch is freed before the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from anchorscope.config import Config
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import Trunk
from anchorscope.engine.interventions import TokenPositions, positions_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import Row, edges_of, lay_out, unchanged_row
from anchorscope.evidence.pieces import Piece, PieceInputs
from anchorscope.evidence.shards import (
    HeldOut,
    Shards,
    readable,
    trunks,
)
from anchorscope.records import Sample
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.samples import evidence_name
from anchorscope.stats.humps import shape
from anchorscope.stats.intervals import bootstrap_mean

LOSSES = ("probe", "lm")
_TOKENS = {"exact": "exact_question", "question": "question_tokens"}  # of TokenPositions
SOURCES = tuple(_TOKENS)
SUBSETS = {"all": (0, 1), "right": (0,), "wrong": (1,)}  # z


def saliency(
    lease: Lease,
    trunk: Trunk,
    marks: Sequence[TokenPositions],
    wrong: Sequence[int],
    held_out: HeldOut,
    *,
    budget: Budget,
) -> np.ndarray:
    """Saliency [question, loss, source, block], summed over heads and over edges to E_A.

    `wrong` is the true z of each question. Loss `probe`: cross-entropy of the held-out probe at
    its layer against z; blocks above that layer cannot move it and get 0. Loss `lm`: mean negative
    log-probability, from E_A's first token on, of the token that follows each one up to the probe
    position; after the probe position, of the model's own likeliest token. Source
    `exact`: edges from E_Q; `question`: from all tokens of the question.
    """
    # All of the answer's tokens, on the clean trunk.
    rows = [unchanged_row(mark, n, before=0) for n, mark in enumerate(marks)]
    out = np.full((len(marks), len(LOSSES), len(SOURCES), lease.model.blocks), np.nan)

    def work(batch: list[Row]) -> np.ndarray:
        own = [row.number for row in batch]
        labels = [wrong[n] for n in own]
        return _micro_batch(lease, trunk, batch, [marks[n] for n in own], labels, held_out)

    for batch, by_row in in_batches(
        rows, work, length=lambda row: len(row.ids), then=lambda row: row.number, budget=budget
    ):
        out[[row.number for row in batch]] = by_row
    return out


def _micro_batch(
    lease: Lease,
    trunk: Trunk,
    batch: Sequence[Row],
    marks: Sequence[TokenPositions],
    wrong: Sequence[int],
    held_out: HeldOut,
) -> np.ndarray:
    """Saliency [row, loss, source, block] of one forward and two backward passes."""
    tokens, layout, memory = lay_out(lease, trunk, batch)
    device = tokens.device
    by_source = []  # the edges from the source's tokens to E_A, bool [row, query, key]
    for tokens_of_source in _TOKENS.values():
        edged = [
            replace(row, keys=getattr(mark, tokens_of_source), queries=mark.exact_answer)
            for row, mark in zip(batch, marks, strict=True)
        ]
        at = (layout.query_at, layout.key_at)
        by_source.append(edges_of(lease, edged, *at, len(trunk.prefix)).blocked)
    edges = torch.stack(by_source, dim=1)
    at, row, target = _answer_targets(marks, device)
    attention: list[Tensor] = []

    def watch(weights: Tensor) -> None:
        # Frozen parameters leave the first block's weights without a graph: they begin it.
        attention.append(weights if weights.requires_grad else weights.requires_grad_())

    with _frozen(lease.model.lm):
        read = lease.run(
            tokens, layout, memory, head=True, watch=watch, gradients=True, logits_at=at
        )
        assert read.logits is not None
        logit = held_out.logits([mark.id for mark in marks], read.states)
        # Rows do not see one another, so the sum's gradient is each row's own.
        probe = (softplus(logit) - torch.tensor(wrong, device=device) * logit).sum()
        lm = _lm_loss(read.logits, row, target).sum()
        found = [_salient(probe, attention, edges, more=True)]
        found.append(_salient(lm, attention, edges, more=False))
    return torch.stack(found, dim=1).cpu().numpy()


def _salient(loss: Tensor, attention: Sequence[Tensor], edges: Tensor, *, more: bool) -> Tensor:
    """|A · ∂L/∂A| summed over heads and edges, [row, source, block]."""
    grads = torch.autograd.grad(loss, attention, retain_graph=more, allow_unused=True)
    by_block = []
    for weights, grad in zip(attention, grads, strict=True):
        if grad is None:  # a block above the layer the loss is read from
            by_block.append(torch.zeros(edges.shape[:2], device=edges.device))
            continue
        edge = (weights.detach().float() * grad.float()).abs().sum(dim=1)  # [row, query, key]
        by_block.append((edge.to(edges.device)[:, None] * edges).sum(dim=(2, 3)))
    return torch.stack(by_block, dim=-1)


def _answer_targets(
    marks: Sequence[TokenPositions], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The packed tokens from the first of E_A on, their rows, and the next tokens (-1: none)."""
    at, row, target, before = [], [], [], 0
    for number, mark in enumerate(marks):
        places = range(mark.exact_answer[0], len(mark.ids))
        at += [before + place - mark.answer_at for place in places]
        row += [number] * len(places)
        target += [*mark.ids[places.start + 1 :], -1]
        before += len(mark.ids) - mark.answer_at
    first, second, third = (torch.tensor(part, device=device) for part in (at, row, target))
    return first, second, third


def _lm_loss(logits: Tensor, row: Tensor, target: Tensor) -> Tensor:
    """The mean negative log-probability of each row's targets, [row]."""
    logits = logits.float()
    target = torch.where(target < 0, logits.detach().argmax(dim=-1), target)
    lost = -torch.log_softmax(logits, dim=-1).gather(1, target[:, None])[:, 0]
    count = torch.bincount(row)
    return torch.zeros_like(count, dtype=lost.dtype).index_add(0, row, lost) / count


@contextmanager
def _frozen(lm: nn.Module) -> Iterator[None]:
    """Keep parameters out of gradients: none is stored for them, during or after the block."""
    learning = [parameter for parameter in lm.parameters() if parameter.requires_grad]
    try:
        for parameter in learning:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def read_saliency(
    shards: Shards, held_out: Mapping[str, HeldOut], config: Config | None = None
) -> None:
    """Store saliency by loss, source and block in evidence/saliency; `held_out` is by dataset."""
    lease = shards.lease

    def work(number: int, dataset: str, samples: list[Sample]) -> None:
        read = readable(samples, held_out.get(dataset))
        frames = [pd.DataFrame(columns=list(table_columns.SALIENCY_ROWS))]
        grown = Budget.of(lease.model)
        # A graph holds the activations of all blocks: on a CPU, whose packs are small, a quarter
        # of the tokens, elsewhere as if each block had a pack of its own.
        share = 4 if lease.model.device.type == "cpu" else max(4, lease.model.blocks)
        graded = Budget(max(1, grown.tokens // share))
        for batch, trunk in trunks(lease, shards.prefix(dataset), read, budget=grown):
            wrong = [int(sample.verdict == "wrong") for sample in batch]
            marks = [positions_of(sample) for sample in batch]
            salience = saliency(lease, trunk, marks, wrong, held_out[dataset], budget=graded)
            frames.append(_long(batch, salience))
        table = pd.concat(frames[1:] or frames, ignore_index=True)
        shards.save_table("saliency", number, table)

    shards.each("saliency", lambda n: [evidence_name("saliency", n)], work)


def _long(samples: Sequence[Sample], salience: np.ndarray) -> pd.DataFrame:
    """Saliency [question, loss, source, block] as a long table, one row per value."""
    levels = ([s.id for s in samples], LOSSES, SOURCES, range(1, salience.shape[-1] + 1))
    index = pd.MultiIndex.from_product(levels, names=("id", "loss", "source", "layer"))
    rows = pd.DataFrame({"saliency": salience.ravel()}, index=index).reset_index()
    rows["dataset"] = samples[0].question.dataset
    return rows.reindex(columns=list(table_columns.SALIENCY_ROWS))


def saliency_table(inputs: PieceInputs) -> pd.DataFrame:
    """One row per loss, source, subset and layer; rows without a layer sum over all layers.

    Made from the rows of evidence/saliency of questions with a class. All numbers are of log10 of
    the saliency, as its density is drawn: `mean` with its interval, the dip test's p and BIC of
    one component less that of two. A saliency of 0 has no logarithm and is left out of n. Entities
    are drawn for the intervals.
    """
    z = dict(zip(inputs.readings.ids, inputs.readings.z.tolist(), strict=True))
    by_id, config = inputs.readings.entity_by_id, inputs.config
    rows, records = inputs.rows["saliency"], []
    for key, part in rows.loc[rows["id"].isin(list(z))].groupby(["loss", "source"], sort=False):
        for layer, own in _by_layer(cast(pd.DataFrame, part)):
            ids, values = [str(id) for id in own.index], own.to_numpy(dtype=float)
            logs = np.log10(values, out=np.full(len(values), np.nan), where=values > 0)
            wrong, entity = np.array([z[id] for id in ids]), np.array([by_id[id] for id in ids])
            for subset, classes in SUBSETS.items():
                used = np.isin(wrong, classes) & ~np.isnan(logs)
                mean = bootstrap_mean(
                    logs[used], seed=config.seed, resamples=config.resamples, entity=entity[used]
                )
                seen = shape(logs[used], seed=config.seed)
                row = (subset, mean.n, *mean[:3], seen.p, seen.bic, layer)
                records.append((*cast(tuple, key), *row))
    return inputs.table("saliency", records)


def _by_layer(part: pd.DataFrame) -> Iterator[tuple[int | str, pd.Series]]:
    """Yield saliency by question: summed over the layers, then of each layer."""
    yield "", cast(pd.Series, part.groupby("id", sort=False)["saliency"].sum(min_count=1))
    for layer, at in part.groupby("layer"):
        yield int(float(str(layer))), cast(pd.Series, at.set_index("id")["saliency"])


PIECE = Piece(
    tables=lambda inputs: [lambda: {"saliency": saliency_table(inputs)}] if inputs.rows else [],
    rows=("saliency",),
    stages=("saliency",),
    read_with_probes=read_saliency,
)
