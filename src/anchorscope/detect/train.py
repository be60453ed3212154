"""Train a detector on a run: evaluate it on unseen entities, fit it, calibrate it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anchorscope.detect.calibration import (
    Calibration,
    Isotonic,
    Platt,
    best_threshold,
    risk_threshold,
    threshold_band,
)
from anchorscope.detect.evaluate import detectors_table, evaluate
from anchorscope.detect.kinds import AUTO, DEPLOYED, fit_all, make_method
from anchorscope.detect.material import from_run, join
from anchorscope.detect.prompts import Example
from anchorscope.detect.side_probes import FAR, learn_beliefs, learn_distance, learn_pre_answer
from anchorscope.errors import UserError, unknown
from anchorscope.probes.folds import MIN_OVERALL, check_classes, entity_folds
from anchorscope.progress import Progress
from anchorscope.run_folder.view import RunView

EXAMPLES = 8  # of each dataset
FEWEST = 3 * MIN_OVERALL  # right and wrong answers together
_MODEL = ("name", "source", "adapter", "revision", "weights", "dtype", "blocks", "width")
_EVALUATION = (
    "detector", "n", "wrong", "auroc", "auroc_low", "auroc_high", "auprc", "prr", "ece", "brier",
    "coverage_5", "coverage_10",
)  # fmt: skip
_PRE_ANSWER = ("n", "auroc", "auroc_low", "auroc_high")


def train(
    run: RunView,
    *,
    method: str,
    datasets: Sequence[str] | None,
    folds: int,
    seed: int,
    resamples: int,
    risk: float | None,
    calibration: Calibration,
    progress: Progress,
) -> dict[str, Any]:
    """Train and evaluate a detector of one kind, or the best of a few; its fields by name."""
    make_method(method)  # an error where there is none of that name
    if method not in (AUTO, *DEPLOYED):
        raise UserError(
            f"'{method}' is only compared (`detect eval`) and cannot be trained to score new "
            f"answers. Accepted: {', '.join((AUTO, *DEPLOYED))}."
        )
    if risk is not None and not 0 < risk < 1:
        raise UserError(f"risk is {risk:g}. Accepted: a share between 0 and 1, as 0.1.")
    names, aside = list(datasets or run.datasets), None
    for name in names:
        if name not in run.datasets:
            raise unknown("dataset of the run", name, run.datasets)
    answers = join([from_run(run, name, seed=seed) for name in names])
    if reason := make_method(method).lacks(answers):
        raise UserError(f"A detector '{method}' cannot be trained on {run.path}: {reason}.")
    if risk is not None:
        # Another seed than any fold's, so that the set aside is not drawn like a fold of the rest.
        third = entity_folds(answers.entities, folds=3, seed=seed + 104_729) == 0
        answers, aside = answers.take(~third), answers.take(third)
    if len(answers) < FEWEST:
        raise UserError(
            f"{len(answers)} answers are too few to train a detector on: {FEWEST} are needed, "
            f"{MIN_OVERALL} right and {MIN_OVERALL} wrong ones among them. Collect more."
        )
    check_classes(answers.z, dataset=answers.name)
    # The question-only probe evaluates the warning before the answer.
    compared = [n for n in (method, "question-only") if not make_method(n).lacks(answers)]
    scores = evaluate(
        [answers], names=compared, splits=("entity",), folds=folds, seed=seed, progress=progress
    )
    table = detectors_table(scores, model=run.model_name, seed=seed, resamples=resamples)
    numbers = {row["detector"]: row for row in table.to_dict("records")}
    progress.start("the detector of all answers", 3)
    fitted = fit_all(answers, (method,))[method]
    fitted = getattr(fitted, "best_", fitted)
    kind = Isotonic if calibration == "isotonic" else Platt
    line = fitted.calibration_ = kind.fit(fitted.inner_scores_, answers.z)
    progress.advance()
    held_out, distance = line.probability(fitted.inner_scores_), learn_distance(answers)
    threshold, promise = best_threshold(held_out, answers.z), None
    entity = np.array(answers.entities)
    low, high = threshold_band(held_out, answers.z, entity=entity, seed=answers.seed)
    # Where most answers are wrong (or right), the threshold separates them far from 0.5; even so no
    # answer is called right that is likelier wrong, or the reverse.
    low, high = min(low, 0.5), max(high, 0.5)
    if aside is not None and risk is not None:
        probability = line.probability(fitted.decision_function(aside))
        far = distance.place(aside.layer("clean", distance.layer)) >= FAR
        threshold, promise = risk_threshold(
            np.where(far, np.inf, probability), aside.z, np.array(aside.entities),
            risk=risk, cuts=held_out, seed=answers.seed,
        )  # fmt: skip
        low, high = threshold, max(threshold, high)
    progress.advance()
    evaluation = {key: _json_value(numbers[method][key]) for key in _EVALUATION}
    question = numbers.get("question-only", {})
    unsure = float(np.mean((held_out > low) & (held_out <= high)))
    given = bool(run.info.get("given_prompts"))
    found = {
        "name": fitted.short_name,
        "method": fitted,
        "model": {key: run.model.get(key) for key in _MODEL},
        "prompt": {
            "style": "given" if given else run.model.get("prompt", "text"),
            "shots": run.config.get("shots", 0),
            "max_tokens": run.config.get("max_tokens", 16),
            "finder": run.config.get("finder", "auto"),
        },
        "examples": tuple(
            Example(question=s.question.text, prompt_ids=s.prompt_ids, dataset=name)
            for name in (() if given else names)
            for s in [s for s in run.answers if s.question.dataset == name and s.usable][:EXAMPLES]
        ),
        "threshold": threshold,
        "band": (low, high),
        "promise": promise,
        "calibrated_on": (
            f"{calibration} calibration on held-out scores of {len(answers)} answers of "
            f"{', '.join(names)} by {run.model_name}, folds disjoint by entity"
        ),
        "trained_on": {"datasets": names, "answers": len(answers), "wrong": int(answers.z.sum())},
        "evaluation": evaluation | {"cannot_say": unsure},
        "beliefs": learn_beliefs(answers),
        "distance": distance,
        "pre_answer": learn_pre_answer(
            answers, {key: _json_value(question.get(key)) for key in _PRE_ANSWER}
        ),
    }
    progress.advance()
    return found


def _json_value(value: Any) -> Any:
    """Convert a NumPy value for JSON; NaN becomes null."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and np.isnan(value) else value
