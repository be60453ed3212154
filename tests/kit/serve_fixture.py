"""A tiny model in a folder, a detector really trained on its answers, and the server of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anchorscope.app.serve import bind, opened, server
from anchorscope.config import Config
from anchorscope.detect.deployed.detector import Detector
from anchorscope.models import load_model
from anchorscope.pipeline.collect import collect
from anchorscope.records import Question
from anchorscope.serve.app import Limits, serve_app
from anchorscope.serve.served import Served
from kit.tiny import tiny_lm, tiny_tokenizer

NAME, ASKED = "tiny", 72
SUBJECTS = ("Oslo", "Kyoto", "Lima", "Cairo", "Quito", "Turin")


def questions() -> list[Question]:
    """Questions about as many things."""
    return [
        Question(
            id=f"made:all:{i}",
            dataset="made",
            text=f"Where is {SUBJECTS[i % 6]} {i}?",
            answers=("nowhere",),
            subjects=(f"{SUBJECTS[i % 6]} {i}",),
            entity=f"thing {i}",
        )
        for i in range(ASKED)
    ]


def make_served(folder: Path, *methods: str) -> Path:
    """The folder with the model in `tiny/` and a detector in a folder named after its method."""
    tiny_lm("llama").save_pretrained(folder / NAME)
    tiny_tokenizer().save_pretrained(folder / NAME)
    verdicts = folder / "verdicts.jsonl"
    rows = [{"id": q.id, "right": n % 2} for n, q in enumerate(questions())]
    verdicts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = Config(
        prompt="text", max_tokens=8, shots=0, verdicts=str(verdicts), device="cpu", dtype="float32",
        folds=3,
    )  # fmt: skip
    model = load_model(str(folder / NAME), device="cpu", dtype="float32")
    run = collect(model, questions(), out=folder / "run", config=config)
    for method in methods:
        Detector.train(run, method=method, folds=3, resamples=100).save(folder / method)
    return folder


@contextmanager
def serving(*words: object, cwd: Path, **environment: str) -> Iterator[str]:
    """The address that `anchorscope detect serve ...` prints, while its process runs."""
    command = [sys.executable, "-m", "anchorscope", "detect", "serve", *map(str, words)]
    process = subprocess.Popen(
        command, cwd=cwd, env=os.environ | environment, text=True, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "http://" in said, f"the server ended with {process.wait()}: {said}"
        yield said.split(" at ")[1].split(". ")[0]
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def served_here(served: Served, **limits: int) -> Iterator[str]:
    """The address of a server in a thread of this process."""
    listening = bind("127.0.0.1", 0)
    host, port = listening.getsockname()
    running = server(serve_app(served, limits=Limits(**limits), hosts=[f"{host}:{port}"]))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    yield opened(listening).rstrip("/")
    running.should_exit = True
    thread.join(timeout=10)
    listening.close()
