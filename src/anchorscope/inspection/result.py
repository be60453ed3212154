"""What is read of one question, and the result: as a value, a chart, and HTML."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from anchorscope.config import Config
from anchorscope.engine.interventions import (
    ANSWER_ONLY,
    CLEAN,
    KNOCKOUT,
    NEUTRAL,
    Intervention,
    knockout_of,
)
from anchorscope.errors import UserError
from anchorscope.inspection.readings import PathwayVote, Wrong
from anchorscope.models import Model
from anchorscope.records import Mode, Sample
from anchorscope.show.charts import INTERVENTIONS
from anchorscope.show.html import panel_style, render, visible

Head = tuple[int, int]  # block from 1, head from 0
PATCH, WINDOW, HEADS = "patch", "window", "heads"
# Colour and dashes: colour is never the only sign.
_STYLE = {
    CLEAN.name: ("currentColor", ""),
    KNOCKOUT.name: (INTERVENTIONS[KNOCKOUT.name][1], ""),
    NEUTRAL.name: (INTERVENTIONS[NEUTRAL.name][1], "2 3"),
    ANSWER_ONLY.name: (INTERVENTIONS[ANSWER_ONLY.name][1], "7 3"),
    PATCH: ("#d6438a", "9 3 2 3"),
    WINDOW: ("#17a2b8", "4 2"),
    HEADS: ("#a9725f", "1 3 6 3"),
}
_LEFT, _RIGHT, _TOP, _BOTTOM = 38, 466, 8, 198  # of the chart's area, in its own units


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


@dataclass(frozen=True, kw_only=True)
class Curve:
    """P(wrong) by layer under one pass, or the band of a group."""

    name: str
    label: str
    color: str
    dash: str
    path: str  # as SVG
    value: float | None = None  # at the layer that is read; None for a band


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token of the question's own turn or of the answer."""

    position: int  # in prompt and answer, from 0
    text: str
    question: bool
    exact_question: bool  # of E_Q
    answer: bool
    exact_answer: bool  # of E_A; its last one is the probe position

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the token; the exact part takes precedence over the whole."""
        question = "exact-question" if self.exact_question else "question" if self.question else ""
        answer = "exact-answer" if self.exact_answer else "answer" if self.answer else ""
        return tuple(role for role in (question, answer) if role)


@dataclass(frozen=True, kw_only=True)
class Inspection:
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
    color: str  # of the dataset
    beliefs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    bands: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    wrong: Wrong | None = None
    pathway: PathwayVote | None = None

    def chart(self) -> str:
        """P(wrong) by layer over the run's bands, as an SVG picture.

        It is readable without colour and on any background. A vertical line marks the layer.
        """
        layers = len(self.beliefs[CLEAN.name])
        step = max(1, math.ceil(layers / 7 / 5) * 5) if layers > 7 else 1
        return render(
            "beliefs.svg",
            curves=self.curves(),
            layer=self.layer,
            layers=[k for k in range(1, layers + 1) if k % step == 0 or k == 1],
            x=self._x,
            y=_y,
        )

    def curves(self) -> list[Curve]:
        """The curves of the chart: the bands of Q and A, then every pass, the clean one first."""
        curves = [
            Curve(
                name=name,
                label=f"{name} of the run, its own subjects cut",
                color=self.color,
                dash="4 2" if name == "A" else "",
                path="".join(self._band(ends)),
            )
            for name, ends in self.bands.items()
        ]
        for name, values in self.beliefs.items():
            color, dash = _STYLE[name]
            path, value = self._line(list(enumerate(values, start=1))), values[self.layer - 1]
            label = self._label(name)
            curves.append(
                Curve(name=name, label=label, color=color, dash=dash, path=path, value=value)
            )
        return curves

    def _x(self, layer: int) -> float:
        layers = len(self.beliefs[CLEAN.name])
        return _LEFT + (_RIGHT - _LEFT) * (layer - 1) / max(1, layers - 1)

    def _line(self, points: Sequence[tuple[int, float]]) -> str:
        return "M" + "L".join(f"{self._x(layer):.1f},{_y(value):.2f}" for layer, value in points)

    def _band(self, ends: Sequence[tuple[float, float]]) -> Iterator[str]:
        """The SVG paths of a band's parts: along the low ends, and back along the high ends."""
        layers = enumerate(ends, start=1)
        for known, part in groupby(layers, key=lambda layer: math.isfinite(layer[1][0])):
            if known:
                here = list(part)
                back = [(k, high) for k, (_, high) in reversed(here)]
                yield self._line([*((k, low) for k, (low, _) in here), *back]) + "Z"

    def _label(self, name: str) -> str:
        """The legend's label of a pass."""
        own = tuple(token.position for token in self.tokens if token.exact_question)
        heads = [f"{block}.{head}" for block, head in self.choices.heads]
        labels = {
            CLEAN.name: "clean",
            KNOCKOUT.name: "exact question tokens cut" if self.cut == own else "chosen tokens cut",
            NEUTRAL.name: "as many neutral tokens cut",
            ANSWER_ONLY.name: "answer without question",
            PATCH: f"another subject: {self.choices.subject.strip()}",
            WINDOW: f"cut in the last {self.choices.window} blocks only",
            HEADS: f"cut in {'heads' if len(heads) > 1 else 'head'} {', '.join(heads)} only",
        }
        return labels[name]

    def _repr_html_(self) -> str:
        """The panel as HTML with its style sheet, for notebooks."""
        return f"<div><style>{panel_style()}</style>{panel(self)}</div>"

    def cautions(self) -> str:
        """Sentences on how far to trust the pathway."""
        cautions = []
        if self.mode == "strict":
            cautions.append("The pathway comes from another probe than the one drawn below.")
        if self.pathway is not None and not math.isnan(kappa := self.pathway.agreement):
            cautions.append(f"Over the run two independent probes agree with κ = {kappa:.2f}.")
        if self.finding:
            cautions.append(f"The run's finding on {self.title}: {self.finding} ({self.why}).")
        scored = self.wrong.scored if self.wrong else None
        if scored is not None and scored.predicted_pathway:
            pathway, chance = scored.predicted_pathway, scored.predicted_pathway_probability
            cautions.append(
                f"From the clean state alone the detector predicts {pathway} ({chance:.0%})."
            )
        return " ".join(cautions)


def _y(value: float) -> float:
    return _BOTTOM - value * (_BOTTOM - _TOP)


def panel(result: Inspection, *, live: bool = False) -> str:
    """The HTML of one question; if it is live, each prompt token is a button."""
    tokens = [token.text for token in result.tokens if token.answer]
    return render("panel.html", question=result.question, it=result, live=live, tokens=tokens)


def streamed(question: str, tokens: Sequence[str], wrong: Sequence[float]) -> str:
    """The panel while the answer is being written: its tokens, and P(wrong) after each."""
    return render("panel.html", question=question, it=None, live=False, tokens=tokens, wrong=wrong)


def message(text: str) -> str:
    """A message of one line as HTML."""
    return f'<p class="anchorscope box" role="status">{visible(text)}</p>'
