"""The model behind the page, and what one visitor sees after each of their steps."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from queue import Queue
from typing import Any, Literal

from anchorscope.config import Config
from anchorscope.detect.detector import Detector
from anchorscope.errors import UserError
from anchorscope.inspection.choices import Choices, cut_positions, heads_in
from anchorscope.inspection.inspect import Inspector
from anchorscope.inspection.question import RecordedAnswer, with_subject
from anchorscope.inspection.result import Inspection, message, panel, streamed
from anchorscope.models import Model
from anchorscope.pipeline.run import run
from anchorscope.progress import Progress
from anchorscope.records import Mode
from anchorscope.run_folder.identity import weights_hash
from anchorscope.run_folder.remote import cache_folder
from anchorscope.run_folder.view import RunView
from anchorscope.show.explore.token_texts import piece

log = logging.getLogger(__name__)
# Enough for probes that tell right from wrong answers, and small enough for a first start.
SMALL = Config(data=("atlas",), limit=120, folds=3, fold_seeds=1, resamples=100, evidence=())
Side = Literal[0, 1]
NEUTRAL, ALONE, PATCH = "neutral tokens", "answer without question", "other subject, same answer"
CHANGES = (NEUTRAL, ALONE, PATCH)
WELCOME = "Ask a question, or pick one of the run's. The answer is then taken apart here."
BESIDE = (
    "The same question about another subject appears here: type a subject and press the button."
)


def kept_run(model: Model, *, progress: Progress | None = None) -> RunView:
    """A small run of this model in the cache folder, made at the first start."""
    dtype = str(model.dtype).removeprefix("torch.")
    folder = cache_folder() / "app" / f"{weights_hash(model.lm)[:16]}-{dtype}"
    return run(model, None, out=folder, config=SMALL, progress=progress)


@dataclass(frozen=True)
class Growth:
    """An answer so far: its tokens, and P(wrong) after each."""

    tokens: tuple[str, ...]
    wrong: tuple[float, ...]


@dataclass
class AppState:
    """The model, run and detector that all visitors share, one at a time."""

    model: Model
    run: RunView
    detector: Detector | None = None
    _inspectors: dict[str, Inspector] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def inspector(self, dataset: str) -> Inspector:
        """The inspector of a dataset, opened once."""
        if dataset not in self._inspectors:
            self._inspectors[dataset] = Inspector.open(
                self.model, self.run, dataset=dataset, detector=self.detector
            )
        return self._inspectors[dataset]

    def warm(self) -> None:
        """Open every dataset and ask once, so that no visitor waits for it."""
        for dataset in self.run.datasets:
            with self._lock:
                inspector = self.inspector(dataset)
                inspector.read(inspector.ask(inspector.prompts.samples[0].question.text))

    def stream(self, question: str, dataset: str) -> Iterator[Growth | RecordedAnswer]:
        """The answer as it grows, then the whole of it.

        The model works in a thread of its own, so that a visitor who leaves does not block it.
        """
        events: Queue[Any] = Queue()

        def work() -> None:
            try:
                with self._lock:
                    inspector = self.inspector(dataset)
                    events.put(inspector.ask(question, lambda *token: events.put(token)))
            except Exception as error:
                events.put(error)

        threading.Thread(target=work, daemon=True).start()
        tokens, wrong = [], []
        while not isinstance(item := events.get(), RecordedAnswer):
            if isinstance(item, Exception):
                raise item
            token, states = item
            tokens.append(piece(self.model.tokenizer.backend_tokenizer, token))
            inspector = self.inspector(dataset)
            wrong += inspector.growth(states[None], question)
            yield Growth(tuple(tokens), tuple(wrong))
        yield item

    def read(self, exchange: RecordedAnswer, choices: Choices, mode: Mode) -> Inspection:
        """What the probes read in an answer under these choices."""
        with self._lock:
            inspector = self.inspector(exchange.sample.question.dataset)
            return inspector.read(exchange, choices, mode=mode)

    def cut(self, exchange: RecordedAnswer, chosen: tuple[int, ...] | None) -> tuple[int, ...]:
        """The tokens that are cut: the chosen ones, or the run's own choice."""
        config = self.inspector(exchange.sample.question.dataset).config
        return cut_positions(Choices(cut=chosen), config, exchange.sample)

    def questions(self, dataset: str, most: int = 400) -> list[str]:
        """The run's own questions, to pick from."""
        texts = (s.question.text for s in self.inspector(dataset).prompts.samples)
        return list(dict.fromkeys(texts))[:most]


@dataclass(frozen=True)
class Switches:
    """The values of the page's controls."""

    changes: tuple[str, ...] = (NEUTRAL, ALONE)
    subject: str = ""
    window: int = 0  # 0: none
    heads: str = ""
    mode: Mode = "strict"


@dataclass(frozen=True)
class Visit:
    """The one or two questions of a visitor, and the tokens they chose to cut in each."""

    exchanges: tuple[RecordedAnswer | None, RecordedAnswer | None] = (None, None)
    cut: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None)
    panels: tuple[str, str] = (message(WELCOME), message(BESIDE))  # their HTML

    def with_side(self, side: Side, **values: Any) -> Visit:
        """The visit with one side's values replaced."""
        pairs = {name: list(getattr(self, name)) for name in values}
        for name, value in values.items():
            pairs[name][side] = value
        return replace(self, **{name: tuple(pair) for name, pair in pairs.items()})


def ask(
    state: AppState,
    visit: Visit,
    question: str,
    dataset: str,
    switches: Switches,
    *,
    side: Side = 0,
) -> Iterator[Visit]:
    """The visit as the answer grows, and with the answer taken apart at the end."""
    try:
        for step in state.stream(question, dataset):
            if isinstance(step, Growth):
                yield visit.with_side(side, panels=streamed(question, step.tokens, step.wrong))
            else:
                visit = visit.with_side(side, exchanges=step, cut=None)
        if side == 0:
            visit = visit.with_side(1, exchanges=None, cut=None, panels=message(BESIDE))
        yield _read_side(state, visit, switches, side)
    except Exception as error:
        yield visit.with_side(side, exchanges=None, panels=message(friendly(error)))


def ask_beside(state: AppState, visit: Visit, switches: Switches) -> Iterator[Visit]:
    """The same question about another subject, on the right."""
    first = visit.exchanges[0]
    try:
        if first is None:
            raise UserError("Ask a question on the left first.")
        text = with_subject(first.sample, switches.subject)
    except UserError as error:
        yield visit.with_side(1, exchanges=None, panels=message(str(error)))
        return
    yield from ask(state, visit, text, first.sample.question.dataset, switches, side=1)


def toggle(state: AppState, visit: Visit, token: Any, switches: Switches, side: Side) -> Visit:
    """The visit with one token cut that was kept, or kept that was cut."""
    exchange = visit.exchanges[side]
    if exchange is None or not isinstance(token, int | float):
        return visit
    chosen = set(state.cut(exchange, visit.cut[side]))
    return _read_side(
        state, visit.with_side(side, cut=tuple(sorted(chosen ^ {int(token)}))), switches, side
    )


def restore(state: AppState, visit: Visit, switches: Switches) -> Visit:
    """The visit with the run's own tokens cut again, on both sides."""
    return redraw(state, replace(visit, cut=(None, None)), switches)


def redraw(state: AppState, visit: Visit, switches: Switches) -> Visit:
    """Both sides read again, after a switch was turned."""
    for side in (0, 1):
        if visit.exchanges[side] is not None:
            visit = _read_side(state, visit, switches, side)
    return visit


def _read_side(state: AppState, visit: Visit, switches: Switches, side: Side) -> Visit:
    """The visit with one side read under the switches; a mistake is shown above the panel."""
    exchange = visit.exchanges[side]
    if exchange is None:
        return visit
    try:
        choices, warning = _choices(switches, visit.cut[side], side), ""
        drawn_panel = panel(state.read(exchange, choices, switches.mode), live=True)
    except UserError as error:
        plain = Choices(cut=visit.cut[side])
        warning = message(str(error))
        drawn_panel = panel(state.read(exchange, plain, switches.mode), live=True)
    return visit.with_side(side, panels=warning + drawn_panel)


def _choices(switches: Switches, cut: tuple[int, ...] | None, side: Side) -> Choices:
    # The other subject is on the right already: there is no third one to patch in.
    patched = PATCH in switches.changes and side == 0
    if patched and not switches.subject.strip():
        raise UserError("Type another subject to put into the question, or switch that change off.")
    return Choices(
        cut=cut,
        neutral=NEUTRAL in switches.changes,
        answer_only=ALONE in switches.changes,
        subject=switches.subject if patched else "",
        window=switches.window or None,
        heads=heads_in(switches.heads),
    )


def friendly(error: Exception) -> str:
    """One line for a visitor; what is not their mistake is logged with its traceback."""
    if isinstance(error, UserError):
        return str(error)
    log.error("a question could not be answered", exc_info=error)
    return "That went wrong on our side; the terminal says how. Try another question."
