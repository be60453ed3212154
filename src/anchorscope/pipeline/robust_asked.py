"""Other choices that need the model: other exact tokens, the other prompt style, other wordings.

Another finder reads the very same answers. Style and wording ask the questions again, into
robust/<variant> in the run folder, which keeps answers and states as a run folder does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import passes_of
from anchorscope.errors import UserError
from anchorscope.models.prompts import has_chat
from anchorscope.pathways.parts import READ
from anchorscope.pipeline.ablate import read_variants, variants_of
from anchorscope.pipeline.prepare import Shard, cut_into_shards, style_of
from anchorscope.pipeline.prompts import Prompted, prompts_of
from anchorscope.pipeline.robust import Choice
from anchorscope.pipeline.shard import ask_and_read
from anchorscope.pipeline.stages import Run
from anchorscope.records import Question, QuestionSet, Sample, Shot, Span
from anchorscope.run_folder.store import Store
from anchorscope.spans.question import QuestionSpans

CAP = 1000  # questions of each set that are asked again: the first ones, whose order is random
_ASKING = (
    "what", "which", "who", "whose", "whom", "where", "when", "why", "how", "in", "on", "of", "is",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Words around a question; they hold nothing of what it asks about."""

    name: str
    before: str = ""
    after: str = ""

    def of(self, text: str, subjects: Sequence[str] = ()) -> str:
        """The question in these words, its subjects as they were."""
        first = text.split(maxsplit=1)[0] if text.strip() else ""
        named = any(subject and text.startswith(subject) for subject in subjects)
        if self.before and first.lower() in _ASKING and not named:
            text = text[0].lower() + text[1:]
        return f"{self.before}{text}{self.after}"


AS_ASKED = Wording(name="as asked")
WORDINGS = (
    Wording(name="could-you-tell-me", before="Could you tell me: "),
    Wording(name="i-would-like-to-know", before="I would like to know: "),
    Wording(name="please-tell-me", after=" Please tell me."),
)


def ask_otherwise(
    run: Run, lease: Lease, shards: Sequence[Shard], samples: Sequence[Sample]
) -> list[Choice]:
    """Every choice that the model is needed for, its states on disk."""
    choices = _other_finders(run, lease, shards, samples)
    style = style_of(run, lease).name
    other = "text" if style == "chat" else "chat"
    if other == "text" or has_chat(lease.model):
        choices += _asked(run, lease, shards, f"prompt={other}", AS_ASKED, other)
    for wording in WORDINGS:
        choices += _asked(run, lease, shards, f"wording={wording.name}", wording, style)
    return choices


def _other_finders(
    run: Run, lease: Lease, shards: Sequence[Shard], samples: Sequence[Sample]
) -> list[Choice]:
    """The same answers with the exact tokens of the other finders, by dataset."""
    spans = replace(run, config=replace(run.config, ablate=("spans",)))
    read_variants(spans, lease, shards)
    choices = []
    for variant in variants_of(spans.config):
        for dataset in run.datasets:
            own = [sample for sample in samples if sample.question.dataset == dataset]
            if {sample.finder for sample in own} != {variant.finder}:  # else it is the run's own
                choice = _choice(run, f"finder={variant.finder}", dataset, own)
                choices.append(replace(choice, knockout=variant.intervention.name))
    return choices


def _asked(
    run: Run, lease: Lease, shards: Sequence[Shard], variant: str, wording: Wording, style: str
) -> list[Choice]:
    """The questions asked again, by dataset; nothing where they cannot be asked so."""
    try:
        asked = _prompts_again(run, lease, shards, wording, style)
    except UserError as error:
        run.progress.note(f"{variant} is left out: {error}")
        return []
    counts = f"{sum(map(len, asked))} of {sum(map(len, shards))}"
    run.progress.note(f"{variant}: {counts} questions are asked again")
    # What tells the run apart tells this part of it apart too; the cap decides what is asked.
    identity = run.store.info["identity"] | {"asked": variant, "cap": CAP}
    folder = run.store.path / "robust" / variant
    nested = replace(run, store=Store.open(folder, identity))
    passes = [cut for cut in passes_of(run.config) if cut.name in READ]
    with run.stage("asked again"):
        samples = ask_and_read(nested, lease, asked, passes, name=variant)
    return [
        _choice(nested, variant, dataset, [s for s in samples if s.question.dataset == dataset])
        for dataset in run.datasets
    ]


def _choice(run: Run, variant: str, dataset: str, samples: Sequence[Sample]) -> Choice:
    return Choice(
        variant=variant,
        dataset=dataset,
        config=run.config,
        samples=samples,
        folder=run.store.path,
    )


def _prompts_again(
    run: Run, lease: Lease, shards: Sequence[Shard], wording: Wording, style: str
) -> list[Shard]:
    """The first questions of each set in other words or another style, in shards of their own."""
    again: list[Shard] = []
    for questions in run.sets:
        before = [p for shard in shards if shard.dataset == questions.name for p in shard.prompts]
        before = before[:CAP]
        # The spans move with the words in front: nobody looks for them again.
        spans = [_moved(p.spans, len(wording.before)) for p in before]
        reworded = _reworded(questions, before, wording)
        prompts = prompts_of(lease.model, reworded, spans, style=style, shots=run.config.shots)
        size = run.store.info["shard"]
        again += cut_into_shards(prompts, questions.name, size, first=len(again))
    return again


def _moved(marked: QuestionSpans, by: int) -> QuestionSpans:
    def moved(spans: Sequence[Span]) -> tuple[Span, ...]:
        return tuple(Span(start + by, stop + by) for start, stop in spans)

    more = moved(marked.property_spans)
    return replace(marked, spans=moved(marked.spans), property_spans=more)


def _reworded(questions: QuestionSet, prompts: Sequence[Prompted], wording: Wording) -> QuestionSet:
    """The set with its questions, and the worked examples in front of them, in other words."""

    def of(question: Question) -> Question:
        return replace(question, text=wording.of(question.text, question.subjects))

    shots = tuple(Shot(question=wording.of(s.question), answer=s.answer) for s in questions.shots)
    return replace(questions, questions=tuple(of(p.question) for p in prompts), shots=shots)
