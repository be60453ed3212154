"""The queue: tasks for several workers, each done once; a lost worker's task goes back to it."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from anchorscope.engine.halvings import HALVED
from anchorscope.engine.interventions import Intervention
from anchorscope.errors import UserError
from anchorscope.pipeline.prepare import Shard
from anchorscope.pipeline.spread.tasks import Prepare, Prepared, Read, ReadPiece, Task
from anchorscope.pipeline.stages import Run

LOST = 3  # workers that one task may cost


class Lost(Exception):
    """A worker ended without an answer."""


class Helper(Protocol):
    """A worker as the queue sees it."""

    def do(self, task: Task) -> Any: ...

    def end(self) -> None: ...


class Hands:
    """The workers of a run."""

    def __init__(self, run: Run, start: Callable[[int], Helper], count: int) -> None:
        self._folder, self._note, self._start = run.store.path, run.progress.note, start
        self._helpers = [start(place) for place in range(count)]
        self._ended = False

    def prepare(self) -> Prepared:
        """What the first worker finds out, before there are others."""
        return self._all([Prepare()])[0]

    def read(
        self,
        run: Run,
        shards: Sequence[Shard],
        passes: Sequence[Intervention],
        exact_question: Mapping[str, tuple[int, ...]] | None,
    ) -> int:
        """The tokens fed while every shard was answered and read."""

        def exact(shard: Shard) -> dict[str, tuple[int, ...]] | None:
            ids = (prompt.question.id for prompt in shard.prompts)
            return None if exact_question is None else {id: exact_question[id] for id in ids}

        inside, cuts = os.path.relpath(run.store.path, self._folder), tuple(passes)
        tasks = [
            Read(inside=inside, shard=shard, passes=cuts, exact_question=exact(shard))
            for shard in shards
        ]
        fed = self._all(tasks, lambda n: run.progress.advance(len(shards[n])))
        HALVED.extend(tokens for one in fed for tokens in one.halved)
        run.store.fetch()
        return sum(one.tokens for one in fed)

    def read_piece(
        self,
        run: Run,
        piece: str,
        layers: Mapping[str, int] | None,
        sizes: Sequence[int],
        stage: str,
        numbers: Sequence[int],
    ) -> None:
        """One stage of a piece of evidence on these shards; `sizes` are those of all shards."""
        tasks = [
            ReadPiece(piece=piece, stage=stage, number=number, shards=len(sizes), layers=layers)
            for number in numbers
        ]
        run.store.send_rest()
        fed = self._all(tasks, lambda n: run.progress.advance(sizes[numbers[n]]))
        HALVED.extend(tokens for one in fed for tokens in one.halved)
        run.store.fetch()

    def end(self) -> None:
        """Every worker stopped; a lost one is not replaced any more."""
        self._ended = True
        for helper in self._helpers:
            helper.end()

    def _all(self, tasks: Sequence[Task], done: Callable[[int], None] | None = None) -> list[Any]:
        """What the tasks give, in their order."""
        queue = _Queue(tasks, done or (lambda number: None))
        places = range(min(len(self._helpers), len(tasks)))
        threads = [
            threading.Thread(target=self._serve, args=(place, queue), daemon=True)
            for place in places
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # so that Ctrl-C is heard
                if queue.error is not None:
                    raise queue.error
        if queue.error is not None:
            raise queue.error
        return [queue.results[number] for number in range(len(tasks))]

    def _serve(self, place: int, queue: _Queue) -> None:
        """One worker's day; a new one comes where it is lost."""
        while (number := queue.take()) is not None:
            try:
                result = self._helpers[place].do(queue.tasks[number])
            except Lost as lost:
                queue.give_back(number)
                if queue.error is None and not self._ended:
                    self._note(f"worker {place + 1} was lost ({lost}): {queue.tasks[number]} again")
                    self._helpers[place] = self._start(place)
            except BaseException as error:
                queue.fail(error)
            else:
                queue.finish(number, result)


class _Queue:
    """Tasks by number: waiting, under way, done."""

    def __init__(self, tasks: Sequence[Task], done: Callable[[int], None]) -> None:
        self.tasks, self._done = tasks, done
        self.results: dict[int, Any] = {}
        self.error: BaseException | None = None
        self._waiting = deque(range(len(tasks)))
        self._cost: Counter[int] = Counter()
        self._change = threading.Condition()

    def take(self) -> int | None:
        """The next task; None where none is left and none can come back."""
        with self._change:
            while not self._waiting and self.error is None:
                if len(self.results) == len(self.tasks):
                    return None
                self._change.wait()
            return None if self.error is not None else self._waiting.popleft()

    def finish(self, number: int, result: Any) -> None:
        with self._change:
            self.results[number] = result
            self._done(number)
            self._change.notify_all()

    def give_back(self, number: int) -> None:
        """Puts a lost worker's task in front again, unless it cost too many."""
        with self._change:
            self._cost[number] += 1
            if self._cost[number] >= LOST:
                self.error = UserError(
                    f"{self.tasks[number]} ended {LOST} workers, so the run stops. What was "
                    "finished is kept. Look for what stopped them (often memory: take fewer "
                    "workers), and run the same command again."
                )
            self._waiting.appendleft(number)
            self._change.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._change:
            self.error = self.error or error
            self._change.notify_all()
