"""Token patching: another subject in the question, the sample's own answer after it.

The patched question goes through the tokenizer again, so a donor with more or fewer tokens is a
whole question like any other; `resized` counts them. All spans of the subject are replaced where
the donor has as many, else the longest alone; `whole` says which.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from anchorscope.answers.normalise import words
from anchorscope.engine.batches import Budget
from anchorscope.engine.interventions import generator
from anchorscope.errors import UserError
from anchorscope.evidence.pieces import (
    GROUPS,
    PREDICTED,
    SUBSETS,
    Part,
    Piece,
    PieceInputs,
    PromptMaker,
)
from anchorscope.evidence.shards import Shards, read_ends
from anchorscope.pathways.effects import ROLES, flips
from anchorscope.probes.probe_set import Readings
from anchorscope.records import MODES, Estimate, Mode, Sample, Span
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.samples import evidence_name
from anchorscope.run_folder.states import shard_name
from anchorscope.spans.characters import longest
from anchorscope.stats.intervals import NOTHING, Draws, difference, difference_of_means, rate

Kind = Literal["matched", "random", "other"]
Sequences = dict[str, tuple[int, ...]]  # by sample id: tokens up to the probe position
PATCHES = ("patch-matched", "patch-random", "patch-other", "patch-self")
OTHER, SELF = "patch-other", "patch-self"  # the controls


@dataclass(frozen=True)
class Donor:
    """The donor whose tokens replace a sample's; `donor` is "" where the dataset holds none."""

    id: str
    kind: Kind
    donor: str
    same_relation: bool
    popularity_gap: float  # difference of the logarithms to base 10; NaN where one is unknown


def subject_span(sample: Sample) -> Span:
    """The longest span of the subject, of equals the first."""
    return longest(sample.subject_spans)


def subject_text(sample: Sample) -> str:
    """The subject of the sample's question, in the question's own words."""
    return sample.question.text[slice(*subject_span(sample))]


def choose_donors(samples: Sequence[Sample], *, seed: int) -> list[Donor]:
    """Choose a matched, a random and a control donor for every usable sample of a dataset.

    `matched`: of the same relation where that is known and another sample has it, with as many
    spans where another has, then the nearest in log popularity and number of exact question
    tokens, each counted in its standard deviation over the dataset. A candidate of unknown
    popularity counts as one deviation away. `random`: any other. Both are about another entity,
    name another subject, whatever its case, and share no accepted answer: with "the capital of
    France" for "the city of the Louvre" the sample's own answer would stay as right as it was.
    `other`, the control on tokens outside E_Q, takes them from the random donor. Seed and id
    decide ties and draws, so neither the order of the samples nor shards change them.
    """
    pool = sorted((s for s in samples if s.subject_spans), key=lambda sample: sample.id)
    subject = np.array([subject_text(sample).casefold() for sample in pool])
    entity = np.array([sample.question.entity for sample in pool])
    relation = np.array([sample.question.relation or "" for sample in pool])
    log = np.array([sample.question.log_popularity for sample in pool])
    tokens = np.array([len(sample.exact_question) for sample in pool], dtype=float)
    spans = np.array([len(sample.subject_spans) for sample in pool])
    accepted = [_accepted_answers(sample) for sample in pool]
    accepting: dict[str, list[int]] = {}  # answer -> the numbers of the samples it is right for
    for number, answers in enumerate(accepted):
        for answer in answers:
            accepting.setdefault(answer, []).append(number)

    def deviations(values: np.ndarray, own: int, others: np.ndarray) -> np.ndarray:
        finite = values[np.isfinite(values)]
        spread = float(finite.std()) if len(finite) else 0.0
        return np.abs(values[others] - values[own]) / (spread or 1.0)

    def nearest(own: int, others: np.ndarray) -> np.ndarray:
        """The nearest of `others`, with all that are equally near."""
        for alike in ((relation == relation[own]) & (relation != ""), spans == spans[own]):
            others = others[alike[others]] if alike[others].any() else others
        if not len(others):
            return others
        distance = np.nan_to_num(deviations(log, own, others), nan=1.0)
        distance = distance + deviations(tokens, own, others)
        return others[distance <= distance.min() + 1e-9]

    donors = []
    for own, sample in enumerate(pool):
        if not sample.usable:
            continue
        # Without an entity nothing is known but the text.
        same = ((entity == entity[own]) & (entity != "")) | (subject == subject[own])
        for answer in accepted[own]:
            same[accepting[answer]] = True
        others = np.flatnonzero(~same)
        random = _draw(others, seed, "random", sample.id)
        matched = _draw(nearest(own, others), seed, "matched", sample.id)
        chosen: dict[Kind, int | None] = {"matched": matched, "random": random, "other": random}
        for kind, other in chosen.items():
            if other is None:
                donors.append(Donor(sample.id, kind, "", False, np.nan))
                continue
            alike = bool(relation[own] and relation[own] == relation[other])
            gap = float(abs(log[own] - log[other]))
            donors.append(Donor(sample.id, kind, pool[other].id, alike, gap))
    return donors


def _accepted_answers(sample: Sample) -> set[str]:
    """The accepted answers of a sample's question, normalised as by the judge."""
    spelt = (" ".join(word.text for word in words(alias)) for alias in sample.question.answers)
    return {answer for answer in spelt if answer}


def _draw(candidates: np.ndarray, *key: object) -> int | None:
    return int(generator(*key).choice(candidates)) if len(candidates) else None


def patches(
    prompts: PromptMaker,
    samples: Sequence[Sample],
    donors: Sequence[Donor],
    pool: Mapping[str, Sample],
) -> tuple[dict[str, Sequences], pd.DataFrame]:
    """Patched token ids by patch and sample, and a table of their donors.

    `pool` holds every donor by id. A sample without a donor, or without a token that the control
    could replace, has no sequence.
    """
    by_id = {sample.id: sample for sample in samples}
    out: dict[str, Sequences] = {name: {} for name in PATCHES}
    rows: list[dict[str, Any]] = []
    for donor in donors:
        if donor.id not in by_id:
            continue
        sample, other, prompt = by_id[donor.id], pool.get(donor.donor), None
        if other is not None and donor.kind == "other":
            prompt = other_tokens(sample, other, seed=prompts.seed)
        elif other is not None:
            prompt = patched_prompt(prompts, sample, other)
        if prompt is not None:
            out[f"patch-{donor.kind}"][sample.id] = prompt + written(sample)
        if donor.kind == "matched":
            out[SELF][sample.id] = _self(prompts, sample) + written(sample)
        resized = prompt is not None and len(prompt) != len(sample.prompt_ids)
        whole = other is not None and _whole(sample, other)
        rows.append({**asdict(donor), "resized": resized, "whole": whole})
    return out, pd.DataFrame(rows, columns=[*table_columns.DONOR_ROWS, *table_columns.DONOR_MORE])


def written(sample: Sample) -> tuple[int, ...]:
    """The answer's own tokens up to the probe position."""
    return sample.answer.token_ids[: sample.exact_answer[-1] + 1 - len(sample.prompt_ids)]


def patched_prompt(prompts: PromptMaker, sample: Sample, donor: Sample) -> tuple[int, ...]:
    """The prompt of a sample's question with the donor's subject in it.

    Spans are replaced in order where both have as many; else only the longest span changes, and
    a second subject stays. The property stays as it is: the sample's own answer would not fit a
    question about another property.
    """
    places, subjects = [subject_span(sample)], [subject_text(donor)]
    if _whole(sample, donor):
        places = list(sample.subject_spans)
        subjects = [donor.question.text[slice(*span)] for span in donor.subject_spans]
    text = sample.question.text
    for span, subject in sorted(zip(places, subjects, strict=True), reverse=True):
        text = text[: span.start] + subject + text[span.stop :]
    return prompts.prompt(text, dataset=sample.question.dataset)


def _whole(sample: Sample, donor: Sample) -> bool:
    return len(sample.subject_spans) == len(donor.subject_spans)


def _self(prompts: PromptMaker, sample: Sample) -> tuple[int, ...]:
    """Check that the prompt made from the sample's own subject equals the run's."""
    ids = patched_prompt(prompts, sample, sample)
    if ids != sample.prompt_ids:
        raise UserError(
            f"The prompt of {sample.id} made again has other tokens than the run's. Give the "
            "prompt style, worked examples and tokenizer of the run "
            f"(style given: {prompts.style})."
        )
    return ids


def other_tokens(sample: Sample, donor: Sample, *, seed: int) -> tuple[int, ...] | None:
    """Replace question tokens outside E_Q, as many as E_Q has, with tokens of the donor.

    Places and tokens are drawn by seed and id. A place gets a token unlike its own where the
    donor has one. Fewer are replaced where fewer are outside E_Q, never the first of the
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
    """Store the states of patched samples (`patch-*`) and their donors (evidence/donors)."""
    budget = Budget.of(shards.lease.model)
    donors: dict[str, list[Donor]] = {}

    def files(number: int) -> list[str]:
        return [*(shard_name(name, number) for name in PATCHES), evidence_name("donors", number)]

    def work(number: int, dataset: str, samples: list[Sample]) -> None:
        every = shards.of_dataset(dataset)
        if dataset not in donors:
            donors[dataset] = choose_donors(every, seed=shards.seed)
        pool = {sample.id: sample for sample in every}
        usable = [sample for sample in samples if sample.usable]
        sequences, table = patches(prompts, usable, donors[dataset], pool)
        for name in PATCHES:
            prefix = shards.prefix(dataset)
            states = read_ends(shards.lease, prefix, sequences[name], budget=budget)
            shards.save_states(name, number, states)
        shards.save_table("donors", number, table)

    shards.each("patching", files, work)


def patching_table(inputs: PieceInputs) -> pd.DataFrame:
    """One row per layer, patch, mode, subset and pathway: share of flips, Wilson's interval.

    The groups are those of the run's knockout; what flips is the verdict of the effect's probe.
    Patches that the readings do not hold are left out; an empty group has n = 0 and NaN. `floor`
    is the share of the same group that flips under the sample's own tokens, which change nothing
    but the order of sums: what rounding alone flips.
    """
    rows = []
    for mode in MODES:
        groups, flipped = inputs.groups(mode), _flipped(inputs.readings, mode)
        shares = {}
        for name, subset, pathway in itertools.product(flipped, SUBSETS, GROUPS):
            used = groups.subset(subset) & groups.member(pathway) & ~np.isnan(flipped[name])
            for layer, own, hit in zip(inputs.layers, used.T, flipped[name].T, strict=True):
                share = rate(hit[own], entity=inputs.entity[own])
                shares[layer, name, mode, subset, pathway] = share
        for (layer, name, *group), share in shares.items():
            floor = shares.get((layer, SELF, *group), NOTHING).value
            rows.append((layer, name, *group, share.n, *share[:3], floor))
    return inputs.table("patching", rows, table_columns.PATCHING_MORE)


def _flipped(readings: Readings, mode: Mode) -> dict[str, np.ndarray]:
    """Whether each verdict flips, 1.0 or 0.0 [question, layer], by patch; NaN: not patched."""
    probe, names = ROLES[mode].effect, [name for name in PATCHES if name in readings.logits]
    return {name: flips(readings.of(probe), readings.of(probe, name)) for name in names}


def patching_gap_table(inputs: PieceInputs) -> pd.DataFrame:
    """One row per layer, patch, control, mode and subset: how much more often Q flips than A.

    Each sample's flip under the control (`less`: other tokens, or its own) is taken from its flip
    under the patch first: the two are of one sample, so they are compared as a pair. Entities are
    drawn for the intervals.
    """
    rows, entity = [], inputs.entity
    for mode in MODES:
        groups, flipped = inputs.groups(mode), _flipped(inputs.readings, mode)
        controls = [name for name in (OTHER, SELF) if name in flipped]
        for name, less in itertools.product([n for n in flipped if n not in controls], controls):
            patch, control = flipped[name], flipped[less]
            read = groups.member("all") & np.isfinite(patch) & np.isfinite(control)
            for subset in PREDICTED:
                for k, own in enumerate((groups.subset(subset) & read).T):
                    is_q = groups.member("Q")[own, k].astype(float)
                    pair = (patch[own, k], control[own, k])
                    gap = _paired_gap(*pair, is_q, entity[own], inputs.draws)
                    rows.append((k + 1, name, less, mode, subset, gap.n, *gap[:3]))
    return inputs.table("patching_gap", rows)


def _paired_gap(
    patch: np.ndarray, control: np.ndarray, is_q: np.ndarray, entity: np.ndarray, draws: Draws
) -> Estimate:
    """The difference between Q and A in flips beyond the control's, with its interval.

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


def _tables(inputs: PieceInputs) -> list[Part]:
    if inputs.readings.logits.keys().isdisjoint(PATCHES):
        return []
    return [
        lambda: {"patching": patching_table(inputs)},
        lambda: {"patching_gap": patching_gap_table(inputs)},
    ]


PIECE = Piece(tables=_tables, probed=PATCHES, stages=("patching",), read=read_patched)
