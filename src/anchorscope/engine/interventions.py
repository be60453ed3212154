"""Interventions on a forward pass, as data, and the named passes of a run that are made of them.

An intervention says which keys are cut, in which blocks and heads. The name of a pass is the name
of its states in the run folder, states/<pass>/.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from anchorscope.config import Config, Where
from anchorscope.errors import UserError, unknown
from anchorscope.records import Sample


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """A knockout, a reweighting, or the pass over the answer alone.

    With `boost` nothing is cut: it is added to the scores of the edges from the keys to E_A before
    the softmax.
    """

    name: str
    keys: str = "exact"  # a name of KEYS
    where: Where = "pre"
    layers: str = "cumulative"  # cumulative, window:w, single
    heads: tuple[tuple[int, int], ...] | None = None  # (block from 1, head from 0); None is all
    answer_only: bool = False
    boost: float | None = None
    retest: bool = False  # read behind other worked examples, in another wording of the prompt

    def __post_init__(self) -> None:
        boost = self.boost
        if boost is not None and (not math.isfinite(boost) or self.where == "post"):
            raise UserError("A boost is a finite number, added to scores before the softmax.")
        for name, value, accepted in (
            ("keys", self.keys, KEYS),
            ("where", self.where, get_args(Where)),
        ):
            if value not in accepted:
                raise unknown(name, value, accepted)
        window_of(self.layers)

    @property
    def hides_keys(self) -> bool:
        """Whether the keys are cut from every later token outside them, in all blocks and heads."""
        everywhere = self.heads is None and window_of(self.layers) is None
        return everywhere and self.boost is None and self.where == "pre" and not self.answer_only

    @property
    def has_output(self) -> bool:
        """Whether the model's own output is read; it needs one whole-row pass for all layers."""
        return self.boost is None and (self.answer_only or window_of(self.layers) is None)


def window_of(layers: str) -> int | None:
    """The number of blocks cut, of which k is the last; None means all blocks 1..k."""
    if layers == "cumulative":
        return None
    if layers == "single":
        return 1
    name, _, width = layers.partition(":")
    if name == "window" and width.isdigit() and int(width) > 0:
        return int(width)
    raise UserError(
        f"Unknown layers '{layers}'. Accepted: cumulative, single, window:w with w of 1 or more."
    )


@dataclass(frozen=True, kw_only=True)
class TokenPositions:
    """The token positions of one answered question that interventions refer to."""

    id: str
    ids: tuple[int, ...]  # prompt + answer, up to the probe position, which is the last
    answer_at: int  # the position of the first answer token
    question_tokens: tuple[int, ...]
    exact_question: tuple[int, ...]  # E_Q
    exact_answer: tuple[int, ...] = ()  # E_A; only reweighting and saliency use it
    content_tokens: tuple[int, ...] = ()  # the question's content words, those of E_Q included
    mass: tuple[float, ...] | None = None  # attention from the probe position to each position


def keys_of(positions: TokenPositions, keys: str, *, seed: int) -> tuple[int, ...]:
    """The key positions that are cut; the first token, the attention sink, is never one."""
    return tuple(position for position in KEYS[keys](positions, seed) if position > 0)


def generator(*key: object) -> np.random.Generator:
    """A random generator seeded by this key alone."""
    digest = hashlib.sha256(":".join(map(str, key)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _neutral(positions: TokenPositions, seed: int) -> list[int]:
    """Draw control tokens, as many as E_Q has, that carry neither subject nor property.

    They come from the function words of the question and from the rest of its turn; where these
    are too few, also from the worked examples. Of several draws, seeded by seed and question id,
    take the one whose attention mass is closest to that of E_Q. Never the first token, never a
    content word of the question, and never the last token before the answer, from which the model
    predicts its first word.
    """
    assert positions.mass is not None, "the attention mass must be read before keys are drawn"
    exact = [position for position in positions.exact_question if position > 0]
    last = positions.answer_at - 1
    taken = {0, last, *exact, *positions.content_tokens}
    pool = np.array([p for p in range(positions.answer_at) if p not in taken], dtype=np.int64)
    count, mass = min(len(exact), len(pool)), np.asarray(positions.mass)
    # Each draw takes the tokens with the smallest random numbers; worked examples come last.
    draws = generator(seed, positions.id).random((_DRAWS, len(pool)))
    in_examples = pool < min(positions.question_tokens, default=0)
    order = np.argsort(draws + in_examples, axis=1)
    drawn = pool[order[:, :count]]
    away = np.abs(mass[drawn].sum(axis=1) - mass[exact].sum())
    return sorted(drawn[int(away.argmin())].tolist())


_DRAWS = 64  # draws, of which the best match in attention mass is taken
# The keys that an intervention cuts, by name, from the positions and the run's seed.
KEYS: Mapping[str, Callable[[TokenPositions, int], Sequence[int]]] = {
    "exact": lambda positions, seed: positions.exact_question,
    "question": lambda positions, seed: positions.question_tokens,
    "neutral": _neutral,
    # The question's content words outside E_Q.
    "content": lambda positions, seed: [
        position
        for position in positions.content_tokens
        if position not in positions.exact_question
    ],
}


def positions_of(sample: Sample) -> TokenPositions:
    """Token positions of a sample that interventions refer to."""
    whole = sample.prompt_ids + sample.answer.token_ids
    return TokenPositions(
        id=sample.id,
        ids=whole[: sample.exact_answer[-1] + 1],
        answer_at=len(sample.prompt_ids),
        question_tokens=sample.question_tokens,
        exact_question=sample.exact_question,
        exact_answer=sample.exact_answer,
        content_tokens=sample.content_tokens,
    )


def retest_positions(sample: Sample, prompt: Any) -> TokenPositions:
    """Token positions of a sample's answer after another prompt for the same question.

    `prompt` has `prompt_ids`, and the positions `question_tokens`, `exact_question` and
    `content_tokens` among them.
    """
    own, moved = positions_of(sample), len(prompt.prompt_ids) - len(sample.prompt_ids)
    return replace(
        own,
        ids=prompt.prompt_ids + own.ids[own.answer_at :],
        answer_at=own.answer_at + moved,
        question_tokens=prompt.question_tokens,
        exact_question=prompt.exact_question,
        exact_answer=tuple(position + moved for position in own.exact_answer),
        content_tokens=prompt.content_tokens,
    )


# --- The passes of a run ---


CLEAN = Intervention(name="clean", heads=())  # no head is cut: nothing is
KNOCKOUT = Intervention(name="knockout")
NEUTRAL = Intervention(name="neutral", keys="neutral")
CONTENT = Intervention(name="content", keys="content")
QUESTION = Intervention(name="question", keys="question")
ANSWER_ONLY = Intervention(name="answer-only", answer_only=True)
# The same answer after other worked examples and wording, clean and knocked out.
RETESTED = 500  # questions of each dataset at most
RETEST = Intervention(name="retest", heads=(), retest=True)
RETEST_KNOCKOUT = Intervention(name="retest-knockout", retest=True)

# States recorded while the answer is written, without a pass of their own: at the probe position,
# and at the last token of the question, before any answer token.
QUESTION_ONLY = "question-only"
CAUGHT = (CLEAN.name, QUESTION_ONLY)

# Added to attention scores for Pathway Reweighting, with both signs; 0 is the clean pass.
BETAS = (0.25, 0.5, 1.0, 2.0)


def knockout_of(config: Config) -> Intervention:
    """The knockout as the run's config defines it."""
    return replace(KNOCKOUT, keys=config.keys, where=config.where, layers=config.layers)


def passes_of(config: Config) -> tuple[Intervention, ...]:
    """The passes of every run: the knockout, its controls, the answer alone, and the retest."""
    cut = knockout_of(config)
    controls = (replace(cut, name=c.name, keys=c.keys) for c in (NEUTRAL, CONTENT, QUESTION))
    again = replace(cut, name=RETEST_KNOCKOUT.name, retest=True)
    return (cut, *controls, ANSWER_ONLY, RETEST, again)


def window_knockouts(config: Config) -> tuple[Intervention, ...]:
    """Knockouts in windows of 5 blocks and in single blocks, which show the depth of the flow."""
    cut = knockout_of(config)
    return (
        replace(cut, name="window-5", layers="window:5"),
        replace(cut, name="single", layers="single"),
    )


def reweightings() -> tuple[Intervention, ...]:
    """The passes that add β to the scores from E_Q to E_A, which detectors are trained on."""
    betas = [sign * beta for beta in BETAS for sign in (1, -1)]
    return tuple(Intervention(name=reweighted_name(beta), boost=beta) for beta in betas)


def reweighted_name(beta: float) -> str:
    """The name of the reweighting pass with this β."""
    return f"reweight{float(beta):+}"
