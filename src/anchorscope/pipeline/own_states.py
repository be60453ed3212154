"""Analyse states that were extracted elsewhere: check and store them, and write a run's tables.

The arrays of a .safetensors file are mapped into memory and read some rows at a time; those of a
.npz file are read whole.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import pandas as pd
from safetensors import SafetensorError, safe_open

from anchorscope.config import CHEAP, Config
from anchorscope.datasets.text import digest
from anchorscope.errors import UserError, user_path
from anchorscope.pipeline.analyse import Dataset, describe, publish
from anchorscope.pipeline.analyse import analyse as analyse_stored
from anchorscope.pipeline.request import Run, option_words
from anchorscope.probes.folds import MIN_OVERALL
from anchorscope.probes.labelled import Labelled, labelled
from anchorscope.progress import Progress, Quiet
from anchorscope.records import Answer, Question, Sample, Span
from anchorscope.run_folder.states import save_blocks, shard_name
from anchorscope.run_folder.view import RunView
from anchorscope.spans.answer import kind_of_answer

if TYPE_CHECKING:
    import torch

NEEDED = ("clean", "knockout")
# A sample that has no state under one of these is NaN throughout. `question` is the name of a text
# as well: with three axes it is the pass.
OPTIONAL = ("neutral", "content", "question_pass", "answer_only", "retest", "retest_knockout")
TEXTS = ("id", "question", "answer", "entity", "relation", "kind")
NUMBERS = ("popularity", "length", "exact_tokens")
FACTS = (*TEXTS, *NUMBERS)
# The fields of a config that need no model; the command has them as options.
OPTIONS = (
    "seed", "grouping", "delta", "folds", "fold_seeds", "C", "balance", "resamples", "evidence",
)  # fmt: skip
ENDINGS = (".npz", ".safetensors")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_BLOCK = 2**24  # numbers read at a time: 64 MB in float32
# Raised for an archive that is damaged, locked, or packed in another way.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, TypeError, LookupError,
    NotImplementedError, OverflowError, RuntimeError, MemoryError, SafetensorError,
)  # fmt: skip
Array = Union[np.ndarray, "torch.Tensor"]  # a tensor where numpy has no such dtype: bfloat16
Arrays = Mapping[str, Array]


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
            and knockout, and where they are there neutral, content, question (question_pass beside
            texts of questions), answer-only, retest and retest-knockout. A sample without a state
            under one of the latter is NaN there.
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
    if other := set(facts) - set(FACTS):
        raise UserError(
            f"Nothing is known of {', '.join(sorted(other))}. Facts are: {', '.join(FACTS)}."
        )
    arrays = open_arrays(states) | open_arrays({"z": z, **facts})
    arrays = {name.replace("-", "_"): array for name, array in arrays.items()}
    if "question" in arrays and len(arrays["question"].shape) == 3:
        arrays["question_pass"] = arrays.pop("question")
    if unused := sorted(set(arrays) - {*NEEDED, *OPTIONAL, "z", *FACTS}):
        progress.note(f"not used: {', '.join(unused)}")
    stem = "states" if isinstance(states, Mapping) else Path(states).stem
    name = re.sub(r"[^\w.-]+", "-", stem).strip("-").lower() or "states"
    config = _config(config, title=title or name, name=name, limit=limit)
    identity = {"states": check_arrays(arrays), **config.identity()}
    run = Run.open(out, identity, config, progress=progress)
    if not (run.store.info.get("finished") and run.whole()):
        with run.store.owned(withdraw=True):
            _store_and_analyse(run, arrays, name=name, source=states)
    return RunView.open(run.store.path)


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


def _store_and_analyse(run: Run, arrays: Arrays, *, name: str, source: Any) -> None:
    config, store = run.config, run.store
    facts = facts_of(arrays, dataset=name, limit=config.limit, seed=config.seed)
    samples = [_sample(row, name) for row in facts.to_dict("records")]
    answers = _labelled(samples, facts, dataset=name, config=config)
    clean = arrays["clean"]
    with run.stage("states"):
        for array in (*NEEDED, *OPTIONAL):
            file = shard_name(array.removesuffix("_pass").replace("_", "-"), 0)
            if array in arrays and not store.has(file):
                used = _used_rows(arrays[array], facts.index.to_numpy())
                save_blocks(store, file, list(facts["id"]), (len(facts), *clean.shape[1:]), used)
    describe(
        store,
        config,
        command=_command(source, config, store.path),
        model={
            "name": config.model,
            "blocks": clean.shape[1],
            "width": clean.shape[2],
            "dtype": _dtype(clean),
            "device": "none",
            "prompt": "none",
            "why": "states that were extracted elsewhere, no model",
        },
        dataset={"name": name, "title": name, "questions": len(samples), "dropped": {}},
    )
    analyse_stored(run, [Dataset(samples=samples, answers=answers, shards=1)])
    publish(run)


def _used_rows(array: Array, rows: np.ndarray) -> Iterator[np.ndarray]:
    """The states of the samples used, in float32, a block at a time."""
    for start, block in blocks_of(array):
        inside = rows[(rows >= start) & (rows < start + len(block))] - start
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


def facts_of(arrays: Arrays, *, dataset: str, limit: int | None, seed: int) -> pd.DataFrame:
    """A row for each sample used, by its number in the file: all, or those of the smallest hash.

    A text that is missing is "", a number NaN.
    """
    n = len(arrays["clean"])
    facts = pd.DataFrame({"z": np.array(values(arrays["z"]), dtype=np.int64)})
    for name in TEXTS:
        texts = pd.Series(values(arrays[name]) if name in arrays else [""] * n).astype(str)
        facts[name] = texts.where(~texts.isin(["nan", "None"]), "")
    for name in NUMBERS:
        facts[name] = np.array(values(arrays[name]) if name in arrays else [np.nan] * n, float)
    ids = facts["id"] if "id" in arrays else pd.Series(range(n)).astype(str)
    facts["id"] = f"{dataset}:own:" + ids
    if "kind" not in arrays:
        facts["kind"] = [kind_of_answer(reply) if reply else "" for reply in facts["answer"]]
    ranked = sorted(range(n), key=lambda row: (digest(seed, facts["id"][row]), facts["id"][row]))
    return facts.loc[sorted(ranked[:limit])]


def _sample(row: Mapping[Any, Any], dataset: str) -> Sample:
    """A row of samples.parquet; without a text or an entity, its id is that."""
    id, reply = row["id"], row["answer"]
    return Sample(
        question=Question(
            id=id,
            dataset=dataset,
            text=row["question"] or id,
            answers=(),
            relation=row["relation"] or None,
            popularity=None if math.isnan(row["popularity"]) else row["popularity"],
            entity=row["entity"] or id,
        ),
        answer=Answer(
            id=id, text=reply, token_ids=(), log_probs=(), first_entropy=np.nan, finished=True
        ),
        verdict="wrong" if row["z"] else "right",
        finder="own states",
        spans=(),
        answer_span=Span(0, len(reply)) if reply else None,
        # Placeholders for unknown positions: they mark the sample as usable.
        prompt_ids=(0, 1),
        question_tokens=(1,),
        exact_question=(1,),
        exact_answer=(2,),
        kind=row["kind"],
    )


def _labelled(
    samples: list[Sample], facts: pd.DataFrame, *, dataset: str, config: Config
) -> Labelled:
    """Class, fold and covariates of the samples; what the file does not say is no covariate."""
    answers, length = labelled(samples, dataset, config), facts["length"].to_numpy()
    exact, kinds = facts["exact_tokens"].to_numpy(), facts["kind"].to_numpy(str)
    relations = facts["relation"].to_numpy(str)
    covariates = replace(
        answers.covariates,
        prompt_length=np.zeros(len(length)) if np.isnan(length).all() else length,
        relation=relations if any(relations) else None,
        kind=kinds if any(kinds) else None,
        exact_tokens=None if np.isnan(exact).all() else exact,
    )
    return replace(answers, covariates=covariates)


# --- Open the arrays ---


def open_arrays(source: str | Path | Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of a file or a mapping, by name."""
    if isinstance(source, Mapping):
        given = {name: value for name, value in source.items() if value is not None}
        return {name: np.atleast_1d(np.asarray(value)) for name, value in given.items()}
    path = user_path(source)
    if path.suffix not in ENDINGS:
        raise UserError(f"States cannot be read from {path}. Accepted: {' or '.join(ENDINGS)}.")
    if not path.is_file():
        raise UserError(f"There is no file {path}. Give the states as {' or '.join(ENDINGS)}.")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return {name: np.atleast_1d(archive[name]) for name in archive.files}
        return _open_safetensors(path)
    except _DAMAGE as error:
        if "Object arrays" in str(error):
            raise UserError(
                f"{path} holds Python objects, which are not read. Save them as numbers or as "
                "text (dtype str)."
            ) from error
        raise UserError(
            f"{path} is damaged or no {path.suffix} file ({error}). Write it again."
        ) from error


def _open_safetensors(path: Path) -> dict[str, Array]:
    """The tensors of a file, and the lists of text that its metadata holds as JSON."""
    arrays: dict[str, Array] = {}
    with safe_open(path, framework="pt") as file:
        for name, text in (file.metadata() or {}).items():
            if text.lstrip().startswith("["):
                arrays[name] = np.asarray(json.loads(text), dtype=str)
        for name in file.keys():  # noqa: SIM118 (it is no mapping)
            tensor = file.get_tensor(name)  # memory-mapped
            plain = hasattr(np, _dtype(tensor)) or _dtype(tensor) == "bool"
            arrays[name] = np.atleast_1d(tensor.numpy()) if plain else tensor
    return arrays


def _dtype(array: Array) -> str:
    return getattr(array.dtype, "name", str(array.dtype).removeprefix("torch."))


def blocks_of(array: Array, *, passes: int = 1) -> Iterator[tuple[int, np.ndarray]]:
    """Some rows of an array at a time, each with the number of its first; bfloat16 as float32.

    `passes`: how many arrays are read in step.
    """
    size = max(1, _BLOCK // (max(1, math.prod(array.shape[1:])) * passes))
    for start in range(0, len(array), size):
        rows = array[start : start + size]
        yield start, rows if isinstance(rows, np.ndarray) else rows.float().numpy()


def values(array: Array) -> list[Any]:
    """The entries of one axis as Python values, bytes as text."""
    return [v.decode() if isinstance(v, bytes) else v for v in array.tolist()]


# --- Check them ---


def check_arrays(arrays: Arrays) -> str:
    """The hash of all arrays that are used; a UserError that says what is wrong with them."""
    missing = [name for name in (*NEEDED, "z") if name not in arrays]
    if missing:
        raise UserError(
            f"There is no array {' and no array '.join(missing)}. Arrays there: "
            f"{', '.join(arrays) or 'none'}. Needed: {', '.join((*NEEDED, 'z'))}; optional: "
            f"{', '.join((*OPTIONAL, *FACTS))}."
        )
    states = {name: arrays[name] for name in (*NEEDED, *OPTIONAL) if name in arrays}
    for name, array in states.items():
        _check_shape(name, array, states["clean"])
    n = states["clean"].shape[0]
    for name in ("z", *FACTS):
        if name in arrays and tuple(arrays[name].shape) != (n,):
            raise UserError(
                f"{name} is {list(arrays[name].shape)}; expected one entry for each of the {n} "
                "samples of clean."
            )
    for name in NUMBERS:
        if name in arrays and not _dtype(arrays[name]).startswith(("float", "int", "uint", "bool")):
            raise UserError(f"{name} holds {_dtype(arrays[name])}; expected numbers.")
    counts = Counter(values(arrays["z"]))
    if other := [value for value in counts if value not in (0, 1)]:
        shown = ", ".join(repr(value) for value in other[:3])
        raise UserError(f"z holds {shown}; accepted: 1 (wrong) and 0 (right).")
    if min(counts[1], counts[0]) < MIN_OVERALL:
        raise UserError(
            f"z has {counts[1]} wrong and {counts[0]} right answers; probes need at least "
            f"{MIN_OVERALL} of each. Give more samples."
        )
    if "id" in arrays:
        (id, times), *_ = Counter(map(str, values(arrays["id"]))).most_common(1)
        if times > 1:
            raise UserError(f"The id '{id}' is there {times} times; every sample needs its own.")
    digest = _check_states(states)
    for name in ("z", *FACTS):
        digest.update(repr((name, values(arrays[name]) if name in arrays else None)).encode())
    return digest.hexdigest()


def _check_shape(name: str, array: Array, clean: Array) -> None:
    shape = list(array.shape)
    if _dtype(array) not in _FLOATS:
        raise UserError(f"{name} holds {_dtype(array)}; states are {', '.join(_FLOATS)}.")
    if len(shape) != 3:
        raise UserError(
            f"{name} is {shape}; states are [sample, layer, width]. One layer alone is "
            f"{name}[:, None]."
        )
    if 0 in shape:
        raise UserError(f"{name} is {shape}: it holds nothing.")
    if shape != list(clean.shape):
        raise UserError(
            f"{name} is {shape} and clean {list(clean.shape)}; both must hold the same "
            "samples, layers and width."
        )


def _check_states(states: Arrays) -> hashlib.blake2b:
    """Read everything once: every state finite, and moved by each intervention."""
    digest = hashlib.blake2b(digest_size=16)
    broken: dict[str, list[np.ndarray]] = {name: [] for name in states}
    same = {*states, "control"}  # with clean, or, of clean itself, with its first sample
    (_, first), *_ = blocks_of(states["clean"][:1])
    for parts in zip(*(blocks_of(a, passes=len(states)) for a in states.values()), strict=True):
        start, block = parts[0][0], dict(zip(states, (part for _, part in parts), strict=True))
        for name, part in block.items():
            digest.update(np.ascontiguousarray(part).data)
            with np.errstate(over="ignore"):  # what float32 cannot hold is found as inf
                finite = np.isfinite(part.astype(np.float32, copy=False))
            bad = ~finite.all(axis=2)
            if name in OPTIONAL:  # NaN throughout: the sample has no such state
                absent: Any = np.isnan(part).all(axis=(1, 2))
                bad &= ~absent[:, None]
            broken[name].append(np.argwhere(bad) + np.array([start, 0]))
            if ((part != (first if name == "clean" else block["clean"])) & finite).any():
                same.discard(name)
        if "neutral" not in block or (block["knockout"] != block["neutral"]).any():
            same.discard("control")
    n = len(states["clean"])
    for name, array in states.items():
        if len(places := np.concatenate(broken[name])):
            do = "Extract these states again, or leave the samples out."
            if _dtype(array) == "float16":
                do = "float16 overflows above 65504: extract them in bfloat16 or float32."
            raise UserError(
                f"{name} holds NaN or inf for {len(np.unique(places[:, 0]))} of {n} samples "
                f"(first: sample {places[0, 0]} counted from 0, layer {places[0, 1] + 1}). {do}"
            )
    if "clean" in same:
        raise UserError("clean is the same for every sample; a probe has nothing to learn from.")
    for name in states:
        if name in same:
            raise UserError(f"{name} and clean are identical. Give {name}'s own states.")
    if "control" in same:
        raise UserError(
            "knockout and neutral are identical, so the control is the knockout itself. Give the "
            "states under a knockout of tokens without subject or property as neutral."
        )
    return digest
