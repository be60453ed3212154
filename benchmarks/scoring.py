"""What scoring adds to answering: the same questions answered alone, and answered and scored.

    python benchmarks/scoring.py RUN [--methods probe,mop] [--questions 64] [--repeats 3]

RUN is a finished run of the model; detectors are trained on its answers. Both ways take turns in
one process, and processor seconds are counted beside the wall's: neighbours on the machine change
those less.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from peers_clock import Clock

from anchorscope.answers.generate import Answerer
from anchorscope.detect.deployed.detector import Detector
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import read_prefix, shared_prefix
from anchorscope.models import load_model
from anchorscope.run_folder.view import RunView


def answer_alone(model, prompts: list[tuple[int, ...]], max_tokens: int) -> None:
    """The answers as a run writes them, and nothing else."""
    answerer, budget = Answerer(model, max_tokens=max_tokens), Budget.of(model)
    with Lease(model) as lease:
        stop = min(map(len, prompts)) - 1
        prefix = read_prefix(lease, shared_prefix(prompts, stop=stop))

        def work(batch: list[tuple[int, ...]]) -> None:
            answerer.answer(lease, prefix, [""] * len(batch), batch)

        def length(prompt: tuple[int, ...]) -> int:
            return len(prompt)

        for _ in in_batches(prompts, work, length=length, then=tuple, budget=budget):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--methods", default="probe,mop")
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    run = RunView.open(given.run, collected_ok=True)
    samples = run.answers[: given.questions]
    model = load_model(run.info["config"]["model"], dtype=run.model["dtype"])
    prompts = [s.prompt_ids for s in samples]
    found = {}
    for method in given.methods.split(","):
        detector = Detector.train(
            run, method=method, datasets=[samples[0].question.dataset], folds=3
        )
        asked = [s.question.text for s in samples]
        spent: dict[str, list[tuple[float, float]]] = {"alone": [], "scored": []}
        detector.score(model, asked[:2])  # to warm up
        for _ in range(given.repeats):
            clock = Clock()
            with clock.of("alone"):
                answer_alone(model, prompts, run.info["config"]["max_tokens"])
            with clock.of("scored"):
                detector.score(model, asked)
            for name, seen in spent.items():
                seen.append((clock.wall[name], clock.cpu[name]))
        alone, scored = (
            [statistics.median(column) for column in zip(*spent[name], strict=True)]
            for name in ("alone", "scored")
        )
        more = [100 * (b / a - 1) for a, b in zip(alone, scored, strict=True)]
        found[method] = {"alone": alone, "scored": scored, "percent": more}
        print(
            f"{method}: {len(samples)} answers in {alone[0]:.2f} s (processor {alone[1]:.2f}); "
            f"scored {scored[0]:.2f} s ({scored[1]:.2f}); more by {more[0]:.1f} % ({more[1]:.1f} %)"
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
