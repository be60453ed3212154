"""Analyse states that were extracted elsewhere: store them, and write a run's tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anchorscope.config import CHEAP, Config
from anchorscope.datasets.state_arrays import (
    FACTS,
    NEEDED,
    OPTIONAL,
    Arrays,
    blocks_of,
    check_arrays,
    dtype_of,
    facts_of,
    open_arrays,
    sample_of,
)
from anchorscope.errors import UserError
from anchorscope.pipeline.analyse import analyse_given, publish
from anchorscope.pipeline.request import Run, option_words
from anchorscope.probes.folds import labelled_by_facts
from anchorscope.progress import Progress
from anchorscope.run_folder.states import save_blocks, shard_name
from anchorscope.run_folder.view import RunView
from anchorscope.spans.answer import kind_of_answer

# The fields of a config that need no model; the command has them as options.
OPTIONS = (
    "seed", "grouping", "delta", "folds", "fold_seeds", "C", "balance", "resamples", "evidence",
)  # fmt: skip


def analyse(
    states: str | Path | Mapping[str, Any],
    z: Any = None,
    *,
    out: str | Path,
    title: str | None = None,
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
        >>> small = anc.Config(folds=3, fold_seeds=1, resamples=100, evidence=())
        >>> run = anc.analyse(states, z, out="runs/states", config=small)
        >>> run.findings["finding"].tolist(), (run.path / "report.html").exists()
        (['too-few'], True)

    """
    config = config or Config()
    if other := set(facts) - set(FACTS):
        raise UserError(
            f"Nothing is known of {', '.join(sorted(other))}. Facts are: {', '.join(FACTS)}."
        )
    if needs_model := [piece for piece in config.evidence if piece not in CHEAP] + [*config.ablate]:
        raise UserError(
            f"{', '.join(needs_model)} cannot be read from states alone: the model is needed. "
            f"Accepted as evidence: none, or of {', '.join(CHEAP)}."
        )
    arrays = open_arrays(states) | open_arrays({"z": z, **facts})
    arrays = {name.replace("-", "_"): array for name, array in arrays.items()}
    if "question" in arrays and len(arrays["question"].shape) == 3:
        arrays["question_pass"] = arrays.pop("question")
    stem = "states" if isinstance(states, Mapping) else Path(states).stem
    name = re.sub(r"[^\w.-]+", "-", stem).strip("-").lower() or "states"
    chosen = {option: getattr(config, option) for option in OPTIONS}
    config = Config(model=title or name, data=(name,), limit=None, **chosen)
    identity = {"states": check_arrays(arrays), **config.identity()}
    run = Run.open(out, identity, config, progress=progress)
    if unused := sorted(set(arrays) - {*NEEDED, *OPTIONAL, "z", *FACTS}):
        run.progress.note(f"not used: {', '.join(unused)}")
    if not (run.store.info.get("finished") and run.whole()):
        with run.store.owned(withdraw=True):
            _store_and_analyse(run, arrays, name=name, source=states)
    return RunView.open(run.store.path)


def _store_and_analyse(run: Run, arrays: Arrays, *, name: str, source: Any) -> None:
    config, store, clean = run.config, run.store, arrays["clean"]
    facts = facts_of(arrays, dataset=name)
    if "kind" not in arrays:
        facts["kind"] = [kind_of_answer(reply) if reply else "" for reply in facts["answer"]]
    samples = [sample_of(row, name) for row in facts.to_dict("records")]
    answers = labelled_by_facts(samples, facts, name, config)
    with run.stage("states"):
        for array in (*NEEDED, *OPTIONAL):
            file = shard_name(array.removesuffix("_pass").replace("_", "-"), 0)
            if array in arrays and not store.has(file):
                rows = (block.astype(np.float32) for _, block in blocks_of(arrays[array]))
                save_blocks(store, file, list(facts["id"]), tuple(clean.shape), rows)
    command = f"anchorscope.analyse(states, out={str(store.path)!r})"
    if not isinstance(source, Mapping):
        words = ["anchorscope", "analyse", str(source), "--title", config.model]
        words += option_words(config, OPTIONS)
        command = shlex.join([*words, "--out", str(store.path)])
    analyse_given(
        run,
        samples,
        answers,
        title=name,
        command=command,
        model={
            "name": config.model,
            "blocks": clean.shape[1],
            "width": clean.shape[2],
            "dtype": dtype_of(clean),
            "device": "none",
            "prompt": "none",
            "why": "states that were extracted elsewhere, no model",
        },
    )
    publish(run)
