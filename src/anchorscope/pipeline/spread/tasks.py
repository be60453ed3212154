"""What a worker is asked to do: small values that travel, never states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from anchorscope.config import Config
from anchorscope.engine.interventions import Intervention
from anchorscope.pipeline.prepare import Shard
from anchorscope.records import QuestionSet


@dataclass(frozen=True, kw_only=True)
class Job:
    """The run that a worker takes part in."""

    folder: str
    url: str | None  # where the folder is the copy of one
    config: Config
    sets: Sequence[QuestionSet]
    info: dict[str, Any]  # run.json


@dataclass(frozen=True)
class Prepare:
    """The model described and every question made ready, by the first worker."""

    def __str__(self) -> str:
        return "The preparation"


@dataclass(frozen=True, kw_only=True)
class Read:
    """One shard answered and read under some passes."""

    inside: str  # the folder in the run's where questions are asked again; else "."
    shard: Shard
    passes: tuple[Intervention, ...]
    exact_question: Mapping[str, tuple[int, ...]] | None  # of this shard's questions

    def __str__(self) -> str:
        return f"Shard {self.shard.number}"


class Fed(NamedTuple):
    """What a task that reads gives; its states are on disk."""

    tokens: int  # fed to the model
    halved: tuple[int, ...]  # tokens of the batches for which memory ran out


@dataclass(frozen=True, kw_only=True)
class ReadPiece:
    """One stage of a piece of evidence on one shard."""

    piece: str
    stage: str
    number: int  # of the shard
    shards: int
    layers: Mapping[str, int] | None  # by dataset, where held-out probes read

    def __str__(self) -> str:
        return f"Shard {self.number} ({self.stage})"


Task = Prepare | Read | ReadPiece


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A model without its weights: enough to make prompts and to know its shape."""

    facts: dict[str, Any]  # name, source, revision, tokenizer, why, adapter
    kind: type
    config: Any


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What the first worker found out."""

    info: dict[str, Any]  # for run.json
    shards: list[Shard]
    outline: Outline
