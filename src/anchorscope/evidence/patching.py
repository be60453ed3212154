"""Token patching: another subject in the question, the sample's own answer after it.

The patched question goes through the tokenizer again, so a donor with more or fewer tokens is a
whole question like any other; `resized` counts them. All spans of the subject are replaced where
the donor has as many, else the longest alone; `whole` says which.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.errors import UserError
from anchorscope.evidence.groups import GROUPS, PREDICTED, SUBSETS, Groups, groups_of
from anchorscope.evidence.patching_donors import (
    Donor,
    choose_donors,
    generator,
    subject_span,
    subject_text,
)
from anchorscope.evidence.pieces import Piece, PieceInputs, PromptMaker, Tables
from anchorscope.evidence.shards import (
    Shards,
    budget_of,
    evidence_name,
    read_ends,
)
from anchorscope.pathways.effects import flips
from anchorscope.pathways.grouping import ROLES
from anchorscope.probes.readings import Readings
from anchorscope.records import MODES, Estimate, Mode, Sample
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.states import shard_name
from anchorscope.stats.intervals import Draws, difference, difference_of_means, rate

Sequences = dict[str, tuple[int, ...]]  # by sample id: tokens up to the probe position
PATCHES = ("patch-matched", "patch-random", "patch-other", "patch-self")
OTHER, SELF = "patch-other", "patch-self"  # the controls


def patches(
    prompts: PromptMaker,
    samples: Sequence[Sample],
    donors: Sequence[Donor],
    pool: Mapping[str, Sample],
) -> tuple[dict[str, Sequences], pd.DataFrame]:
    """Token ids by patch and sample, and the donors with what they did to the length.

    `pool` holds every donor by id. A sample without a donor, or without a token that the control
    could replace, has no sequence.
    """
    by_id = {sample.id: sample for sample in samples}
    out: dict[str, Sequences] = {name: {} for name in PATCHES}
    rows: list[dict[str, Any]] = []
    for donor in donors:
        if donor.id not in by_id:
            continue
        sample = by_id[donor.id]
        prompt = _patched(prompts, sample, donor, pool)
        whole = bool(donor.donor) and _whole(sample, pool[donor.donor])
        if prompt is not None:
            out[f"patch-{donor.kind}"][sample.id] = prompt + written(sample)
        resized = prompt is not None and len(prompt) != len(sample.prompt_ids)
        rows.append({**asdict(donor), "resized": resized, "whole": whole})
        if donor.kind == "matched":
            out["patch-self"][sample.id] = _self(prompts, sample) + written(sample)
    return out, pd.DataFrame(rows, columns=[*table_columns.DONOR_ROWS, *table_columns.DONOR_MORE])


def written(sample: Sample) -> tuple[int, ...]:
    """The answer's own tokens up to the probe position."""
    return sample.answer.token_ids[: sample.exact_answer[-1] + 1 - len(sample.prompt_ids)]


def patched_prompt(prompts: PromptMaker, sample: Sample, donor: Sample) -> tuple[int, ...]:
    """The prompt of a sample's question with the donor's subject in it.

    Span by span in their order where both have as many; else only the longest span changes, and
    a second subject stays. The property stays as it is: a question about another property would
    have no room for the sample's own answer.
    """
    places, given = [subject_span(sample)], [subject_text(donor)]
    if _whole(sample, donor):
        places, given = list(sample.subject_spans), _texts(donor)
    text = sample.question.text
    for span, words in sorted(zip(places, given, strict=True), reverse=True):
        text = text[: span.start] + words + text[span.stop :]
    return prompts.prompt(text, dataset=sample.question.dataset)


def _whole(sample: Sample, donor: Sample) -> bool:
    return len(sample.subject_spans) == len(donor.subject_spans)


def _texts(sample: Sample) -> list[str]:
    return [sample.question.text[span.start : span.stop] for span in sample.subject_spans]


def _patched(
    prompts: PromptMaker, sample: Sample, donor: Donor, pool: Mapping[str, Sample]
) -> tuple[int, ...] | None:
    if not donor.donor:
        return None
    other = pool[donor.donor]
    if donor.kind == "other":
        return other_tokens(sample, other, seed=prompts.seed)
    return patched_prompt(prompts, sample, other)


def _self(prompts: PromptMaker, sample: Sample) -> tuple[int, ...]:
    """The prompt made anew from the sample's own subject: it must be the run's."""
    ids = patched_prompt(prompts, sample, sample)
    if ids != sample.prompt_ids:
        raise UserError(
            f"The prompt of {sample.id} made again has other tokens than the run's. Give the "
            "prompt style, worked examples and tokenizer of the run "
            f"(style given: {prompts.style})."
        )
    return ids


def other_tokens(sample: Sample, donor: Sample, *, seed: int) -> tuple[int, ...] | None:
    """The prompt with as many question tokens outside E_Q as E_Q has taken from the donor's.

    Places and tokens are drawn by seed and id. A place gets a token unlike its own where the
    donor has one. Fewer are replaced where fewer stand outside E_Q, never the first of the
    prompt; None where there is nothing to replace or nothing to take.
    """
    free, taken = _outside(sample), [donor.prompt_ids[place] for place in _outside(donor)]
    count = min(len(sample.exact_question), len(free))
    if not count or not taken:
        return None
    draw, ids = generator(seed, "other", sample.id), list(sample.prompt_ids)
    for place in draw.choice(free, size=count, replace=False):
        unlike = [token for token in taken if token != ids[place]]
        ids[place] = int(draw.choice(unlike or taken))
    return tuple(ids)


def _outside(sample: Sample) -> list[int]:
    """The positions of the question's tokens outside E_Q."""
    exact = {0, *sample.exact_question}
    return [place for place in sample.question_tokens if place not in exact]


def read_patched(shards: Shards, prompts: PromptMaker) -> None:
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
        sequences, table = patches(prompts, usable, donors[dataset], pool)
        for name in PATCHES:
            prefix = shards.prefix(dataset)
            states = read_ends(shards.lease, prefix, sequences[name], budget=budget)
            shards.save_states(name, number, states)
        shards.save_table("donors", number, table)

    shards.each("patching", files, work)


def patching_table(
    readings: Readings,
    *,
    model: str,
    dataset: str,
    patches: Sequence[str] = PATCHES,
    grouping: str = "per-layer",
) -> pd.DataFrame:
    """One row per layer, patch, mode, subset and pathway: share of flips, Wilson's interval.

    The groups are those of the run's knockout; what flips is the verdict of the effect's probe.
    Patches that the readings do not hold are left out; an empty group has n = 0 and NaN. `floor`
    is the share of the same group that flips under the sample's own tokens, which change nothing
    but the order of sums: what rounding alone flips.
    """
    names = [name for name in patches if name in readings.logits]
    rows = []
    for mode in MODES:
        groups = groups_of(readings, mode, grouping=grouping)
        flipped = _flipped(readings, mode, names)
        floors = _floors(flipped.get(SELF), groups, readings)
        for name in names:
            rates = _rates(flipped[name], groups, readings.entity)
            rows += [(model, dataset, layer, name, mode, *row, floor)
                     for (layer, *row), floor in zip(rates, floors, strict=True)]  # fmt: skip
    columns = [*table_columns.EVIDENCE["patching"], *table_columns.PATCHING_MORE]
    return pd.DataFrame(rows, columns=columns)


def _flipped(readings: Readings, mode: Mode, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Whether each verdict flips, 1.0 or 0.0 [question, layer], by patch; NaN: not patched."""
    probe = ROLES[mode].effect
    return {name: flips(readings.of(probe), readings.of(probe, name)) for name in names}


def _floors(flipped: np.ndarray | None, groups: Groups, readings: Readings) -> list[float]:
    if flipped is None:
        return [np.nan] * (len(SUBSETS) * len(GROUPS) * readings.layers)
    return [float(row[4]) for row in _rates(flipped, groups, readings.entity)]


def patching_gap_table(
    readings: Readings,
    *,
    model: str,
    dataset: str,
    grouping: str = "per-layer",
    draws: Draws | None = None,
) -> pd.DataFrame:
    """One row per layer, patch, control, mode and subset: how much more often Q flips than A.

    Each sample's flip under the control (`less`: other tokens, or its own) is taken from its flip
    under the patch first: the two are of one sample, so they are compared as a pair. Entities are
    drawn.
    """
    names = [name for name in PATCHES if name in readings.logits]
    controls = [name for name in (OTHER, SELF) if name in names]
    rows = []
    for mode in MODES:
        groups = groups_of(readings, mode, grouping=grouping)
        flipped = _flipped(readings, mode, names)
        for name, less in itertools.product([n for n in names if n not in controls], controls):
            pair = (flipped[name], flipped[less])
            rows += [(model, dataset, layer, name, less, mode, *row) for layer, *row
                     in _gaps(pair, groups, readings.entity, draws or Draws())]  # fmt: skip
    return pd.DataFrame(rows, columns=list(table_columns.EVIDENCE["patching_gap"]))


def _gaps(
    pair: tuple[np.ndarray, np.ndarray], groups: Groups, entity: np.ndarray | None, draws: Draws
) -> list[tuple]:
    rows, about = [], np.arange(len(pair[0])) if entity is None else entity
    placed = groups.of("all") & np.isfinite(pair[0]) & np.isfinite(pair[1])
    for subset in PREDICTED:
        member = groups.subset(subset) & placed
        for layer in range(member.shape[1]):
            mine = member[:, layer]
            patch, control = (flipped[mine, layer] for flipped in pair)
            is_q = groups.of("Q")[mine, layer].astype(float)
            gap = _paired_gap(patch, control, is_q, about[mine], draws)
            rows.append((layer + 1, subset, gap.n, *gap[:3]))
    return rows


def _paired_gap(
    patch: np.ndarray, control: np.ndarray, is_q: np.ndarray, entity: np.ndarray, draws: Draws
) -> Estimate:
    """Flips beyond the control's, Q less A.

    Where no sample differs from the others of its group, a bootstrap has no spread: the interval
    is then that of four separate shares, which is wider than it need be.
    """
    gap = difference_of_means(patch - control, is_q, draws, entity=entity)
    if gap.high > gap.low or not np.isfinite(gap.value):
        return gap
    q, a = (
        difference(*(rate(flips[is_q == side], entity=entity[is_q == side]) for flips in
                     (patch, control)))
        for side in (1, 0)
    )  # fmt: skip
    return difference(q, a)


def _rates(flipped: np.ndarray, groups: Groups, entity: np.ndarray | None) -> list[tuple]:
    rows, about = [], np.arange(len(flipped)) if entity is None else entity
    for subset, pathway in itertools.product(SUBSETS, GROUPS):
        member = groups.subset(subset) & groups.of(pathway) & ~np.isnan(flipped)
        for layer in range(flipped.shape[1]):
            mine = member[:, layer]
            share = rate(flipped[mine, layer], entity=about[mine])
            rows.append((layer + 1, subset, pathway, share.n, *share[:3]))
    return rows


def _tables(inputs: PieceInputs) -> Tables:
    if inputs.readings.logits.keys().isdisjoint(PATCHES):
        return {}
    return {
        "patching": patching_table(inputs.readings, **inputs.names),
        "patching_gap": patching_gap_table(inputs.readings, **inputs.names, draws=inputs.draws),
    }


PIECE = Piece(tables=_tables, probed=PATCHES, stages=("patching",), read=read_patched)
