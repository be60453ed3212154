"""Answers judged in a process of its own while a GPU reads on.

A verdict is a quarter of a millisecond of Python for each answer, and Python is what the thread
that feeds a GPU is short of. Where the model is on a CPU the cores have enough to do, and the work
is done here. What the process is given is of modules without torch: it would import it first, for
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from anchorscope.answers.judge import Said, judge_all
from anchorscope.parallel import OwnProcess
from anchorscope.pipeline.prompts import Prompted
from anchorscope.records import Answer, Verdict

Result = TypeVar("Result")


class Aside:
    """Who does it, for as long as the `with` block; `apart`: a process of its own."""

    def __init__(self, *, apart: bool) -> None:
        self._process = OwnProcess() if apart else None

    def __enter__(self) -> Aside:
        (self._process or nullcontext()).__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        (self._process or nullcontext()).__exit__(*error)

    def judge(
        self, prompts: Sequence[Prompted], answers: Sequence[Answer]
    ) -> Callable[[], list[Verdict]]:
        """What gives the verdict on each answer, those that a file gives included."""
        asked: list[Verdict | Said] = [
            p.verdict or (answer.text, p.question.answers, p.question.text)
            for p, answer in zip(prompts, answers, strict=True)
        ]
        return self._begun(partial(judge_all, asked))

    def _begun(self, work: Callable[[], Result]) -> Callable[[], Result]:
        begun = self._process.begin(work) if self._process else work
        return lambda: begun() or work()  # here, where the process is no more
