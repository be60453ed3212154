"""A run as a value, and the seconds of its stages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pandas as pd

from anchorscope.config import Config
from anchorscope.engine import HALVED
from anchorscope.progress import Progress, Quiet
from anchorscope.records import QuestionSet, Sample
from anchorscope.run_folder.manifest import MARKERS, check_files
from anchorscope.run_folder.samples import from_frame
from anchorscope.run_folder.store import Store


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run under way: its folder, what was asked for, its questions, and who listens."""

    store: Store
    config: Config
    sets: Sequence[QuestionSet]
    progress: Progress = field(default_factory=Quiet)

    @property
    def datasets(self) -> list[str]:
        return [questions.name for questions in self.sets]

    @property
    def model_name(self) -> str:
        return str(self.store.info["model"]["name"])

    def whole(self) -> bool:
        """Whether every file of a finished run is as it was written; what is not is named.

        Markers follow from what is there: they are written at once.
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
        """Adds the seconds (and tokens) of a stage to run.json, also where it breaks off.

        Batches for which memory ran out are named as well, since smaller ones round otherwise.
        """
        begun, spent, before = time.monotonic(), {"tokens": 0.0}, len(HALVED)
        try:
            yield spent
        finally:
            self.add_to(name, seconds=time.monotonic() - begun, tokens=spent["tokens"])
            if halved := HALVED[before:]:
                self._note_halved(name, halved)

    def _note_halved(self, name: str, halved: list[int]) -> None:
        stages = self.store.info["stages"]
        every = [*stages[name].get("halved", []), *halved]
        self.store.save_info({"stages": stages | {name: stages[name] | {"halved": every}}})
        self.progress.note(
            f"memory ran out {len(halved)} times; batches of {min(halved)} tokens and more were "
            "made smaller, which run.json notes"
        )

    def add_to(self, name: str, **spent: float) -> None:
        """Adds to what run.json says of a stage.

        `seconds` are those in which the run did nothing else, so that those of all stages add up
        to the run; `beside` those in which the model read at the same time.
        """
        stages = self.store.info.get("stages", {})
        stage = {"seconds": 0.0, "tokens": 0} | stages.get(name, {})
        for unit, more in spent.items():
            whole = stage.get(unit, 0) + more
            stage[unit] = int(whole) if unit == "tokens" else round(whole, 2)
        self.store.save_info({"stages": stages | {name: stage}})


def answers_name(number: int) -> str:
    """The name of a shard's samples in the run folder."""
    return f"answers/{number:05d}.parquet"


def stored_answers(store: Store, number: int) -> list[Sample]:
    """The samples of a shard that are on disk."""
    return from_frame(pd.read_parquet(store.file(answers_name(number))))
