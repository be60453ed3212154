"""Own states to a finished run folder: checked, stored, and read as a run's are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorscope.config import CHEAP, Config, default_of
from anchorscope.errors import UserError
from anchorscope.pipeline.analyse import Dataset
from anchorscope.pipeline.analyse import analyse as analyse_stored
from anchorscope.pipeline.own_states.arrays import StoredArray, arrays_of
from anchorscope.pipeline.own_states.check import FACTS, NEEDED, OPTIONAL, check_arrays
from anchorscope.pipeline.own_states.samples import facts_of, labelled_facts, samples_of
from anchorscope.pipeline.publish import describe, publish
from anchorscope.pipeline.stages import Run
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.states import save_blocks, shard_name
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView

# The fields of a config that speak of states and not of a model; the command has them as options.
OPTIONS = (
    "seed", "grouping", "delta", "folds", "fold_seeds", "C", "balance", "resamples", "evidence",
)  # fmt: skip


def analyse(
    states: str | Path | Mapping[str, Any],
    z: Any = None,
    *,
    out: str | Path,
    title: str | None = None,
    limit: int | None = None,
    config: Config | None = None,
    progress: Progress | None = None,
    **facts: Any,
) -> RunView:
    """The finished run in folder `out`, from states that were extracted elsewhere.

    `states`: a .npz or .safetensors file, or arrays by name, each [sample, layer, width]: clean and
    knockout, and where they are there neutral (or `random`, as it was once called), content,
    question (question_pass beside texts of questions), answer-only, retest and retest-knockout. A
    sample without a state under one of the latter is NaN there. `z` [sample]: 1 = wrong, 0 = right.
    `facts` [sample]: entity, relation, kind, popularity, length, exact_tokens, id, question,
    answer. Both may also be arrays of the file or the mapping.

    Examples:
        >>> import anchorscope as anc
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> z = np.arange(80) % 2
        >>> clean = rng.standard_normal((80, 1, 8)) + z[:, None, None]
        >>> states = {"clean": clean, "knockout": 0.5 * clean, "neutral": clean + 0.1}
        >>> small = anc.Config(folds=3, fold_seeds=1, resamples=100)
        >>> run = anc.analyse(states, z, out="runs/states", config=small)
        >>> run.findings["finding"].tolist(), (run.path / "report.html").exists()
        (['too-few'], True)

    """
    progress, config = progress or Quiet(), config or Config()
    if unknown := set(facts) - set(FACTS):
        raise UserError(f"Nothing is known of {', '.join(sorted(unknown))}. Facts are: "
                        f"{', '.join(FACTS)}.")  # fmt: skip
    arrays = arrays_of(states) | arrays_of({"z": z, **facts})
    arrays = {name.replace("-", "_"): of for name, of in arrays.items()}
    if "random" in arrays and "neutral" not in arrays:
        arrays["neutral"] = arrays.pop("random")
    if "question" in arrays and len(arrays["question"].shape) == 3:
        arrays["question_pass"] = arrays.pop("question")
    used = (*NEEDED, *OPTIONAL, "z", *FACTS)
    if left := sorted(set(arrays) - set(used)):
        progress.note(f"not used: {', '.join(left)}")
    name = _name(states)
    config = _config(config, title=title or name, name=name, limit=limit)
    store = Store.open(out, {"states": check_arrays(arrays), **config.identity()})
    run = Run(store=store, config=config, sets=(), progress=progress)
    if store.info.get("finished") and run.whole():
        return RunView.open(store.path)
    with store.owned(withdraw=True):
        return _analyse(run, arrays, name=name, source=states)


def _analyse(run: Run, arrays: Mapping[str, StoredArray], *, name: str, source: Any) -> RunView:
    config, store = run.config, run.store
    facts = facts_of(arrays, dataset=name, limit=config.limit, seed=config.seed)
    answers = labelled_facts(facts, dataset=name, config=config)
    samples = samples_of(facts, dataset=name, entities=answers.entities)
    passes = [of for of in (*NEEDED, *OPTIONAL) if of in arrays]
    _, layers, width = arrays["clean"].shape
    with run.stage("states"):
        for of in passes:
            shape, file = (len(facts.id), layers, width), shard_name(_pass_name(of), 0)
            if not store.has(file):
                save_blocks(store, file, facts.id, shape, _rows(arrays[of], facts.rows))
    model = {"name": config.model, "blocks": layers, "width": width, "dtype": arrays["clean"].dtype,
             "device": "none", "prompt": "none",
             "why": "states that were extracted elsewhere, no model"}  # fmt: skip
    dataset = {"name": name, "title": name, "questions": len(samples), "dropped": {}}
    describe(store, config, command=_command(source, config, store.path), model=model,
             dataset=dataset)  # fmt: skip
    analyse_stored(run, [Dataset(samples=samples, answers=answers, shards=1)])
    return publish(run)


def _pass_name(array: str) -> str:
    """What a run calls the pass whose states an array holds."""
    return array.removesuffix("_pass").replace("_", "-")


def _config(config: Config, *, title: str, name: str, limit: int | None) -> Config:
    """The choices that speak of states; those that speak of a model stay at their defaults."""
    needs_model = [piece for piece in config.evidence if piece not in CHEAP]
    if needs_model or config.ablate:
        asked = ", ".join([*needs_model, *config.ablate])
        raise UserError(
            f"{asked} cannot be read from states alone: the model is needed. Accepted as evidence: "
            f"none, or of {', '.join(CHEAP)}."
        )
    chosen = {option: getattr(config, option) for option in OPTIONS}
    return replace(Config(model=title, data=(name,), limit=limit), **chosen)


def _name(states: str | Path | Mapping[str, Any]) -> str:
    """The short name of the data: the file's, as a word."""
    stem = "states" if isinstance(states, Mapping) else Path(states).stem
    return re.sub(r"[^\w.-]+", "-", stem).strip("-").lower() or "states"


def _rows(array: StoredArray, rows: np.ndarray) -> Iterator[np.ndarray]:
    """The states of the samples used, in float32, a block at a time."""
    keep, at = np.zeros(array.shape[0], dtype=bool), 0
    keep[rows] = True
    for block in array.blocks():
        yield block[keep[at : at + len(block)]].astype(np.float32)
        at += len(block)


def _command(source: Any, config: Config, out: Path) -> str:
    """The line that asks for this analysis again."""
    if isinstance(source, Mapping):
        return f"anchorscope.analyse(states, out={str(out)!r})"
    words = ["anchorscope", "analyse", str(source), "--title", config.model]
    if config.limit is not None:
        words += ["--limit", str(config.limit)]
    for name in OPTIONS:
        value = getattr(config, name)
        if value != default_of(name):
            option = name if name == "C" else name.replace("_", "-")
            words += [
                f"--{option}",
                (",".join(value) or "none") if name == "evidence" else str(value),
            ]
    return shlex.join([*words, "--out", str(out)])
