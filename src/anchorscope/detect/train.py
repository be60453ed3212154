"""From a run to a detector: fitted, calibrated, judged on held-out entities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anchorscope.detect.compare import detectors_table
from anchorscope.detect.deployed.before import learn_before
from anchorscope.detect.deployed.beliefs import learn_beliefs
from anchorscope.detect.deployed.trained import Example, Trained
from anchorscope.detect.distance import learn_distance
from anchorscope.detect.evaluate import evaluate
from anchorscope.detect.kinds import AUTO, DEPLOYED, make_method, short_name
from anchorscope.detect.kinds.probes import QuestionOnly
from anchorscope.detect.material import Material, from_run, join
from anchorscope.detect.method import Method
from anchorscope.detect.threshold import Promise, best_threshold, risk_threshold, threshold_band
from anchorscope.errors import UserError, unknown
from anchorscope.probes.folds import check_classes, entity_folds
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.view import RunView

EXAMPLES = 8
WARNING = "question-only"
_WARNED = ("n", "auroc", "auroc_low", "auroc_high")
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
    risk: float | None = None,
    licence: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> Trained:
    """A detector trained on the answers of a run, with the evaluation it is accepted with.

    With a `risk`, a third of the answers is set aside to choose a threshold up to which at most
    that share of the answers is wrong.
    """
    names = list(datasets or run.datasets)
    for name in names:
        if name not in run.datasets:
            raise unknown("dataset of the run", name, run.datasets)
    progress = progress or Quiet()
    detector = make_method(method)
    if method not in (AUTO, *DEPLOYED):
        raise UserError(
            f"'{method}' is only compared (`detect eval`) and cannot be trained to score new "
            f"answers. Accepted: {', '.join((AUTO, *DEPLOYED))}."
        )
    material = join([from_run(run, name, seed=seed) for name in names])
    calibration = None
    if risk is not None:
        material, calibration = _set_aside(material, risk)
    check_classes(material.z, dataset=material.name)
    if reason := detector.lacks(material):
        raise UserError(
            f"'{method}' cannot be trained on '{run.path}': {reason}. Take another --method, or a "
            "run of `anchorscope detect collect`."
        )
    tried = (method,) if QuestionOnly().lacks(material) else (method, WARNING)
    options = {"names": tried, "splits": ("entity",), "folds": folds, "seed": seed}
    scores = evaluate(material, **options, progress=progress)
    table = detectors_table(scores, model=run.model_name, seed=seed, resamples=resamples)
    rows = {row["detector"]: row for row in table.to_dict("records")}
    row, warning = rows[method], rows.get(WARNING, {})
    detector.fit(material)
    cut = _cut(detector, material, calibration, risk)
    return Trained(
        name=short_name(detector),
        method=getattr(detector, "best_", detector),
        model={key: run.model.get(key) for key in _KEPT},
        prompt=_prompt(run),
        examples=tuple(example for name in names for example in _examples(run, name)),
        threshold=cut.threshold,
        band=cut.band,
        promise=cut.promise,
        calibrated_on=(
            f"Platt's line on held-out scores of {len(material)} answers of {', '.join(names)} "
            f"by {run.model_name}, folds disjoint by entity"
        ),
        trained_on={"datasets": names, "answers": len(material), "wrong": int(material.z.sum())},
        evaluation={key: _plain(row[key]) for key in _REPORTED} | {"cannot_say": cut.cannot_say},
        beliefs=learn_beliefs(material),
        distance=learn_distance(material),
        before=learn_before(material, {key: _plain(warning.get(key)) for key in _WARNED}),
        licence=licence or {"detector": "other", "model": "not recorded", "data": "not recorded"},
    )


class _Cut(NamedTuple):
    """Where the probability is cut."""

    threshold: float
    band: tuple[float, float]
    promise: Promise | None
    cannot_say: float  # share of held-out training answers


def _set_aside(material: Material, risk: float) -> tuple[Material, Material]:
    """The answers to train on, and a third about other things to calibrate the threshold on."""
    if not 0 < risk < 1:
        raise UserError(f"risk is {risk:g}. Accepted: a share between 0 and 1, as 0.1.")
    # Another seed than any fold's: the set aside is no fold of what is left.
    third = entity_folds(material.entities, folds=3, seed=material.seed + 104_729) == 0
    return material.take(~third), material.take(third)


def _cut(
    detector: Method, material: Material, calibration: Material | None, risk: float | None
) -> _Cut:
    line, entity = detector.calibration_, np.array(material.entities)
    held_out = line.probability(detector.inner_scores_)
    threshold, promise = best_threshold(held_out, material.z), None
    low, high = threshold_band(held_out, material.z, entity=entity, seed=material.seed)
    if calibration is not None and risk is not None:
        probability = line.probability(detector.decision_function(calibration))
        threshold, promise = risk_threshold(probability, calibration.z, risk=risk, cuts=held_out)
        low, high = threshold, max(threshold, high)
    unsure = float(np.mean((held_out > low) & (held_out <= high)))
    return _Cut(threshold, (low, high), promise, unsure)


def _prompt(run: RunView) -> dict[str, Any]:
    config = run.config
    return {
        "style": run.model.get("prompt", "text"),
        "shots": config.get("shots", 0),
        "max_tokens": config.get("max_tokens", 16),
        "finder": config.get("finder", "auto"),
    }


def _examples(run: RunView, dataset: str) -> tuple[Example, ...]:
    """The first questions of the dataset whose answers are usable, with their prompts."""
    own = [s for s in run.answers if s.question.dataset == dataset and s.usable]
    return tuple(
        Example(question=s.question.text, prompt_ids=s.prompt_ids, dataset=dataset)
        for s in own[:EXAMPLES]
    )


def _plain(value: Any) -> Any:
    """A value that JSON knows; NaN becomes null."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and np.isnan(value) else value
