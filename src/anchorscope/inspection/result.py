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
from anchorscope.notebook import Band, Line, belief_chart, line_sample, visible
from anchorscope.records import Mode
from anchorscope.show.curves import INTERVENTIONS
from anchorscope.show.explore.token_texts import piece
from anchorscope.show.html import render, web_file

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
        return belief_chart(self._lines(), self._run_bands(), layer=self.layer)

    def _repr_html_(self) -> str:
        """The panel with its own style: a notebook has none."""
        dark = (
            f"@media (prefers-color-scheme: dark) {{ .anchorscope {{ {web_file('dark.css')} }} }}"
        )
        return f"<div><style>{web_file('panel.css')}{dark}</style>{panel(self)}</div>"

    def _lines(self) -> list[Line]:
        """P(wrong) by layer of every pass, the clean one first."""
        return [
            Line(name=name, label=self._label(name), values=values, color=color, dash=dash)
            for name, values in self.beliefs.items()
            for color, dash in [_STYLE[name]]
        ]

    def _run_bands(self) -> list[Band]:
        """The middle half of the run's Q and A under the knockout."""
        return [
            Band(
                name=name,
                label=f"{name} of the run, its own subjects cut",
                low=[low for low, _ in values],
                high=[high for _, high in values],
                color=self.colors[name],
            )
            for name, values in self.bands.items()
        ]

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
    lines, bands = result._lines(), result._run_bands()
    return render(
        "panel.html",
        question=result.question,
        it=result,
        live=live,
        tokens=[token.text for token in result.tokens if token.answer],
        cautions=" ".join(_cautions(result)),
        lines=[(line, line_sample(line)) for line in lines],
        bands=bands,
        chart=result.chart() if lines else "",
    )


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
