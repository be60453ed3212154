"""Answers judged in a process of their own while a GPU reads on.

The judge is a quarter of a millisecond of Python for each answer, and Python is what the thread
that feeds a GPU is short of. Where the model is on a CPU the cores have enough to do, and the
judge sits here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from anchorscope.answers.judge import Said, judge_all
from anchorscope.parallel import OwnProcess
from anchorscope.pipeline.prompts import Prompted
from anchorscope.records import Answer, Verdict


class Judging:
    """The judge, for as long as the `with` block; `apart`: in a process of its own."""

    def __init__(self, *, apart: bool) -> None:
        self._process = OwnProcess() if apart else None

    def __enter__(self) -> Judging:
        (self._process or nullcontext()).__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        (self._process or nullcontext()).__exit__(*error)

    def begin(
        self, prompts: Sequence[Prompted], answers: Sequence[Answer]
    ) -> Callable[[], list[Verdict]]:
        """What gives the verdict on each answer, those that a file gives included."""
        asked: list[Verdict | Said] = [
            p.verdict or (answer.text, p.question.answers, p.question.text)
            for p, answer in zip(prompts, answers, strict=True)
        ]
        work = partial(judge_all, asked)
        begun = self._process.begin(work) if self._process else work
        return lambda: begun() or work()  # here, where the process is no more
