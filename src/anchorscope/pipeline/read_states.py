"""Read the states of a run, a shard of questions at a time: answer, judge, locate, intervene.

The answers, the clean states and the states under interventions of a batch share one trunk. Each
file is saved as soon as it is complete, so a killed run loses a shard at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from anchorscope.answers.generate import Answered, Answerer
from anchorscope.answers.given import GivenAnswers, read_answers_file
from anchorscope.answers.prompted import (
    Prompted,
    Shard,
    caught,
    cut_into_shards,
    mark_answer,
    read_answers,
)
from anchorscope.answers.verdicts import read_verdicts
from anchorscope.config import Config
from anchorscope.datasets.packed import PackedQuestions
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import Prefix, Trunk, grow_trunk, read_prefix, states_bytes
from anchorscope.engine.interventions import (
    CAUGHT,
    CLEAN,
    Intervention,
    TokenPositions,
    passes_of,
    positions_of,
    retest_positions,
)
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import (
    COLUMNS,
    Block,
    Blocks,
    Row,
    by_pass,
    read_rows_with_output,
    row_for,
    unchanged_row,
    with_mass,
)
from anchorscope.evidence.pieces import passes_of_pieces, piece_of
from anchorscope.evidence.shards import HeldOut, Shards
from anchorscope.pathways.band import READ, best_layer
from anchorscope.pipeline.prepare import prompt_maker, prompts_by
from anchorscope.pipeline.request import Run
from anchorscope.probes.folds import labelled
from anchorscope.probes.probe_set import ProbeSet, Readings
from anchorscope.probes.remaining import StoredProbes
from anchorscope.records import QuestionSet, Sample, Verdict
from anchorscope.run_folder.manifest import REMAINING
from anchorscope.run_folder.samples import (
    answers_name,
    output_name,
    readings_name,
    stored_answers,
    to_frame,
)
from anchorscope.run_folder.states import save_states, shard_name
from anchorscope.run_folder.store import Store

Result = TypeVar("Result")
_FILES_AT_ONCE = 3  # each keeps a core busy with its checksum and its copy to disk


class Task(NamedTuple):
    """A task for any process with the model; its arguments and result are small, never states."""

    name: str  # in messages: "Shard 3"
    work: Callable[[Worker], Any]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Read the shards of a run, in this process or in workers."""

    shards: Sequence[Shard]  # to read: all of the run's, or one rank's share
    count: int  # of all shards of the run
    # Run tasks; yield the number and result of each once its files are on disk.
    map: Callable[[Sequence[Task]], Iterator[tuple[int, Any]]]

    def ask(self, name: str, work: Callable[[Worker], Result]) -> Result:
        """Run one task and return its result."""
        ((_, result),) = self.map([Task(name, work)])
        return result


def read_states(
    run: Run,
    reader: Reader,
    passes: Sequence[Intervention] | None = None,
    *,
    name: str = "answers and states",
    shards: Sequence[Shard] | None = None,
) -> None:
    """Answer every question and read it under each pass, a shard at a time.

    Shards on disk are not read again. `passes` replaces the run's own, and `shards` the reader's,
    as for reworded questions. The exact question tokens are those of the shards' prompts.
    """
    passes = tuple(passes_of(run.config) if passes is None else passes)
    shards = reader.shards if shards is None else shards
    work = partial(Worker.read, passes=passes, folder=run.store.prefix)
    tasks = [Task(f"Shard {shard.number}", partial(work, shard=shard)) for shard in shards]
    run.progress.start(name, sum(map(len, shards)))
    with run.stage(name) as stage:
        for number, tokens in reader.map(tasks):
            stage["tokens"] += tokens
            run.progress.advance(len(shards[number]))


def read_remaining(run: Run, reader: Reader) -> None:
    """Read the questions beyond those that probes learn from, with the probes on disk.

    Their answers and readings are files in the folder remaining/; states only where all are kept.
    """
    if not run.remaining:
        return
    given, verdicts = read_answers_file(run.config.answers), read_verdicts(run.config.verdicts)
    size, tasks = run.store.info["shard"], []
    for questions in run.remaining:
        for start in range(0, len(questions), size):
            part = questions.questions[start : start + size]
            work = partial(
                Worker.read_remaining,
                number=len(tasks),
                questions=replace(questions, questions=PackedQuestions(part)),
                given={q.id: given[q.id] for q in part if q.id in given},
                verdicts={q.id: verdicts[q.id] for q in part if q.id in verdicts},
            )
            tasks.append(Task(f"Shard {len(tasks)} of the remaining questions", work))
    run.store.save_info({REMAINING: {each.name: len(each) for each in run.remaining}})
    run.progress.start("remaining questions", sum(map(len, run.remaining)))
    with run.stage("remaining questions") as stage:
        for _, (count, tokens) in reader.map(tasks):
            stage["tokens"] += tokens
            run.progress.advance(count)
    number = sum(map(len, run.remaining))
    run.progress.note(
        f"{run.store.path}/{REMAINING}/readings: {number:,} questions, read by probes"
    )


def count_passes(config: Config) -> int:
    """Count the passes of a run, each of which stores one state of each answer."""
    return len(CAUGHT) + len(passes_of(config)) + len(passes_of_pieces(config))


class Worker:
    """Read shards with the model; write one shard's files while the next is read."""

    def __init__(self, run: Run, lease: Lease) -> None:
        self.run, self.lease = run, lease
        self.answerer = Answerer(lease.model, max_tokens=run.config.max_tokens)
        self.budget = Budget.of(lease.model)
        self.prefix = self.retest_prefix = Prefix((), None)
        self.evidence: Shards | None = None  # of all answers, for pieces of evidence
        self._probes: dict[str, StoredProbes] = {}  # by dataset, for the remaining questions
        self.tokens = 0  # fed so far
        self._arriving: list[Block] = []
        self._writing: list[Future[None]] = []
        self._threads = ThreadPoolExecutor(_FILES_AT_ONCE, "files")

    def read(
        self,
        *,
        shard: Shard,
        passes: Sequence[Intervention],
        folder: str = "",  # of the files, in the run folder
    ) -> int:
        """Read one shard and start writing its missing files; return the number of tokens fed."""
        number, before = shard.number, self.tokens
        store = self.run.store.inside(folder) if folder else self.run.store

        def has(name: str) -> bool:
            return store.has(shard_name(name, number))

        def has_pass(cut: Intervention) -> bool:
            return has(cut.name) and (
                not cut.has_output or store.has(output_name(cut.name, number))
            )

        missing = [cut for cut in passes if not has_pass(cut)]
        answered = store.has(answers_name(number)) and all(map(has, CAUGHT))
        if answered and not missing:
            return 0
        stored = stored_answers(store, number) if answered else None
        # All passes again where one is missing: rounding depends on what shares a batch, and a
        # continued run must equal an unbroken one to the last digit.
        samples, blocks = self._read_shard(shard, passes, stored)
        self.finish()  # writing the previous shard: two at most are in memory
        if not answered:
            for name in CAUGHT:
                self._submit(self._write_states, store, number, name, blocks[name])
            self._submit(store.write, answers_name(number), to_frame(samples).to_parquet)
        for cut in missing:
            if cut.has_output:
                self._submit(_write_output, store, number, cut.name, blocks[cut.name])
            self._submit(self._write_states, store, number, cut.name, blocks[cut.name])
        return self.tokens - before

    def read_remaining(
        self,
        *,
        number: int,
        questions: QuestionSet,  # of one shard
        given: GivenAnswers,
        verdicts: Mapping[str, Verdict],
    ) -> tuple[int, int]:
        """Read a shard of the remaining questions; return its questions and the tokens fed."""
        run, before, dataset = self.run, self.tokens, questions.name
        store = run.store.inside(REMAINING)
        passes = [cut for cut in passes_of(run.config) if cut.name in READ and not cut.retest]
        names = (CLEAN.name, *(cut.name for cut in passes))
        kept = names if run.config.keep_states == "all" else ()
        files = (
            answers_name(number),
            readings_name(number),
            *(shard_name(n, number) for n in kept),
        )
        if all(map(store.has, files)):
            return len(questions), 0
        if dataset not in self._probes:
            run.store.fetch()
            self._probes[dataset] = StoredProbes.load(run.store, dataset, run.config)
        prompts = prompts_by(run, self.lease, questions, run.config.finder, given, verdicts)
        (shard,) = cut_into_shards(prompts, dataset, len(prompts), first=number)
        samples, blocks = self._read_shard(shard, passes, None)
        self.finish()  # writing the previous shard: two at most are in memory

        def write_readings(file: Any) -> None:
            states = {n: [(block.ids, block.states.array()) for block in blocks[n]] for n in names}
            self._probes[dataset].read(samples, states).to_parquet(file)

        self._submit(store.write, answers_name(number), to_frame(samples).to_parquet)
        self._submit(store.write, readings_name(number), write_readings)
        for name in kept:
            self._submit(self._write_states, store, number, name, blocks[name])
        return len(questions), self.tokens - before

    def finish(self) -> None:
        """Wait until every file is written; raise the first error."""
        writing, self._writing = self._writing, []
        wait(writing)
        for future in writing:
            future.result()

    def _submit(self, write: Callable[..., None], *values: Any) -> None:
        self._writing.append(self._threads.submit(write, *values))

    def _read_shard(
        self,
        shard: Shard,
        passes: Sequence[Intervention],
        stored: Sequence[Sample] | None,  # where the answers are on disk
    ) -> tuple[list[Sample], Blocks]:
        """Read a shard: samples, states caught while answering, and states of each pass."""
        prefix = self.prefix = self._shared(self.prefix, shard.prefix)
        by_id = {sample.id: sample for sample in stored or ()}
        blocks: Blocks = {name: [] for name in (*CAUGHT, *(cut.name for cut in passes))}
        first, again = ([cut for cut in passes if cut.retest == retest] for retest in (False, True))

        def answer(batch: Sequence[Prompted]) -> tuple[Trunk, Answered | None]:
            # The same batches as when answering: a continued run equals an unbroken one.
            if stored is not None:
                return self._regrow(prefix, batch), None
            prompts = [p.prompt_ids for p in batch]
            if batch[0].given is not None:
                out = read_answers(self.lease, prefix, batch)
            else:
                ids = [p.question.id for p in batch]
                ends = [p.question_tokens[-1] for p in batch]
                out = self.answerer.answer(self.lease, prefix, ids, prompts, extra_position=ends)
            self.tokens += sum(len(a.token_ids) - len(prefix) for a in out.answers)
            self.tokens += sum(map(len, prompts))
            return out.trunk, out

        given = [len(p.given.token_ids) for p in shard.prompts if p.given is not None]
        most = max(given, default=self.answerer.max_tokens)
        rows = prefix.rows_within(
            self.budget.written,
            room=_longest(shard.prompts, prefix) + most,
            beside=states_bytes(self.lease.model, most),
            segmented=self.lease.fused,
        )
        for batch, (trunk, answered) in self._batches(shard.prompts, prefix, answer, rows):
            if answered is not None:
                pairs = zip(batch, answered.answers, strict=True)
                samples = [mark_answer(self.lease.model, p, a) for p, a in pairs]
                by_id |= {sample.id: sample for sample in samples}
                self._keep(blocks, caught(samples, answered))
            positions = [_positions(by_id[p.question.id], p.exact_question) for p in batch]
            self._intervene(trunk, positions, first, blocks)
            del trunk, answered  # before the next batch has its own
        self._retest(shard, by_id, again, blocks)
        return [by_id[p.question.id] for p in shard.prompts], blocks

    def _retest(
        self,
        shard: Shard,
        by_id: Mapping[str, Sample],
        passes: Sequence[Intervention],
        blocks: Blocks,
    ) -> None:
        """Read the shard's retest questions behind the retest prompt, and add their states."""
        samples = [by_id[p.question.id] for p in shard.retest]
        pairs = zip(shard.retest, samples, strict=True)
        chosen = [p for p, sample in pairs if sample.exact_answer and sample.exact_question]
        if not passes or not chosen:
            return
        prefix = self.retest_prefix = self._shared(self.retest_prefix, shard.retest_prefix)

        rows = prefix.rows_within(
            self.budget.trunk, room=_longest(chosen, prefix), segmented=self.lease.fused
        )
        for batch, trunk in self._batches(chosen, prefix, partial(self._regrow, prefix), rows):
            positions = [retest_positions(by_id[p.question.id], p) for p in batch]
            self._intervene(trunk, positions, passes, blocks)

    def _batches(
        self,
        prompts: Sequence[Prompted],
        prefix: Prefix,
        work: Callable[[Sequence[Prompted]], Result],
        rows: int | None,
    ) -> Iterator[tuple[list[Prompted], Result]]:
        return in_batches(
            prompts, work, length=lambda p: _longest([p], prefix), then=lambda p: p.question.id,
            budget=self.budget, rows=rows,
        )  # fmt: skip

    def _shared(self, before: Prefix, ids: tuple[int, ...]) -> Prefix:
        """Read the tokens in front of a dataset's questions once for all its shards."""
        if ids == before.ids:
            return before
        self.tokens += len(ids)
        return read_prefix(self.lease, ids)

    def _regrow(self, prefix: Prefix, batch: Sequence[Prompted]) -> Trunk:
        """Compute the trunk of prompts whose answers are on disk."""
        prompts = [p.prompt_ids for p in batch]
        self.tokens += sum(len(ids) - len(prefix) for ids in prompts)
        return grow_trunk(self.lease, prefix, prompts).trunk

    def _intervene(
        self,
        trunk: Trunk,
        positions: Sequence[TokenPositions | None],
        passes: Sequence[Intervention],
        blocks: Blocks,
    ) -> None:
        """Read these samples under each pass, and add their states and outputs to `blocks`."""
        if any(cut.keys == "neutral" for cut in passes):  # which are matched in attention mass
            positions = with_mass(self.lease, trunk, positions, budget=self.budget)
        rows = [
            row
            for number, places in enumerate(positions)
            for cut in passes
            if places is not None and (row := self._row(places, number, cut, trunk)) is not None
        ]
        self.tokens += sum(len(row.ids) for row in rows)
        ids = ["" if places is None else places.id for places in positions]
        for batch, states, output in read_rows_with_output(
            self.lease, trunk, rows, budget=self.budget
        ):
            self._keep(blocks, by_pass(passes, ids, batch, states, output))

    def _row(
        self, positions: TokenPositions, number: int, cut: Intervention, trunk: Trunk
    ) -> Row | None:
        """The row of a question under a pass; None where the question has no key to cut."""
        if cut.heads == ():
            return unchanged_row(positions, number, cut)
        row = row_for(trunk, positions, number, cut, seed=self.run.config.seed)
        return row if row.keys or cut.answer_only else None

    def _keep(self, kept: Blocks, blocks: Mapping[str, Block]) -> None:
        """Add one block of states for each pass, and copy the previous blocks off the GPU.

        The GPU has finished those by now, and computes these while the next are prepared.
        """
        for block in self._arriving:
            block.states.settle()
        self._arriving = list(blocks.values())
        for name, block in blocks.items():
            kept[name].append(block)

    def _write_states(self, store: Store, number: int, name: str, blocks: Sequence[Block]) -> None:
        model = self.lease.model
        none = np.empty((0, model.blocks, model.parts.width), np.float32)
        ids = [id for block in blocks for id in block.ids]
        arrays = [block.states.array() for block in blocks] or [none]
        save_states(store, shard_name(name, number), ids, arrays)


def _write_output(store: Store, number: int, name: str, blocks: Sequence[Block]) -> None:
    """Write the model's own output for a shard's answers under one pass."""
    outputs = [block.output.cpu().numpy() for block in blocks if block.output is not None]
    values = np.concatenate(outputs) if outputs else np.empty((0, len(COLUMNS)), np.float32)
    frame = pd.DataFrame(values, columns=list(COLUMNS))
    frame.insert(0, "id", [id for block in blocks for id in block.ids])
    store.write(output_name(name, number), frame.to_parquet)


def _longest(prompts: Sequence[Prompted], prefix: Prefix) -> int:
    """The length in tokens of the longest prompt, without the prefix."""
    return max(len(prompt.prompt_ids) for prompt in prompts) - len(prefix)


def _positions(sample: Sample, exact: tuple[int, ...]) -> TokenPositions | None:
    """The sample's positions with these exact question tokens; None where some are missing."""
    if not (sample.exact_answer and sample.exact_question and exact):
        return None
    return replace(positions_of(sample), exact_question=exact)


# Further evidence: pieces that need no probe, and those that read with one.


def read_pieces(
    run: Run, reader: Reader, names: Sequence[str], readings: Mapping[str, Readings] | None = None
) -> None:
    """Read what these pieces of evidence need from the model, with or without held-out probes.

    Donors, and the tokens in front of the questions, come from all answers of a dataset. Probes are
    those of the best layer of the `readings`, by dataset; None reads without probes.
    """
    layers = None
    if readings is not None:
        layers = {name: best_layer(own) for name, own in readings.items()}
    reads = "read" if readings is None else "read_with_probes"
    pieces = [name for name in names if getattr(piece_of(name), reads) is not None]
    if pieces and not all(run.store.has(answers_name(number)) for number in range(reader.count)):
        run.progress.note("further evidence waits for the answers of the other ranks")
        return
    for name in pieces:
        for stage in piece_of(name).stages:
            work = partial(_read_stage, piece=name, stage=stage, count=reader.count, layers=layers)
            tasks = [
                Task(f"Shard {shard.number} ({stage})", partial(work, number=shard.number))
                for shard in reader.shards
            ]
            run.progress.start(stage, sum(map(len, reader.shards)))
            with run.stage("evidence"):
                for task, _ in reader.map(tasks):
                    run.progress.advance(len(reader.shards[task]))


def _read_stage(
    worker: Worker,
    *,
    piece: str,
    stage: str,
    number: int,  # of the shard
    count: int,  # of the run's shards
    layers: Mapping[str, int] | None,
) -> None:
    """Read one stage of a piece of evidence on one shard."""
    run, found = worker.run, piece_of(piece)
    if worker.evidence is None:
        run.store.fetch()
        samples = [stored_answers(run.store, each) for each in range(count)]
        worker.evidence = Shards(worker.lease, run.store, samples, seed=run.config.seed)
    shards = replace(worker.evidence, only=(stage, number))
    if layers is None:
        assert found.read is not None
        found.read(shards, prompt_maker(run, worker.lease))
        return
    held_out = {}
    for dataset, layer in layers.items():
        answers = labelled(shards.of_dataset(dataset), dataset, run.config)
        fold = {id: int(f) for id, f in zip(answers.ids, answers.fold, strict=True)}
        probes = ProbeSet.load(run.store.file(f"probes/{dataset}"))
        held_out[dataset] = HeldOut(probes=probes, fold=fold, layer=layer)
    assert found.read_with_probes is not None
    found.read_with_probes(shards, held_out, run.config)
