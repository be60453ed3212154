"""Measure the processor seconds that a detector and streaming add to a served answer.

    python benchmarks/serve.py [--model bundled] [--requests 64] [--clients 16] [--repeats 3]

Two servers run in this process on loopback with the same model, prompt and queue; the second writes
the same answers with the same engine and does not score them. Whole answers of both and streamed
ones of the first take turns. Processor seconds are measured beside wall seconds, since other
processes on the machine change them less. The clients run in the same process and are included.
The detector is a probe with beliefs at every layer and random weights, which do not change the cost
of a score.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx2
import numpy as np

from anchorscope.datasets import load_questions
from anchorscope.detect.calibration import Platt
from anchorscope.detect.detector import Detector
from anchorscope.detect.kinds import METHODS
from anchorscope.detect.prompts import Example
from anchorscope.detect.scored import Scored
from anchorscope.detect.side_probes import Beliefs
from anchorscope.engine.lease import Lease
from anchorscope.models import Model, load_model
from anchorscope.models.prompts import make_prompt
from anchorscope.run_folder.identity import weights_hash
from anchorscope.serve.app import Limits, serve_app
from anchorscope.serve.protocol import Ask, Written
from anchorscope.serve.served import Send, Served
from anchorscope.web.server import Server, bind, hosts_of, start_listening

MAX_TOKENS = 16


class Unscored(Served):
    """A server of the same answers without scores."""

    def answer(
        self, asks: Sequence[Ask], sends: Sequence[Send | None] | None = None
    ) -> list[Written]:
        bound, texts = self.detector.bind(self.model), [ask.exchange.asked for ask in asks]
        prompts = [bound.prompt(text).ids for text in texts]
        with Lease(self.model) as lease:
            done = bound.answerer.answer(lease, bound.prefix(lease), texts, prompts)
        return [
            _bare(text, answer.text, len(prompt), answer.token_ids)
            for text, answer, prompt in zip(texts, done.answers, prompts, strict=True)
        ]


def _bare(question: str, answer: str, prompt: int, ids: Sequence[int]) -> Written:
    scored = Scored(
        question=question, answer=answer, answer_entity="", probability=math.nan,
        score=math.nan, outcome="no answer",
    )  # fmt: skip
    return Written(
        scored=scored, prompt_tokens=prompt, tokens=("",) * len(ids),
        log_probs=(0.0,) * len(ids), finish="stop",
    )  # fmt: skip


def random_detector(model: Model, questions: Sequence[str], shots: Sequence) -> Detector:
    """Make a detector with random weights: a probe at the middle layer, beliefs at every layer."""
    rng, width = np.random.default_rng(0), model.parts.width
    method = METHODS["probe"]().restore(
        {
            "coef": rng.standard_normal((1, width)).astype(np.float32),
            "intercept": np.zeros(1),
            "layers": np.array([model.blocks // 2]),
            "C": np.array(1.0),
        }
    )
    method.calibration_ = Platt(0.01, 0.0)
    coef = rng.standard_normal((model.blocks, width)).astype(np.float32) / width
    dtype = str(model.dtype).removeprefix("torch.")
    return Detector(
        name="probe",
        method=method,
        model={
            "name": model.name, "source": model.source, "weights": weights_hash(model.lm),
            "blocks": model.blocks, "width": width, "dtype": dtype, "revision": None,
        },
        prompt={"style": "text", "max_tokens": MAX_TOKENS, "finder": "auto", "dataset": "atlas"},
        examples=tuple(
            Example(question=q, prompt_ids=make_prompt(model, q, shots=shots, style="text").ids)
            for q in questions[:8]
        ),
        threshold=0.5,
        calibrated_on="nothing",
        trained_on={"answers": 0, "datasets": ["atlas"]},
        evaluation={},
        licence={},
        beliefs=Beliefs(coef=coef, intercept=np.zeros(model.blocks)),
    )  # fmt: skip


@contextmanager
def running(served: Served) -> Iterator[str]:
    """Run a server in a thread until the block ends; yield its address."""
    bound = bind("127.0.0.1", 0)
    server = Server(serve_app(served, limits=Limits(queue=1024), hosts=hosts_of(bound)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"{start_listening(bound)}v1/chat/completions"
    server.should_exit = True
    thread.join(timeout=10)


def spent(
    address: str, name: str, questions: Sequence[str], clients: int, *, stream: bool
) -> np.ndarray:
    """Measure the seconds per answer [wall, processor] with `clients` concurrent requests."""

    def ask(question: str) -> None:
        messages = [{"role": "user", "content": question}]
        body = {"model": name, "messages": messages, "stream": stream}
        client.post(address, json=body, timeout=600).raise_for_status()

    limits = httpx2.Limits(max_connections=clients)
    with httpx2.Client(limits=limits) as client, ThreadPoolExecutor(clients) as pool:
        begun = np.array([time.monotonic(), time.process_time()])
        list(pool.map(ask, questions))
        ended = np.array([time.monotonic(), time.process_time()])
    return (ended - begun) / len(questions)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    model = load_model(given.model)
    data = load_questions("atlas", limit=given.requests)
    texts = [question.text for question in data.questions]
    detector = random_detector(model, texts, data.shots)
    scored, unscored = Served(detector, model), Unscored(detector, model)
    scored.warm()
    unscored.warm()
    seconds: dict[str, list[np.ndarray]] = {"without": [], "with": [], "streamed": []}
    with running(scored) as with_it, running(unscored) as without_it:
        for turn in range(given.repeats):
            for word in list(seconds)[:: 1 if turn % 2 else -1]:
                address = without_it if word == "without" else with_it
                seconds[word].append(
                    spent(address, model.name, texts, given.clients, stream=word == "streamed")
                )
    print(
        f"{model.name}, {given.requests} requests by {given.clients} clients, median of "
        f"{given.repeats}; load of the machine {os.getloadavg()[0]:.1f}"
    )
    base = statistics.median(s[1] for s in seconds["without"])
    for word, rows in seconds.items():
        wall, processor = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{word:>8}: {1 / wall:.2f} answers/s, {processor:.3f} processor seconds an answer "
            f"({processor / base:.2f} of those without a detector)"
        )


if __name__ == "__main__":
    main()
