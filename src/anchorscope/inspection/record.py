"""What is said of one question: its tokens, its belief by layer, its pathway, how sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anchorscope.inspection.asking import Asked
from anchorscope.inspection.certainty import PathwaySaid, Wrong
from anchorscope.inspection.choices import Choices
from anchorscope.models import Model
from anchorscope.records import Mode
from anchorscope.show.explore.token_texts import piece


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token of the question's own turn or of the answer."""

    position: int  # in prompt and answer, from 0
    text: str
    question: bool
    exact_question: bool  # of E_Q
    answer: bool
    exact_answer: bool  # of E_A; its last one is the probe position


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """One question, its answer, and what the run's probes read in it.

    `beliefs` are P(wrong) by layer, from 1, of each pass; `bands` the middle half of the run's Q
    and A answers under the knockout, by layer. Both are empty where the answer has no entity.
    """

    question: str
    answer: str
    verdict: str  # right, wrong or abstain; "" where no accepted answer is known
    model: str
    dataset: str  # whose prompts and probes were used
    title: str  # of that dataset
    mode: Mode
    layer: int  # at which P(wrong) and the pathway are read
    finding: str  # of the run on that dataset; "" where it has none
    why: str
    tokens: tuple[Token, ...]
    cut: tuple[int, ...]  # positions of the tokens that the knockout cuts
    choices: Choices
    growth: tuple[float, ...]  # P(wrong) after each answer token, as if the answer ended there
    colors: Mapping[str, str]
    beliefs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    bands: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    wrong: Wrong | None = None
    pathway: PathwaySaid | None = None


def tokens_of_answer(model: Model, asked: Asked, *, start: int) -> tuple[Token, ...]:
    """The tokens from position `start` on: the question's own turn, then the answer."""
    sample = asked.sample
    ids = (*sample.prompt_ids, *sample.answer.token_ids)
    question, exact = set(sample.question_tokens), set(sample.exact_question)
    entity, prompt = set(sample.exact_answer), len(sample.prompt_ids)
    tokenizer = model.tokenizer.backend_tokenizer
    return tuple(
        Token(
            position=at,
            text=piece(tokenizer, ids[at]),
            question=at in question,
            exact_question=at in exact,
            answer=at >= prompt,
            exact_answer=at in entity,
        )
        for at in range(min(start, prompt), len(ids))
    )
