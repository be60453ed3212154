"""A run as a value: its folder, config and questions, the seconds of its stages, its answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from anchorscope.config import Config
from anchorscope.engine.halvings import HALVED
from anchorscope.progress import Progress, Quiet
from anchorscope.records import QuestionSet, Sample
from anchorscope.run_folder.manifest import MARKERS, check_files
from anchorscope.run_folder.samples import from_frame
from anchorscope.run_folder.store import Store


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run under way."""

    store: Store
    config: Config
    sets: Sequence[QuestionSet] = ()
    progress: Progress = field(default_factory=Quiet)

    @classmethod
    def open(
        cls,
        out: str | Path,
        identity: dict[str, Any],
        config: Config,
        sets: Sequence[QuestionSet] = (),
        progress: Progress | None = None,
    ) -> Run:
        """The run of this identity in folder `out`; another run's folder is refused."""
        store = Store.open(out, identity)
        return cls(store=store, config=config, sets=sets, progress=progress or Quiet())

    @property
    def model_name(self) -> str:
        return str(self.store.info["model"]["name"])

    def whole(self) -> bool:
        """Whether every file of a finished run is as it was written; what is not is named.

        Markers follow from the files: they are written at once.
        """
        damaged = {name: wrong for name, wrong in check_files(self.store.path) if wrong}
        for name, wrong in damaged.items():
            self.progress.note(f"{name} is made again: {wrong}")
        if damaged and all(MARKERS in name.split("/") for name in damaged):
            self.store.relist()
            return True
        return not damaged

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, float]]:
        """Add the seconds and tokens of a stage to run.json, also where it breaks off.

        Batches for which memory ran out are noted as well, since smaller ones round otherwise.
        """
        begun, spent, before = time.monotonic(), {"tokens": 0.0}, len(HALVED)
        try:
            yield spent
        finally:
            stages = self.store.info.get("stages", {})
            stage = {"seconds": 0.0, "tokens": 0} | stages.get(name, {})
            stage["seconds"] = round(stage["seconds"] + time.monotonic() - begun, 2)
            stage["tokens"] = int(stage["tokens"] + spent["tokens"])
            if halved := HALVED[before:]:
                stage["halved"] = [*stage.get("halved", []), *halved]
                self.progress.note(
                    f"memory ran out {len(halved)} times; batches of {min(halved)} tokens and more "
                    "were made smaller, which run.json notes"
                )
            self.store.save_info({"stages": stages | {name: stage}})


def answers_name(number: int) -> str:
    """The name of a shard's samples in the run folder."""
    return f"answers/{number:05d}.parquet"


def stored_answers(store: Store, number: int) -> list[Sample]:
    """The samples of a shard that are on disk."""
    return from_frame(pd.read_parquet(store.file(answers_name(number))))


def stored_samples(store: Store) -> dict[str, list[Sample]]:
    """All samples on disk by dataset, in the order of their shards."""
    samples: dict[str, list[Sample]] = {}
    for number in range(count_answers(store)):
        shard = stored_answers(store, number)
        samples.setdefault(shard[0].question.dataset, []).extend(shard)
    return samples


def count_answers(store: Store) -> int:
    """The number of shards whose answers are on disk."""
    return len(list(store.file("answers").glob("*.parquet")))
