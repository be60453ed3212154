"""Inspect AI scorer that adds a detector's probabilities to the log of an evaluation.

It needs the package inspect_ai, which `pip install "anchorscope[inspect]"` brings.
"""

from __future__ import annotations

from dataclasses import asdict
from threading import Lock

import anyio
from inspect_ai.scorer import (  # pyright: ignore[reportMissingImports]
    Score,
    Scorer,
    Target,
    mean,
    scorer,
    stderr,
)
from inspect_ai.solver import TaskState  # pyright: ignore[reportMissingImports]

from anchorscope.detect.detector import Detector
from anchorscope.detect.prompts import Exchange
from anchorscope.detect.rows import plain
from anchorscope.models import load_model


@scorer(metrics=[mean(), stderr()])
def wrong_answer_probability(detector: str, model: str, dataset: str | None = None) -> Scorer:
    """Score each answer with the probability that it is wrong; NaN (unscored) if it has none.

    `detector` is a folder or hub repository, `model` the model that it was made for, and `dataset`
    the training dataset whose prompt is used for single questions.
    """
    loaded, lock = Detector.load(detector), Lock()
    lm = load_model(model, dtype=loaded.model["dtype"])

    async def score(state: TaskState, target: Target) -> Score:
        turns = [{"role": turn.role, "content": turn.text} for turn in state.messages]
        while turns and turns[-1]["role"] == "assistant":
            turns.pop()
        exchange = Exchange(messages=tuple(turns), answer=state.output.completion)

        def read():
            with lock:
                return loaded.score_answers(lm, [exchange], dataset=dataset)[0]

        scored = await anyio.to_thread.run_sync(read)
        return Score(
            value=scored.probability,
            answer=scored.answer_entity,
            explanation=f"{scored.outcome}{': ' if scored.reason else ''}{scored.reason}",
            metadata=plain(asdict(scored)),
        )

    return score
