"""What a run with other verdicts need not compute: the same answers and the same states.

A state does not know its verdict. So a run that differs from a finished one in its verdicts alone
gets copies of that one's files, and only probes, tables and report are made anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anchorscope.answers.judge import judge
from anchorscope.engine.passes import CAUGHT, passes_of
from anchorscope.errors import UserError
from anchorscope.pipeline.prepare import Shard
from anchorscope.pipeline.shard import answers_name, stored_answers
from anchorscope.pipeline.stages import Run
from anchorscope.records import Sample, Verdict
from anchorscope.run_folder.links import check_inside
from anchorscope.run_folder.outputs import output_name
from anchorscope.run_folder.samples import to_frame
from anchorscope.run_folder.states import shard_name
from anchorscope.run_folder.store import Store, read_info

_OWN = ("verdicts",)  # what may differ
_MODEL = ("weights", "dtype", "prompt", "device")  # what the states depend on


def check_reuse(source: str | None, identity: Mapping[str, Any]) -> None:
    """An error where that run is not there, or differs in more than its verdicts."""
    if source is None:
        return
    folder = Path(source).expanduser()
    check_inside(folder)
    info = read_info(folder)
    if not isinstance(info, dict) or not info.get("finished"):
        raise UserError(f"--reuse {source} is no finished run on this machine. Give its folder.")
    theirs = info.get("identity", {})
    differ = [n for n in {*theirs, *identity} - {*_OWN} if theirs.get(n) != identity.get(n)]
    if differ:
        raise UserError(
            f"--reuse {source} differs in more than the verdicts ({', '.join(sorted(differ))}). "
            "Ask for the same otherwise, or leave --reuse out."
        )


def take_over(run: Run, shards: Sequence[Shard]) -> None:
    """Puts the answers and states of the run that --reuse names into this one's folder."""
    if run.config.reuse is None:
        return
    folder = Path(run.config.reuse).expanduser()
    _check_alike(run, read_info(folder) or {})
    source = Store(folder)
    names = (*CAUGHT, *(cut.name for cut in passes_of(run.config)))
    for shard in shards:
        if run.store.has(answers_name(shard.number)):
            continue
        for name in (
            place(of, shard.number) for of in names for place in (output_name, shard_name)
        ):
            if source.has(name) and not run.store.has(name):
                _take(source, run.store, name)
        given: dict[str, Verdict | None] = {
            prompt.question.id: prompt.verdict for prompt in shard.prompts
        }
        samples = [_judged(of, given[of.id]) for of in stored_answers(source, shard.number)]
        run.store.write(answers_name(shard.number), to_frame(samples).to_parquet)
    run.progress.note(f"answers and states are those of {folder}")


def _check_alike(run: Run, info: Mapping[str, Any]) -> None:
    theirs, ours = info.get("model", {}), run.store.info["model"]
    differ = [name for name in _MODEL if theirs.get(name) != ours.get(name)]
    differ += ["shard"] if info.get("shard") != run.store.info["shard"] else []
    if differ:
        raise UserError(
            f"--reuse {run.config.reuse} was computed otherwise ({', '.join(differ)}), so its "
            "states are not those of this run. Leave --reuse out, and choose another --out."
        )


def _take(source: Store, store: Store, name: str) -> None:
    """The same file under the same name, checked and marked as one that was written here."""

    def copy(target: Any) -> None:
        with source.file(name).open("rb") as file:
            shutil.copyfileobj(file, target, 1 << 20)

    store.write(name, copy)


def _judged(sample: Sample, given: Verdict | None) -> Sample:
    question = sample.question
    judged = given or judge(sample.answer.text, question.answers, question=question.text)
    return replace(sample, verdict=judged)
