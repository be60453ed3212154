"""The one model behind the page: lent to one visitor at a time, the others wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

from anchorscope.detect.deployed.detector import Detector
from anchorscope.inspection.asking import Asked
from anchorscope.inspection.choices import Choices, cut_positions
from anchorscope.inspection.inspection import Inspection
from anchorscope.inspection.inspector import Inspector
from anchorscope.models import Model
from anchorscope.records import Mode
from anchorscope.run_folder.view import RunView
from anchorscope.show.explore.token_texts import piece


@dataclass(frozen=True)
class Growth:
    """An answer so far: its tokens, and P(wrong) after each."""

    tokens: tuple[str, ...]
    wrong: tuple[float, ...]


@dataclass
class Desk:
    """A model, a run and a detector; nothing of any visitor."""

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
        """Opens every dataset and asks once, so that no visitor waits for it."""
        for dataset in self.run.datasets:
            with self._lock:
                inspector = self.inspector(dataset)
                inspector.read(inspector.ask(inspector.prompts.samples[0].question.text))

    def stream(self, question: str, dataset: str) -> Iterator[Growth | Asked]:
        """The answer as it grows, then the whole of it.

        The model works in a thread of its own: a visitor who leaves does not keep it.
        """
        heard: Queue[Any] = Queue()

        def work() -> None:
            try:
                with self._lock:
                    inspector = self.inspector(dataset)
                    heard.put(inspector.ask(question, lambda *token: heard.put(token)))
            except Exception as error:
                heard.put(error)

        threading.Thread(target=work, daemon=True).start()
        tokens, wrong = [], []
        while not isinstance(item := heard.get(), Asked):
            if isinstance(item, Exception):
                raise item
            token, states = item
            tokens.append(piece(self.model.tokenizer.backend_tokenizer, token))
            inspector = self.inspector(dataset)
            wrong += inspector.growing(states[None], fold=inspector.fold(question))
            yield Growth(tuple(tokens), tuple(wrong))
        yield item

    def read(self, asked: Asked, choices: Choices, mode: Mode) -> Inspection:
        """What is said of an answer under these choices."""
        with self._lock:
            inspector = self.inspector(asked.sample.question.dataset)
            return inspector.read(asked, choices, mode=mode)

    def cut(self, asked: Asked, chosen: tuple[int, ...] | None) -> tuple[int, ...]:
        """The tokens that are cut: the chosen ones, or the run's own choice."""
        config = self.inspector(asked.sample.question.dataset).config
        return cut_positions(Choices(cut=chosen), config, asked.sample)

    def questions(self, dataset: str, most: int = 400) -> list[str]:
        """The run's own questions, to pick from."""
        texts = (s.question.text for s in self.inspector(dataset).prompts.samples)
        return list(dict.fromkeys(texts))[:most]
