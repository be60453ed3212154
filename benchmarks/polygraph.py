"""The same answers and labels scored by lm-polygraph and by anchorscope: AUROC and time.

    python benchmarks/polygraph.py RUN --data popqa [--limit 200] [--python PATH] [--json FILE]

RUN is a finished run of a small model (everything runs on the CPU in float32). `--python` is an
interpreter that has lm-polygraph, if this one has not. lm-polygraph writes the answers again from
the same prompts, greedily and up to the end of the line, as its estimators want it; only answers
that come out alike are compared. Its estimators are not trained; anchorscope's detectors are, on
folds that hold other entities. Seconds are for an answer and its score, everything included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.evaluate import evaluate
from anchorscope.detect.material import Material, from_run
from anchorscope.models import Model, load_model
from anchorscope.run_folder.view import RunView
from anchorscope.stats.ranking import auroc_interval

OURS = ("min-log-prob", "tfidf-both", "probe", "mop", "auto")
TIMED = ("min-log-prob", "probe", "mop")


def theirs(python: str, model: Model, prompts: list[str], max_tokens: int) -> dict[str, Any]:
    """What lm-polygraph gives, from a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        job, out, folder = (Path(place) / name for name in ("job.json", "out.json", "model"))
        model.lm.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
        asked = {"model": str(folder), "prompts": prompts, "max_tokens": max_tokens}
        job.write_text(json.dumps(asked))
        worker = Path(__file__).with_name("polygraph_work.py")
        subprocess.run([python, str(worker), str(job), str(out)], check=True)
        return json.loads(out.read_text())


def ours(run: RunView, material: Material, model: Model) -> tuple[pd.DataFrame, dict]:
    """Scores by detector and id from folds disjoint by entity, and seconds for all answers."""
    scores = evaluate(material, names=OURS, splits=("entity",))
    questions = [text.question for text in material.texts]
    seconds = {}
    for name in TIMED:
        detector = Detector.train(run, method=name, datasets=[material.name], folds=3)
        detector.score(model, questions[:2])  # to warm up
        begun = time.perf_counter()
        detector.score(model, questions)
        seconds[name] = time.perf_counter() - begun
    return scores.pivot(index="id", columns="detector", values="score"), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    run = RunView.open(given.run, collected_ok=True)
    material = from_run(run, given.data, limit=given.limit)
    model = load_model(run.info["config"]["model"], device="cpu", dtype="float32")
    by_id = {sample.id: sample for sample in run.answers}
    prompts = [model.tokenizer.decode(by_id[id].prompt_ids) for id in material.ids]
    found = theirs(given.python, model, prompts, run.info["config"]["max_tokens"])
    mine, seconds = ours(run, material, model)
    alike = np.array(
        [
            a.strip() == t.answer.strip()
            for a, t in zip(found["answers"], material.texts, strict=True)
        ]
    )
    rows = [
        row("lm-polygraph", name, material.z, np.array(score), alike, found["seconds"][name])
        for name, score in found["scores"].items()
    ]
    rows += [
        row("anchorscope", n, material.z, mine.loc[list(material.ids), n].to_numpy(), alike, s)
        for n, s in ((name, seconds.get(name, np.nan)) for name in OURS)
    ]
    table = pd.DataFrame(rows)
    print(f"{given.data}: {len(alike)} answers, {alike.sum()} alike; CPU, float32")
    print(table.round(3).to_string(index=False))
    if given.json:
        given.json.write_text(table.to_json(orient="records", indent=1))


def row(who: str, name: str, z: np.ndarray, score: np.ndarray, alike: np.ndarray, s: float) -> dict:
    """One line of the table; seconds are for one answer."""
    use = alike & np.isfinite(score)
    of = auroc_interval(z[use], score[use], seed=0, resamples=1000)
    return {
        "by": who,
        "score": name,
        "n": of.n,
        "auroc": of.value,
        "low": of.low,
        "high": of.high,
        "seconds": s / len(z),
    }


if __name__ == "__main__":
    main()
