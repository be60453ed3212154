"""From a run to a detector: fitted, calibrated, judged on held-out entities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import roc_curve

from anchorscope.detect.compare import detectors_table
from anchorscope.detect.deployed.beliefs import learn_beliefs
from anchorscope.detect.deployed.trained import Example, Trained
from anchorscope.detect.evaluate import evaluate
from anchorscope.detect.kinds import AUTO, METHODS, make_method, short_name
from anchorscope.detect.material import from_run, join
from anchorscope.detect.method import Method
from anchorscope.errors import UserError, unknown
from anchorscope.probes.folds import check_classes
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.view import RunView

EXAMPLES = 8
_KEPT = ("name", "source", "adapter", "revision", "weights", "dtype", "blocks", "width")
_REPORTED = (
    "detector", "n", "wrong", "auroc", "auroc_low", "auroc_high", "auprc", "ece", "brier",
    "coverage_5", "coverage_10",
)  # fmt: skip


def train(
    run: RunView,
    *,
    method: str = AUTO,
    datasets: Sequence[str] | None = None,
    folds: int = 5,
    seed: int = 0,
    resamples: int = 1000,
    licence: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> Trained:
    """A detector trained on the answers of a run, with the evaluation it is accepted with."""
    names = list(datasets or run.datasets)
    for name in names:
        if name not in run.datasets:
            raise unknown("dataset of the run", name, run.datasets)
    progress = progress or Quiet()
    detector = make_method(method)
    if not detector.deployable:
        raise UserError(
            f"'{method}' needs what only a run folder has, so it cannot score new answers. "
            f"Accepted: {', '.join((AUTO, *deployable()))}."
        )
    material = join([from_run(run, name, seed=seed) for name in names])
    check_classes(material.z, dataset=material.name)
    if reason := detector.lacks(material):
        raise UserError(
            f"'{method}' cannot be trained on '{run.path}': {reason}. Take another --method, or a "
            "run of `anchorscope detect collect`."
        )
    options = {"names": (method,), "splits": ("entity",), "folds": folds, "seed": seed}
    scores = evaluate(material, **options, progress=progress)
    table = detectors_table(scores, model=run.model_name, seed=seed, resamples=resamples)
    (row,) = table.to_dict("records")
    detector.fit(material)
    chosen = getattr(detector, "best_", detector)
    return Trained(
        name=short_name(detector),
        method=chosen,
        model={key: run.model.get(key) for key in _KEPT},
        prompt=_prompt(run, names[0]),
        examples=_examples(run, names[0]),
        threshold=best_threshold(detector, material.z),
        calibrated_on=(
            f"Platt's line on held-out scores of {len(material)} answers of {', '.join(names)} "
            f"by {run.model_name}, folds disjoint by entity"
        ),
        trained_on={"datasets": names, "answers": len(material), "wrong": int(material.z.sum())},
        evaluation={key: _plain(row[key]) for key in _REPORTED},
        beliefs=learn_beliefs(material),
        licence=licence or {"detector": "other", "model": "not recorded", "data": "not recorded"},
    )


def deployable() -> tuple[str, ...]:
    """Short names of the detectors that can score an answer outside a run folder."""
    return tuple(name for name, make in METHODS.items() if make().deployable)


def best_threshold(method: Method, z: np.ndarray) -> float:
    """The probability above which to flag: where both classes are told apart best.

    The largest sum of the shares of wrong and right answers on their own side (Youden), on
    held-out training answers.
    """
    probability = method.calibration_.probability(method.inner_scores_)
    false, true, cut = roc_curve(z, probability)
    best = int(np.argmax(true - false))
    # Infinite where flagging nobody is best; no probability is above 1.
    least = min(float(cut[best]), 1.0)
    # Flagged means above the threshold: half-way to the next lower probability that was seen.
    lower = probability[probability < least]
    return float((least + lower.max()) / 2) if len(lower) else 0.0


def _prompt(run: RunView, dataset: str) -> dict[str, Any]:
    config = run.config
    return {
        "style": run.model.get("prompt", "text"),
        "shots": config.get("shots", 0),
        "max_tokens": config.get("max_tokens", 16),
        "finder": config.get("finder", "auto"),
        "dataset": dataset,
    }


def _examples(run: RunView, dataset: str) -> tuple[Example, ...]:
    """The first questions of the dataset whose answers are usable, with their prompts."""
    own = [s for s in run.answers if s.question.dataset == dataset and s.usable]
    return tuple(Example(question=s.question.text, prompt_ids=s.prompt_ids) for s in own[:EXAMPLES])


def _plain(value: Any) -> Any:
    """A value that JSON knows; NaN becomes null."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and np.isnan(value) else value
