"""Patched samples as token ids: another subject in the question, the sample's own answer after it.

The patched question goes through the tokenizer again, so a donor with more or fewer tokens is a
whole question like any other; `resized` counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from anchorscope.errors import UserError
from anchorscope.evidence.donors import Donor, generator, subject_span, subject_text
from anchorscope.models import Model
from anchorscope.models.prompts import make_prompt
from anchorscope.records import Sample, Shot

Sequences = dict[str, tuple[int, ...]]  # by sample id: tokens up to the probe position
PATCHES = ("patch-matched", "patch-random", "patch-other", "patch-self")


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How a run put its questions: a patched one is put the same way."""

    model: Model
    style: str
    shots: Mapping[str, Sequence[Shot]]  # by dataset, as many as the run gave
    seed: int

    def prompt(self, sample: Sample, subject: str) -> tuple[int, ...]:
        """The prompt of a sample's question about another subject.

        Only the longest span changes; what else is marked (a property, a second subject) stays.
        """
        text, span = sample.question.text, subject_span(sample)
        text = text[: span.start] + subject + text[span.stop :]
        shots = self.shots[sample.question.dataset]
        return make_prompt(self.model, text, shots=shots, style=self.style).ids


def patches(
    asking: Asking, samples: Sequence[Sample], donors: Sequence[Donor], pool: Mapping[str, Sample]
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
        prompt = _patched(asking, sample, donor, pool)
        if prompt is not None:
            out[f"patch-{donor.kind}"][sample.id] = prompt + written(sample)
        resized = prompt is not None and len(prompt) != len(sample.prompt_ids)
        rows.append({**asdict(donor), "resized": resized})
        if donor.kind == "matched":
            out["patch-self"][sample.id] = _self(asking, sample) + written(sample)
    return out, pd.DataFrame(rows, columns=_COLUMNS)


_COLUMNS = ["id", "kind", "donor", "same_relation", "resized", "popularity_gap"]


def written(sample: Sample) -> tuple[int, ...]:
    """The answer's own tokens up to the probe position."""
    return sample.answer.token_ids[: sample.exact_answer[-1] + 1 - len(sample.prompt_ids)]


def _patched(
    asking: Asking, sample: Sample, donor: Donor, pool: Mapping[str, Sample]
) -> tuple[int, ...] | None:
    if not donor.donor:
        return None
    other = pool[donor.donor]
    if donor.kind == "other":
        return other_tokens(sample, other, seed=asking.seed)
    return asking.prompt(sample, subject_text(other))


def _self(asking: Asking, sample: Sample) -> tuple[int, ...]:
    """The prompt made anew from the sample's own subject: it must be the run's."""
    ids = asking.prompt(sample, subject_text(sample))
    if ids != sample.prompt_ids:
        raise UserError(
            f"The prompt of {sample.id} made again has other tokens than the run's. Give the "
            f"prompt style, worked examples and tokenizer of the run (style given: {asking.style})."
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
