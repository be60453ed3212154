"""What a run costs before it starts: passes, tokens, FLOPs, bytes, seconds; every constant here.

The floor is two operations for each weight of the blocks and each token, and the head where a
token is chosen. The rest is what was measured around it; `docs/scale.md` says where and how far
the forecast was off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anchorscope.config import Config
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.passes import (
    ANSWER_ONLY,
    CAUGHT,
    CONTENT,
    KNOCKOUT,
    NEUTRAL,
    QUESTION,
    RETEST,
    RETEST_KNOCKOUT,
    RETESTED,
    passes_of,
)
from anchorscope.evidence.pieces import passes_of_pieces
from anchorscope.pipeline.study.hardware import Hardware, reached
from anchorscope.pipeline.study.sizes import Size
from anchorscope.pipeline.study.tokens import TokenCount
from anchorscope.run_folder.disk_space import disk_bytes, state_bytes

# Tokens. SmolLM2-135M, prompts as text, 64 questions of PopQA, TriviaQA, HotpotQA, NQ, atlas.
ANSWER = 3.3  # of an answer
_LENGTHS = {  # of a row: a share of question + answer, and tokens beside the answer
    KNOCKOUT.name: (0.65, 0), NEUTRAL.name: (0.81, 0), CONTENT.name: (0.65, 0),
    QUESTION.name: (0, 3), ANSWER_ONLY.name: (0, 1), RETEST.name: (0, 1),
    RETEST_KNOCKOUT.name: (1.65, 0),  # and the question itself, behind the other prompt
}  # fmt: skip
# Seconds.
LOAD = 1.0e9  # bytes/s from disk into the device; assumed
# To prove a model understood and measure its bounds: a constant, and bytes/s of its weights.
CHECKS, CHECKED = 7.0, 8.0e9
PYTHON = 2e-3  # s a question: prompt, spans, judge
STORE = 0.7e9  # bytes/s that are written, read again and hashed
# Core-seconds of the analysis of one layer of one dataset: a constant, a question, a question and
# a unit of width. The constant and the width come from 300 questions of four datasets, 16 to 64
# layers, width 2,048 to 5,120; the question from up to 15,000 of them (docs/scale.md).
LAYER, LAYER_QUESTION, LAYER_WIDTH = 1.3, 0.9e-3, 1.0e-6
REPORT = 5.0  # s a run: figures and report
MAX_CORES = 16  # processes of the analysis on one machine
SHARD = {"cpu": 64}  # questions; 1,024 on a GPU
_ROOM = 1.15  # of a device's memory that weights need at least, with a little for a pass


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What one run is expected to cost."""

    questions: int
    passes: int  # rows that go through the model beside the answers
    tokens: float  # as run.json counts them
    flops: float
    weights: float  # bytes
    disk: float  # bytes of the run folder
    devices: int  # that one copy of the model needs
    gpus: int  # that are held
    seconds: Mapping[str, float]  # by stage

    @property
    def hours(self) -> float:
        return sum(self.seconds.values()) / 3600

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.hours


def estimate(
    config: Config,
    sets: Sequence[TokenCount],
    on: Hardware,
    *,
    size: Size,
    answer: float | None = None,
    analysis_cores: int | None = None,
    from_disk: bool = True,
) -> Forecast:
    """The forecast of one run of a model of this size on these questions.

    `answer` is the mean length of an answer in tokens. The analysis runs on one machine, with up to
    16 of its cores, unless `analysis_cores` are given. `from_disk`: whether weights are loaded.
    """
    answer = min(config.max_tokens, ANSWER) if answer is None else answer
    cuts = (*passes_of(config), *passes_of_pieces(config))
    rows = [row for cut in cuts if not cut.retest for row in _rows(cut)]
    again = [row for cut in cuts if cut.retest for row in _rows(cut)]
    questions = sum(of.questions for of in sets)
    retested = sum(min(RETESTED, of.questions) for of in sets)
    tokens = sum(
        of.prefix
        + of.questions * (of.question + answer + _tokens(of.question, answer, rows))
        + min(RETESTED, of.questions) * _tokens(of.question, answer, again)
        for of in sets
    )
    # Attention mass, for the neutral control, takes the answer once more and is no pass of its own.
    through = tokens + questions * (answer + 1)
    flops = 2 * size.block_weights * through + 2 * size.head_weights * questions * (answer + 1)
    shape = (questions, size.blocks, size.width, len(CAUGHT) + len(cuts))
    states = state_bytes(*shape)
    devices = math.ceil(size.bytes(config.dtype) * _ROOM / on.memory)
    seconds = {
        "model": _ready(size.bytes(config.dtype), on, from_disk=from_disk),
        "answers and states": _forward(config, sets, on, devices, flops, states, size),
        "analysis": _analysis(sets, size, analysis_cores, on),
        "report": REPORT,
    }
    return Forecast(
        questions=questions,
        passes=questions * len(rows) + retested * len(again),
        tokens=tokens,
        flops=flops,
        weights=size.bytes(config.dtype),
        disk=disk_bytes(*shape),
        devices=devices,
        gpus=max(on.gpus, devices),
        seconds=seconds,
    )


def _ready(weights: float, on: Hardware, *, from_disk: bool) -> float:
    """Seconds until a model of so many bytes is loaded and proved."""
    loading = weights / LOAD if from_disk else 0.0
    return loading + (0.0 if on.is_cpu else CHECKS + weights / CHECKED)


def _rows(cut: Intervention) -> list[tuple[float, float]]:
    """The rows of a pass: each a share of question + answer, and tokens beside the answer."""
    window = 0 if cut.layers == "cumulative" else int(cut.layers.partition(":")[2] or 1)
    return [_LENGTHS.get(cut.name, _LENGTHS[KNOCKOUT.name])] * (window + 1)


def _tokens(question: float, answer: float, rows: Sequence[tuple[float, float]]) -> float:
    """The tokens of one question's rows."""
    return sum(s * (question + answer) + (0 if s else answer + more) for s, more in rows)


def _forward(
    config: Config,
    sets: Sequence[TokenCount],
    on: Hardware,
    devices: int,
    flops: float,
    states: float,
    size: Size,
) -> float:
    """Seconds of answers and states. A shard is the least that a worker takes."""
    shards = sum(math.ceil(of.questions / _shard(config, on)) for of in sets)
    workers = max(1, on.gpus // devices)
    busiest = math.ceil(shards / workers) / shards  # the share of the worker with the most
    questions = sum(of.questions for of in sets)
    # Devices that hold one model together work one after the other.
    passes = flops / (on.products * reached(size.block_weights, on))
    return busiest * (passes + questions * PYTHON + states / STORE)


def _shard(config: Config, on: Hardware) -> int:
    return config.shard or SHARD.get(on.kind, 1024)


def _analysis(sets: Sequence[TokenCount], size: Size, cores: int | None, on: Hardware) -> float:
    """Seconds of probes and strict mode, layers side by side.

    On one machine dataset after dataset; spread over `cores`, all layers of all datasets at once.
    """
    layers = [LAYER + of.questions * (LAYER_QUESTION + LAYER_WIDTH * size.width) for of in sets]
    if cores is None:
        return max(1.0, size.blocks / min(on.cores, MAX_CORES)) * sum(layers)
    return math.ceil(size.blocks * len(sets) / cores) * max(layers)
