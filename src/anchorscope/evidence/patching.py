"""Token patching: another subject in the question, the sample's own answer after it.

The patched question goes through the tokenizer again, so a donor with more or fewer tokens is a
whole question like any other; `resized` counts them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.errors import UserError
from anchorscope.evidence.groups import GROUPS, SUBSETS, Groups, groups_of
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
from anchorscope.records import MODES, Sample
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.states import shard_name
from anchorscope.stats.intervals import rate

Sequences = dict[str, tuple[int, ...]]  # by sample id: tokens up to the probe position
PATCHES = ("patch-matched", "patch-random", "patch-other", "patch-self")


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
        if prompt is not None:
            out[f"patch-{donor.kind}"][sample.id] = prompt + written(sample)
        resized = prompt is not None and len(prompt) != len(sample.prompt_ids)
        rows.append({**asdict(donor), "resized": resized})
        if donor.kind == "matched":
            out["patch-self"][sample.id] = _self(prompts, sample) + written(sample)
    return out, pd.DataFrame(rows, columns=list(table_columns.DONOR_ROWS))


def written(sample: Sample) -> tuple[int, ...]:
    """The answer's own tokens up to the probe position."""
    return sample.answer.token_ids[: sample.exact_answer[-1] + 1 - len(sample.prompt_ids)]


def patched_prompt(prompts: PromptMaker, sample: Sample, subject: str) -> tuple[int, ...]:
    """The prompt of a sample's question about another subject.

    Only the longest span changes; what else is marked (a property, a second subject) stays.
    """
    text, span = sample.question.text, subject_span(sample)
    text = text[: span.start] + subject + text[span.stop :]
    return prompts.prompt(text, dataset=sample.question.dataset)


def _patched(
    prompts: PromptMaker, sample: Sample, donor: Donor, pool: Mapping[str, Sample]
) -> tuple[int, ...] | None:
    if not donor.donor:
        return None
    other = pool[donor.donor]
    if donor.kind == "other":
        return other_tokens(sample, other, seed=prompts.seed)
    return patched_prompt(prompts, sample, subject_text(other))


def _self(prompts: PromptMaker, sample: Sample) -> tuple[int, ...]:
    """The prompt made anew from the sample's own subject: it must be the run's."""
    ids = patched_prompt(prompts, sample, subject_text(sample))
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
    Patches that the readings do not hold are left out; an empty group has n = 0 and NaN.
    """
    names = [name for name in patches if name in readings.logits]
    rows = []
    for mode in MODES:
        groups = groups_of(readings, mode, grouping=grouping)
        probe = ROLES[mode].effect
        for name in names:
            flipped = flips(readings.of(probe), readings.of(probe, name))
            rows += [(model, dataset, layer, name, mode, *row)
                     for layer, *row in _rates(flipped, groups, readings.entity)]  # fmt: skip
    return pd.DataFrame(rows, columns=list(table_columns.EVIDENCE["patching"]))


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
    return {"patching": patching_table(inputs.readings, **inputs.names)}


PIECE = Piece(tables=_tables, probed=PATCHES, read=read_patched)
