"""A tiny saved model, detectors trained on its answers, and the server process of both."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from anchorscope.config import Config
from anchorscope.datasets import load_questions
from anchorscope.detect.detector import Detector
from anchorscope.models import load_model
from anchorscope.pipeline.collect import collect
from anchorscope.records import Question
from anchorscope.serve.served import Served
from kit.tiny import tiny_lm, tiny_tokenizer

NAME, ASKED = "tiny", 72
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SUBJECTS = ("Oslo", "Kyoto", "Lima", "Cairo", "Quito", "Turin")


def questions(datasets: Sequence[str] = ("made",)) -> list[Question]:
    """Questions about distinct entities, from the datasets in turn."""
    return [
        Question(
            id=f"{datasets[i % len(datasets)]}:all:{i}",
            dataset=datasets[i % len(datasets)],
            text=f"Where is {SUBJECTS[i % 6]} {i}?",
            answers=("nowhere",),
            subjects=(f"{SUBJECTS[i % 6]} {i}",),
            entity=f"thing {i}",
        )
        for i in range(ASKED)
    ]


def make_served(folder: Path, *methods: str, datasets: Sequence[str] = ("made",)) -> Path:
    """Save the model to `tiny/`, and a detector of each method to a folder of that name."""
    tiny_lm("llama").save_pretrained(folder / NAME)
    tokenizer = copy.deepcopy(tiny_tokenizer())  # that one is shared by all tests
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / NAME)
    verdicts, asked = folder / "verdicts.jsonl", questions(datasets)
    rows = [{"id": q.id, "right": n // 2 % 2} for n, q in enumerate(asked)]
    verdicts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = Config(
        prompt="text", max_tokens=8, shots=0, verdicts=str(verdicts), device="cpu", dtype="float32",
        folds=3,
    )  # fmt: skip
    model = load_model(str(folder / NAME), device="cpu", dtype="float32")
    sets = [load_questions([q for q in asked if q.dataset == name]) for name in datasets]
    run = collect(model, sets, out=folder / "run", config=config)
    for method in methods:
        Detector.train(run, method=method, folds=3, resamples=100).save(folder / method)
    return folder


class Gated(Served):
    """A served model that waits behind a gate which a test opens, and notes what it is asked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reached, self.gate = threading.Event(), threading.Event()
        self.asked: list[str] = []

    def answer(self, asks, sends=None):
        self.asked += [ask.exchange.asked for ask in asks]
        self.reached.set()
        assert self.gate.wait(60)
        return super().answer(asks, sends)


@contextmanager
def server_process(*words: object, cwd: Path, **environment: str) -> Iterator[str]:
    """Run `anchorscope detect serve`; yield its address; require exit code 0 at SIGTERM."""
    command = [sys.executable, "-m", "anchorscope", "detect", "serve", *map(str, words)]
    process = subprocess.Popen(
        command, cwd=cwd, env=os.environ | environment, text=True, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://" in line, f"the server ended with {process.wait()}: {line}"
        yield line.split(" at ")[1].split(". ")[0]
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
