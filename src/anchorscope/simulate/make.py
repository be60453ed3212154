"""A run folder from a planted truth: states on disk, then everything that a real run does."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from anchorscope.analyse import analyse, labelled, save_tables
from anchorscope.config import Config
from anchorscope.gather import Gathering
from anchorscope.identity import git_revision, versions
from anchorscope.progress import Progress, Quiet
from anchorscope.records import Answer, Question, Sample, Span
from anchorscope.show import RunView, write_figures, write_report
from anchorscope.simulate.worlds import INTERVENTIONS, Simulated, Truth, simulate_states
from anchorscope.states import save_states, shard_name
from anchorscope.store import Store


def simulate(
    truth: Truth,
    *,
    out: str | Path,
    config: Config | None = None,
    progress: Progress | None = None,
) -> RunView:
    """The finished run of a made-up world in folder `out`."""
    progress = progress or Quiet()
    config = config or Config(model=truth.world, data=("simulated",), seed=truth.seed)
    store = Store.open(out, {"simulate": asdict(truth), **config.identity()})
    if store.info.get("finished"):
        return RunView.open(store.path)
    begun = time.monotonic()
    made = simulate_states(truth)
    samples = [_sample(truth, made, number) for number in range(truth.samples)]
    ids = [sample.id for sample in samples]
    for name in ("clean", *INTERVENTIONS):
        save_states(store, shard_name(name, 0), ids, made.states[name])
    _describe(store, truth, config)
    parts = [labelled(samples, "simulated", config)]
    found = analyse(
        store,
        parts,
        INTERVENTIONS,
        model=store.info["model"]["name"],
        shards=1,
        config=config,
        progress=progress,
    )
    evidence = Gathering(store, config, 1).tables(
        parts, found, samples, store.info["model"]["name"]
    )
    save_tables(store, found.tables, samples, parts, evidence)
    _save_truth(store, made, ids)
    store.save_info({"stages": {"simulate": {"seconds": round(time.monotonic() - begun, 2),
                                             "tokens": 0}}})  # fmt: skip
    view = RunView.open(store.path, unfinished_ok=True)
    write_figures(view)
    write_report(view)
    store.save_info({"finished": True})
    return RunView.open(store.path)


def _sample(truth: Truth, made: Simulated, number: int) -> Sample:
    """A question without content: one entity to every two, a popularity, an answer."""
    rng = np.random.default_rng((truth.seed, number))
    subject, wrong = f"thing {number // 2}", bool(made.z[number])
    text = f"What is {subject}, asked as number {number}?"
    at = text.index(subject)
    said = "not it" if wrong else "it"
    return Sample(
        question=Question(
            id=f"simulated:{truth.world}:{number}",
            dataset="simulated",
            text=text,
            answers=("it",),
            subjects=(subject,),
            popularity=float(np.exp(rng.normal(8, 2))),
            entity=subject,
        ),
        answer=Answer(
            id=f"simulated:{truth.world}:{number}",
            text=said,
            token_ids=(1,),
            log_probs=(-0.5,),
            first_entropy=1.0,
            finished=True,
        ),
        verdict="wrong" if wrong else "right",
        finder="given",
        spans=(Span(at, at + len(subject)),),
        answer_span=Span(0, len(said)),
        prompt_ids=tuple(range(int(rng.integers(8, 20)))),
        question_tokens=(1, 2, 3),
        exact_question=(2,),
        exact_answer=(20,),
    )


def _describe(store: Store, truth: Truth, config: Config) -> None:
    """run.json, in the words of a real run."""
    words = ["anchorscope", "simulate"]
    for name, value in asdict(truth).items():
        words += [f"--{name}", str(value)]
    store.save_info(
        {
            "config": asdict(config),
            "command": shlex.join([*words, "--out", str(store.path)]),
            "model": {
                "name": f"Simulated: {truth.world}",
                "blocks": truth.layers,
                "width": truth.width,
                "dtype": "float32",
                "device": "cpu",
                "prompt": "none",
                "why": "made-up states with a known truth, no model",
            },
            "datasets": [{"name": "simulated", "title": "Simulated",
                          "questions": truth.samples, "dropped": {}}],
            "versions": versions(),
            "git": git_revision(),
        }
    )  # fmt: skip
    empty = pd.DataFrame(columns=["dataset", "finder_a", "finder_b", "n", "jaccard", "identical"])
    store.write("tables/spans.csv", partial(empty.to_csv, index=False))


def _save_truth(store: Store, made: Simulated, ids: list[str]) -> None:
    """tables/truth.csv: what was planted in each sample."""
    table = pd.DataFrame({"id": ids, "z": made.z, "pushed": made.pushed})
    store.write("tables/truth.csv", partial(table.to_csv, index=False))
