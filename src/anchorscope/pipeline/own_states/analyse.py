"""Analyse states that were extracted elsewhere: check and store them, and write a run's tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorscope.config import CHEAP, Config
from anchorscope.datasets.text import digest
from anchorscope.errors import UserError
from anchorscope.pipeline.analyse import Dataset, describe, publish
from anchorscope.pipeline.analyse import analyse as analyse_stored
from anchorscope.pipeline.own_states.arrays import (
    FACTS,
    NEEDED,
    OPTIONAL,
    Array,
    Arrays,
    block_size,
    check_arrays,
    open_arrays,
    read_rows,
    values,
)
from anchorscope.pipeline.request import Run, option_words
from anchorscope.probes.labelled import Labelled, labelled
from anchorscope.progress import Progress, Quiet
from anchorscope.records import Answer, Question, Sample, Span
from anchorscope.run_folder.states import save_blocks, shard_name
from anchorscope.run_folder.view import RunView
from anchorscope.spans.answer import kind_of_answer

# The fields of a config that need no model; the command has them as options.
OPTIONS = (
    "seed", "grouping", "delta", "folds", "fold_seeds", "C", "balance", "resamples", "evidence",
)  # fmt: skip
_MISSING = {"", "nan", "None"}


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
    """Make a run in folder `out` from states that were extracted elsewhere.

    Args:
        states: A .npz or .safetensors file, or arrays by name, each [sample, layer, width]: clean
            and knockout, and where they are there neutral (or `random`, as it was once called),
            content, question (question_pass beside texts of questions), answer-only, retest and
            retest-knockout. A sample without a state under one of the latter is NaN there.
        z: [sample], 1 = wrong, 0 = right; may also be an array of `states`.
        out: The run folder; continued if it exists.
        title: The model's name in the report.
        limit: Number of samples; None for all.
        config: Choices of the analysis.
        progress: A listener to stages and notes; silent without one.
        facts: [sample] each, or arrays of `states`: entity, relation, kind, popularity, length,
            exact_tokens, id, question, answer.

    Returns:
        The finished run.

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
    arrays = open_arrays(states) | open_arrays({"z": z, **facts})
    arrays = {name.replace("-", "_"): array for name, array in arrays.items()}
    if "random" in arrays and "neutral" not in arrays:
        arrays["neutral"] = arrays.pop("random")
    if "question" in arrays and len(arrays["question"].shape) == 3:
        arrays["question_pass"] = arrays.pop("question")
    if unused := sorted(set(arrays) - {*NEEDED, *OPTIONAL, "z", *FACTS}):
        progress.note(f"not used: {', '.join(unused)}")
    stem = "states" if isinstance(states, Mapping) else Path(states).stem
    name = re.sub(r"[^\w.-]+", "-", stem).strip("-").lower() or "states"
    config = _config(config, title=title or name, name=name, limit=limit)
    identity = {"states": check_arrays(arrays), **config.identity()}
    run = Run.open(out, identity, config, progress=progress)
    if run.store.info.get("finished") and run.whole():
        return RunView.open(run.store.path)
    with run.store.owned(withdraw=True):
        return _analyse(run, arrays, name=name, source=states)


def _analyse(run: Run, arrays: Arrays, *, name: str, source: Any) -> RunView:
    config, store = run.config, run.store
    facts = facts_of(arrays, dataset=name, limit=config.limit, seed=config.seed)
    samples = _samples(facts, dataset=name)
    answers = _labelled(samples, facts, dataset=name, config=config)
    passes = {
        array.removesuffix("_pass").replace("_", "-"): arrays[array]
        for array in (*NEEDED, *OPTIONAL)
        if array in arrays
    }
    _, layers, width = arrays["clean"].shape
    shape = (len(facts.id), layers, width)
    with run.stage("states"):
        for intervention, array in passes.items():
            file = shard_name(intervention, 0)
            if not store.has(file):
                save_blocks(store, file, facts.id, shape, _used_rows(array, facts.rows))
    dtype = str(arrays["clean"].dtype).removeprefix("torch.")
    model = {"name": config.model, "blocks": layers, "width": width, "dtype": dtype,
             "device": "none", "prompt": "none",
             "why": "states that were extracted elsewhere, no model"}  # fmt: skip
    dataset = {"name": name, "title": name, "questions": len(samples), "dropped": {}}
    describe(store, config, command=_command(source, config, store.path), model=model,
             dataset=dataset)  # fmt: skip
    analyse_stored(run, [Dataset(samples=samples, answers=answers, shards=1)])
    return publish(run)


def _config(config: Config, *, title: str, name: str, limit: int | None) -> Config:
    """The config with its options for states; those for a model stay at their defaults."""
    needs_model = [piece for piece in config.evidence if piece not in CHEAP]
    if needs_model or config.ablate:
        named = ", ".join([*needs_model, *config.ablate])
        raise UserError(
            f"{named} cannot be read from states alone: the model is needed. Accepted as evidence: "
            f"none, or of {', '.join(CHEAP)}."
        )
    chosen = {option: getattr(config, option) for option in OPTIONS}
    return replace(Config(model=title, data=(name,), limit=limit), **chosen)


def _used_rows(array: Array, rows: np.ndarray) -> Iterator[np.ndarray]:
    """The states of the samples used, in float32, a block at a time."""
    size = block_size(array)
    for start in range(0, len(array), size):
        block = read_rows(array, start, start + size)
        inside = rows[(rows >= start) & (rows < start + size)] - start
        yield block[inside].astype(np.float32)


def _command(source: Any, config: Config, out: Path) -> str:
    """The command, or the Python call, that repeats this analysis."""
    if isinstance(source, Mapping):
        return f"anchorscope.analyse(states, out={str(out)!r})"
    words = ["anchorscope", "analyse", str(source), "--title", config.model]
    if config.limit is not None:
        words += ["--limit", str(config.limit)]
    return shlex.join([*words, *option_words(config, OPTIONS), "--out", str(out)])


# --- Samples and labels from the facts ---


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of the samples used, [sample] each."""

    rows: np.ndarray  # numbers of the samples used among all of the file, in their order
    id: list[str]
    z: np.ndarray
    columns: Mapping[str, list[Any]]  # the facts that are there

    def text(self, name: str) -> list[str]:
        """A fact as text, "" where it is missing."""
        column = self.columns.get(name, [""] * len(self.id))
        return ["" if str(value) in _MISSING else str(value) for value in column]

    def number(self, name: str) -> np.ndarray:
        """A fact as numbers, NaN where it is missing."""
        return np.array(self.columns.get(name, [np.nan] * len(self.id)), dtype=float)


def facts_of(arrays: Arrays, *, dataset: str, limit: int | None, seed: int) -> Facts:
    """The facts of the samples used: all, or those of the smallest hash of seed and id."""
    n = len(arrays["clean"])
    columns = {name: values(arrays[name]) for name in ("z", *FACTS) if name in arrays}
    ids = [f"{dataset}:own:{id}" for id in columns.get("id", range(n))]
    ranked = sorted(range(n), key=lambda row: (digest(seed, ids[row]), ids[row]))
    rows = np.array(sorted(ranked[:limit]))
    used = {name: [column[row] for row in rows] for name, column in columns.items()}
    z = np.array(used["z"], dtype=np.int64)
    return Facts(rows=rows, id=[ids[row] for row in rows], z=z, columns=used)


def _labelled(samples: Sequence[Sample], facts: Facts, *, dataset: str, config: Config) -> Labelled:
    """Class, fold and covariates of the samples; what the file does not say is no covariate."""
    answers, length = labelled(samples, dataset, config), facts.number("length")
    kinds = [sample.kind for sample in samples]
    covariates = replace(
        answers.covariates,
        prompt_length=np.zeros(len(length)) if np.isnan(length).all() else length,
        relation=np.array(facts.text("relation")) if "relation" in facts.columns else None,
        kind=np.array(kinds) if any(kinds) else None,
        exact_tokens=facts.number("exact_tokens") if "exact_tokens" in facts.columns else None,
    )
    return replace(answers, covariates=covariates)


def _samples(facts: Facts, *, dataset: str) -> list[Sample]:
    """A row of samples.parquet for each; without a text or an entity, its id is that."""
    replies, popularity = facts.text("answer"), facts.number("popularity")
    kinds = facts.text("kind")
    if "kind" not in facts.columns:
        kinds = [kind_of_answer(reply) if reply else "" for reply in replies]
    texts, entities, relations = (facts.text(n) for n in ("question", "entity", "relation"))
    columns = (facts.id, texts, entities, replies, relations, kinds)
    return [
        Sample(
            question=Question(
                id=id,
                dataset=dataset,
                text=text or id,
                answers=(),
                relation=relation or None,
                popularity=None if np.isnan(popularity[row]) else float(popularity[row]),
                entity=entity or id,
            ),
            answer=Answer(
                id=id, text=reply, token_ids=(), log_probs=(), first_entropy=np.nan, finished=True
            ),
            verdict="wrong" if facts.z[row] else "right",
            finder="own states",
            spans=(),
            answer_span=Span(0, len(reply)) if reply else None,
            # Placeholders for unknown positions: they mark the sample as usable.
            prompt_ids=(0, 1),
            question_tokens=(1,),
            exact_question=(1,),
            exact_answer=(2,),
            kind=kind,
        )
        for row, (id, text, entity, reply, relation, kind) in enumerate(zip(*columns, strict=True))
    ]
