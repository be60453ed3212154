"""The cuts and changes chosen for one question, as passes of the engine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from anchorscope.config import Config
from anchorscope.engine.interventions import (
    ANSWER_ONLY,
    KNOCKOUT,
    NEUTRAL,
    Intervention,
    knockout_of,
)
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.records import Sample

Head = tuple[int, int]  # block from 1, head from 0
PATCH, WINDOW, HEADS = "patch", "window", "heads"


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The changes to read in addition to the clean pass and the knockout.

    `cut` are positions of prompt tokens; None is the run's own choice, the exact question tokens.
    """

    cut: tuple[int, ...] | None = None
    neutral: bool = True  # as many tokens without subject or property, as a control
    answer_only: bool = True
    subject: str = ""  # another subject in the question, the same answer after it
    window: int | None = None  # the cut in this many blocks that end at each layer
    heads: tuple[Head, ...] = ()  # the cut in these heads alone

    def passes(self, config: Config) -> list[Intervention]:
        """The engine's passes for these choices, without the patch, which is another prompt."""
        # The positions of what is cut replace the exact tokens; the run's config says how to cut.
        cut = replace(knockout_of(config), name=KNOCKOUT.name, keys="exact")
        passes = [cut]
        if self.neutral:
            passes.append(replace(cut, name=NEUTRAL.name, keys="neutral"))
        if self.answer_only:
            passes.append(ANSWER_ONLY)
        if self.window is not None:
            passes.append(replace(cut, name=WINDOW, layers=f"window:{self.window}"))
        if self.heads:
            passes.append(replace(cut, name=HEADS, heads=self.heads))
        return passes

    def positions(self, config: Config, sample: Sample) -> tuple[int, ...]:
        """The positions that are cut: the chosen ones, or those the run's config names."""
        if self.cut is not None:
            return tuple(sorted(set(self.cut)))
        return sample.question_tokens if config.keys == "question" else sample.exact_question

    def check(self, model: Model, *, prompt: int) -> None:
        """Raise a UserError for heads, a window or tokens that model or prompt do not have."""
        heads = int(model.lm.config.get_text_config().num_attention_heads)
        for block, head in self.heads:
            if not (1 <= block <= model.blocks and 0 <= head < heads):
                raise UserError(
                    f"There is no head {block}.{head}. Accepted: block.head with blocks 1 to "
                    f"{model.blocks} and heads 0 to {heads - 1}, such as {model.blocks}.0."
                )
        if self.window is not None and not 1 <= self.window <= model.blocks:
            raise UserError(
                f"The window is {self.window} blocks wide. Accepted: 1 to {model.blocks}."
            )
        for position in self.cut or ():
            if not 0 < position < prompt:
                raise UserError(
                    f"Token {position} cannot be cut. Accepted: tokens 1 to {prompt - 1}, which "
                    "are the prompt without its first one."
                )


def heads_in(text: str) -> tuple[Head, ...]:
    """Parse heads from a text such as "12.3, 14.0": block from 1, head from 0."""
    words = re.split(r"[\s,;]+", text.strip(" \t\n,;"))
    heads = []
    for word in filter(None, words):
        pair = re.fullmatch(r"(\d{1,4})[.:](\d{1,4})", word)
        if pair is None:
            raise UserError(
                f"'{word[:40]}' names no head. Accepted: block.head, joined by commas: 12.3, 14.0."
            )
        heads.append((int(pair[1]), int(pair[2])))
    return tuple(heads)
