"""What the probes read in one question: as a value, a chart, and HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anchorscope.engine.passes import ANSWER_ONLY, CLEAN, KNOCKOUT, NEUTRAL
from anchorscope.inspection.choices import HEADS, PATCH, WINDOW, Choices
from anchorscope.inspection.question import RecordedAnswer
from anchorscope.inspection.readings import PathwayVote, Wrong
from anchorscope.models import Model
from anchorscope.records import Mode
from anchorscope.show.charts import INTERVENTIONS
from anchorscope.show.explore.token_texts import piece
from anchorscope.show.html import panel_style, render
from anchorscope.show.words import visible

_INK, _GREY = "currentColor", "var(--quiet, #6b7280)"
# Colour and dashes: colour is never the only sign.
_STYLE = {
    CLEAN.name: (_INK, ""),
    KNOCKOUT.name: (INTERVENTIONS[KNOCKOUT.name][1], ""),
    NEUTRAL.name: (INTERVENTIONS[NEUTRAL.name][1], "2 3"),
    ANSWER_ONLY.name: (INTERVENTIONS[ANSWER_ONLY.name][1], "7 3"),
    PATCH: ("#d6438a", "9 3 2 3"),
    WINDOW: ("#17a2b8", "4 2"),
    HEADS: ("#a9725f", "1 3 6 3"),
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """P(wrong) by layer under one pass, NaN where there is none; with `high` a group's band."""

    name: str
    label: str
    values: Sequence[float]
    color: str
    dash: str = ""
    high: Sequence[float] | None = None

    @property
    def sample(self) -> str:
        """A piece of it, for a legend."""
        stroke, height = f'stroke="{self.color}" stroke-dasharray="{self.dash}"', 8
        line = f'<line x1="0" x2="26" y1="4" y2="4" stroke-width="2.2" {stroke}/>'
        if self.high is not None:
            line = f'<rect width="26" height="8" fill="{self.color}" fill-opacity=".2" {stroke}/>'
        return f'<svg width="26" height="{height}" aria-hidden="true">{line}</svg>'


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
        """The names of what the token is part of, the exact part before the whole."""
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
    colors: Mapping[str, str]
    beliefs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    bands: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    wrong: Wrong | None = None
    pathway: PathwayVote | None = None

    def chart(self) -> str:
        """P(wrong) by layer over the run's bands, as an SVG picture."""
        return belief_chart(self.curves(), layer=self.layer)

    def _repr_html_(self) -> str:
        """The panel with its own style: a notebook has none."""
        style = panel_style("@media (prefers-color-scheme: dark) { .anchorscope {} }")
        return f"<div><style>{style}</style>{panel(self)}</div>"

    def curves(self) -> list[Curve]:
        """P(wrong) by layer of every pass, the clean one first, after the bands of Q and A."""
        bands = [
            Curve(
                name=name,
                label=f"{name} of the run, its own subjects cut",
                values=[low for low, _ in ends],
                high=[high for _, high in ends],
                color=self.colors[name],
                dash="4 2" if name == "A" else "",
            )
            for name, ends in self.bands.items()
        ]
        passes = [
            Curve(name=name, label=self._label(name), values=values, color=color, dash=dash)
            for name, values in self.beliefs.items()
            for color, dash in [_STYLE[name]]
        ]
        return bands + passes

    def _label(self, name: str) -> str:
        """The name of a pass in legends."""
        own = tuple(token.position for token in self.tokens if token.exact_question)
        choices = self.choices
        heads = ", ".join(f"{block}.{head}" for block, head in choices.heads)
        labels = {
            CLEAN.name: "clean",
            KNOCKOUT.name: "exact question tokens cut" if self.cut == own else "chosen tokens cut",
            NEUTRAL.name: "as many neutral tokens cut",
            ANSWER_ONLY.name: "answer without question",
            PATCH: f"another subject: {choices.subject.strip()}",
            WINDOW: f"cut in the last {choices.window} blocks only",
            HEADS: f"cut in {'heads' if len(choices.heads) > 1 else 'head'} {heads} only",
        }
        return labels[name]


def tokens_of_answer(model: Model, exchange: RecordedAnswer, *, start: int) -> tuple[Token, ...]:
    """The tokens from position `start` on: the question's own turn, then the answer."""
    sample = exchange.sample
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


def panel(result: Inspection, *, live: bool = False) -> str:
    """The HTML of one question; where it is live, each prompt token is a button."""
    return render(
        "panel.html",
        question=result.question,
        it=result,
        live=live,
        tokens=[token.text for token in result.tokens if token.answer],
        cautions=" ".join(_cautions(result)),
        curves=[(curve, curve.sample) for curve in result.curves()],
        chart=result.chart() if result.beliefs else "",
    )


def belief_chart(curves: Sequence[Curve], *, layer: int) -> str:
    """P(wrong) by layer as an <svg> element, readable without colour and on any background.

    A vertical line marks `layer`.
    """
    layers, (width, height), (left, right, top, bottom) = (
        max(len(curve.values) for curve in curves), (480, 230), (38, 466, 8, 198),
    )  # fmt: skip

    def x(at: int) -> float:
        return left + (right - left) * (at - 1) / max(1, layers - 1)

    def y(value: float) -> float:
        return bottom - value * (bottom - top)

    def path(places: Sequence[tuple[int, float]]) -> str:
        return "M" + "L".join(f"{x(at):.1f},{y(value):.2f}" for at, value in places)

    def text(at: float, where: float, words: object, anchor: str = "middle") -> str:
        place = f'x="{at:.1f}" y="{where:.1f}" text-anchor="{anchor}" font-size="12"'
        return f'<text {place} fill="{_GREY}">{words}</text>'

    parts = []
    for value in (0, 0.25, 0.5, 0.75, 1):
        parts.append(
            f'<line x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            f'stroke="{_GREY}" stroke-opacity="{0.7 if value == 0.5 else 0.25}"/>'
        )
        if value in (0, 0.5, 1):
            parts.append(text(left - 8, y(value) + 4, f"{value:g}", "end"))
    step = max(1, math.ceil(layers / 7 / 5) * 5) if layers > 7 else 1
    parts += [text(x(k), bottom + 15, k) for k in range(1, layers + 1) if k % step == 0 or k == 1]
    parts.append(text((left + right) / 2, height - 3, "layer"))
    for curve in curves:
        drawn = ""
        for stretch in _stretches(curve.values):
            drawn += path([(k, curve.values[k - 1]) for k in stretch])
            if curve.high is not None:
                drawn += "L" + path([(k, curve.high[k - 1]) for k in reversed(stretch)])[1:] + "Z"
        look = f'stroke="{curve.color}" stroke-dasharray="{curve.dash}" d="{drawn}"'
        if curve.high is not None:
            look += f' class="band" data-group="{curve.name}" fill="{curve.color}"'
            parts.append(f'<path {look} fill-opacity="0.17" stroke-opacity="0.55"/>')
        else:
            thick = 2.6 if curve.color == _INK else 1.9
            look += f' class="belief" data-pass="{curve.name}" fill="none"'
            parts.append(f'<path {look} stroke-width="{thick}"/>')
    parts.append(
        f'<line class="cursor" x1="{x(layer):.1f}" x2="{x(layer):.1f}" y1="{bottom}" y2="{top}" '
        f'stroke="{_INK}" stroke-opacity="0.45" stroke-dasharray="2 2"/>'
    )
    return (
        '<svg class="beliefs" role="img" aria-label="P(wrong) by layer" '
        f'viewBox="0 0 {width} {height}" width="100%" style="max-width:648px">'
        f"{''.join(parts)}</svg>"
    )


def _stretches(values: Sequence[float]) -> list[list[int]]:
    """The layers (from 1) without a gap between them."""
    parts: list[list[int]] = [[]]
    for layer, value in enumerate(values, start=1):
        if math.isfinite(value):
            parts[-1].append(layer)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def streamed(question: str, tokens: Sequence[str], wrong: Sequence[float]) -> str:
    """The panel while the answer is being written: its tokens, and P(wrong) after each."""
    return render("panel.html", question=question, it=None, live=False, tokens=tokens, wrong=wrong)


def message(text: str) -> str:
    """HTML of one line for a visitor."""
    return f'<p class="anchorscope box" role="status">{visible(text)}</p>'


def _cautions(result: Inspection) -> list[str]:
    """What to keep in mind about the pathway."""
    cautions = []
    if result.mode == "strict":
        cautions.append("The pathway comes from another probe than the one drawn below.")
    if result.pathway is not None and not math.isnan(kappa := result.pathway.agreement):
        cautions.append(f"Over the run two independent probes agree with κ = {kappa:.2f}.")
    if result.finding:
        cautions.append(f"The run's finding on {result.title}: {result.finding} ({result.why}).")
    scored = result.wrong.scored if result.wrong else None
    if scored is not None and scored.predicted_pathway:
        pathway, chance = scored.predicted_pathway, scored.predicted_pathway_probability
        cautions.append(
            f"From the clean state alone the detector predicts {pathway} ({chance:.0%})."
        )
    return cautions
