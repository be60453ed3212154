"""The page of `anchorscope app`: ask a model live, and inspect its answers token by token.

The server stores no visitors: a step holds all that a panel needs, and the answers to the newest
questions are cached for all.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel, Field

from anchorscope.config import Config
from anchorscope.detect.detector import Detector
from anchorscope.errors import UserError
from anchorscope.inspection.inspect import Inspector, RecordedAnswer, with_subject
from anchorscope.inspection.result import Choices, heads_in, message, panel, streamed
from anchorscope.models import Model
from anchorscope.pipeline.run import run
from anchorscope.progress import Progress
from anchorscope.records import Mode
from anchorscope.run_folder.identity import weights_hash
from anchorscope.run_folder.remote import cache_folder
from anchorscope.run_folder.view import RunView
from anchorscope.show.html import bundle, page_style, render, source_hash, web_file
from anchorscope.show.token_texts import piece
from anchorscope.web.server import Access, ApiError, Guard, new_app

log = logging.getLogger(__name__)
# Enough for probes that tell right from wrong answers, and small enough for a first start.
SMALL = Config(data=("atlas",), limit=120, folds=3, fold_seeds=1, resamples=100, evidence=())
USER = "anchorscope"
QUEUE = 16  # steps that may wait; further ones are refused
KEPT = 64  # answers that are cached
OFFERED = 400  # of the run's own questions


def kept_run(model: Model, *, progress: Progress | None = None) -> RunView:
    """A small run of this model in the cache folder, made at the first start."""
    dtype = str(model.dtype).removeprefix("torch.")
    folder = cache_folder() / "app" / f"{weights_hash(model.lm)[:16]}-{dtype}"
    return run(model, None, out=folder, config=SMALL, progress=progress)


class Step(BaseModel):
    """The request of a panel: a question, and the changes under which its answer is read."""

    question: str
    dataset: str
    about: str | None = None  # the question is asked about this subject instead
    cut: tuple[int, ...] | None = None  # positions of tokens; None: the run's own choice
    neutral: bool = True
    answer_only: bool = True
    patch: bool = False  # `subject` put into the question, the same answer after it
    subject: str = Field("", max_length=200)
    window: int = 0  # 0: none
    heads: str = Field("", max_length=400)
    mode: Mode = "strict"

    def choices(self) -> Choices:
        """The chosen changes; a UserError if the page's controls are invalid."""
        if self.patch and not self.subject.strip():
            raise UserError(
                "Type another subject to put into the question, or switch that change off."
            )
        return Choices(
            cut=self.cut,
            neutral=self.neutral,
            answer_only=self.answer_only,
            subject=self.subject if self.patch else "",
            window=self.window or None,
            heads=heads_in(self.heads),
        )


@dataclass
class AppState:
    """The model, run and detector that all visitors share, one at a time."""

    model: Model
    run: RunView
    detector: Detector | None = None
    _inspectors: dict[str, Inspector] = field(default_factory=dict, repr=False)
    _answers: dict[tuple[str, str], RecordedAnswer] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _room: threading.Semaphore = field(
        default_factory=lambda: threading.Semaphore(QUEUE), repr=False
    )

    def inspector(self, dataset: str) -> Inspector:
        """The inspector of a dataset, opened once."""
        if dataset not in self._inspectors:
            self._inspectors[dataset] = Inspector.open(
                self.model, self.run, dataset=dataset, detector=self.detector
            )
        return self._inspectors[dataset]

    def warm(self) -> None:
        """Open every dataset and answer one question of each, so that no visitor waits for it."""
        for dataset in self.run.datasets:
            inspector = self.inspector(dataset)
            inspector.read(inspector.ask(inspector.samples[0].question.text))

    def stream(self, step: Step) -> Iterator[str]:
        """The HTML of a panel as the answer grows, and the whole panel last.

        The model works in a thread of its own, so that a visitor who leaves does not block it.
        """
        if not self._room.acquire(blocking=False):
            raise ApiError(503, "Many are asking at once. Try again in a moment.")
        drawn: Queue[str | None] = Queue()

        def work() -> None:
            try:
                with self._lock:
                    drawn.put(self._panel(step, drawn.put))
            except Exception as error:
                drawn.put(message(_friendly(error)))
            finally:
                self._room.release()
                drawn.put(None)

        threading.Thread(target=work, daemon=True).start()
        return iter(drawn.get, None)

    def _panel(self, step: Step, show: Callable[[str], Any]) -> str:
        """Render a step's panel; an error in its changes is shown above the panel without them."""
        question = step.question
        if step.about is not None:
            question = with_subject(self._answer(step.dataset, question).sample, step.about)
        answer, inspector = self._answer(step.dataset, question, show), self.inspector(step.dataset)
        try:
            return panel(inspector.read(answer, step.choices(), mode=step.mode), live=True)
        except UserError as error:
            plain = inspector.read(answer, Choices(cut=step.cut), mode=step.mode)
            return message(str(error)) + panel(plain, live=True)

    def _answer(
        self, dataset: str, question: str, show: Callable[[str], Any] = lambda html: None
    ) -> RecordedAnswer:
        """The model's answer, cached; `show` gets the panel after each of its tokens."""
        key, inspector = (dataset, question.strip()), self.inspector(dataset)
        if key not in self._answers:
            texts: list[str] = []
            wrong: list[float] = []

            def grow(token: int, states: Any) -> None:
                texts.append(piece(self.model.tokenizer.backend_tokenizer, token))
                wrong.extend(inspector.growth(states[None], question))
                show(streamed(question, texts, wrong))

            self._answers[key] = inspector.ask(question, grow)
        self._answers[key] = answer = self._answers.pop(key)  # the newest is the last
        if len(self._answers) > KEPT:
            del self._answers[next(iter(self._answers))]
        return answer


def _friendly(error: Exception) -> str:
    """The message of an error for a visitor; an internal error is logged with its traceback."""
    if isinstance(error, UserError):
        return str(error)
    log.error("a question could not be answered", exc_info=error)
    return "That went wrong on our side; the terminal says how. Try another question."


def guarded_app(state: AppState, *, hosts: Collection[str], password: str | None = None) -> Guard:
    """The page as an ASGI app that accepts only these hosts, and the password if there is one."""
    app, script = new_app(), bundle("app")
    whole = page(state, script)
    headers = {
        "cache-control": "no-store",
        "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src {source_hash(script)}; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'",
    }

    @app.api_route("/", methods=["GET", "HEAD"])
    def index() -> HTMLResponse:
        return HTMLResponse(whole, headers=headers)

    @app.post("/step", response_model=None)
    def take(step: Step) -> StreamingResponse:
        lines = (json.dumps(html) + "\n" for html in state.stream(step))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    coded = base64.b64encode(f"{USER}:{password}".encode()).decode()
    secret = None if password is None else f"Basic {coded}"
    return Guard(app, Access(hosts=hosts, secret=secret, browser=True))


def page(state: AppState, script: str) -> str:
    """Render the page of a model and a run: controls and two panels."""
    datasets = {name: state.inspector(name) for name in state.run.datasets}
    questions = {
        name: list(dict.fromkeys(s.question.text for s in own.samples))[:OFFERED]
        for name, own in datasets.items()
    }
    style = f"{page_style('app.css')} .anchorscope {{ {web_file('panel.css')} }}"
    return render(
        "app.html",
        title="anchorscope app",
        kind="app",
        policy=None,  # it is in a header
        style=style,
        script=script,
        run=state.run,
        judge="no detector" if state.detector is None else f"detector {state.detector.name}",
        readings=[own.readings for own in datasets.values()],
        questions=questions,
        blocks=state.model.blocks,
    )
