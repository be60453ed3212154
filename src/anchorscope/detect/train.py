"""Train a detector on a run: learn from every surface, evaluate on unseen entities, calibrate.

Detectors learn from each answer as the model wrote it and in two other forms drawn for it, so that
neither probe nor token probability mistakes the form for an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.detect.calibration import (
    Calibration,
    Isotonic,
    Platt,
    best_threshold,
    risk_threshold,
    threshold_band,
)
from anchorscope.detect.evaluate import Trial, fit_and_score
from anchorscope.detect.inner_probes import choose, layer_scores
from anchorscope.detect.kinds import AUTO, DEPLOYED, fit_all, make_method
from anchorscope.detect.material import Material, from_run, join, surfaces_of
from anchorscope.detect.prompts import Example
from anchorscope.detect.side_probes import FAR, learn_beliefs, learn_distance, learn_pre_answer
from anchorscope.detect.tables import detectors_table
from anchorscope.errors import UserError, unknown
from anchorscope.probes.folds import MIN_OVERALL, check_classes, entity_folds
from anchorscope.progress import Progress
from anchorscope.run_folder.view import RunView
from anchorscope.stats.ranking import auroc

DRAWN = 2  # surfaces of every answer that are learnt from
EXAMPLES = 8  # of each dataset
# A form is accepted if its AUROC and flag rate are near those of the answers as written.
WORSE_AUROC, MORE_FLAGGED = 0.02, 0.05
FEWEST = 3 * MIN_OVERALL  # right and wrong answers together
_MODEL = ("name", "source", "adapter", "revision", "weights", "dtype", "blocks", "width")
_EVALUATION = (
    "detector", "n", "wrong", "auroc", "auroc_low", "auroc_high", "auprc", "prr", "ece", "brier",
    "coverage_5", "coverage_10",
)  # fmt: skip
_PRE_ANSWER = ("n", "auroc", "auroc_low", "auroc_high")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers as the model wrote them, and the same ones in other surface forms, if stored."""

    plain: Material
    surfaces: Material | None

    @property
    def every(self) -> Material:
        """The plain answers and their surface forms as one material."""
        return self.plain if self.surfaces is None else join([self.plain, self.surfaces])

    def take(self, rows: np.ndarray, *, seed: int | None = None) -> Answers:
        """Select the answers about the entities of these rows of `plain`, bool [question]."""
        own = {entity.casefold() for entity in np.array(self.plain.entities)[rows]}
        surfaces = self.surfaces
        if surfaces is not None:
            keep = np.array([entity.casefold() in own for entity in surfaces.entities])
            surfaces = surfaces.take(keep)
        return Answers(plain=self.plain.take(rows, seed=seed), surfaces=surfaces)

    def to_learn_from(self) -> Material:
        """The training material: every answer as written, and in surface forms drawn by the seed.

        Layers and strength are chosen on the answers as written alone, since that takes longest.
        """
        if self.surfaces is None:
            return self.plain
        order = np.random.default_rng(self.plain.seed).permutation(len(self.surfaces))
        seen: Counter[str] = Counter()
        kept = []
        for n in order:
            base = self.surfaces.ids[n].rpartition("#")[0]
            seen[base] += 1
            if seen[base] <= DRAWN:
                kept.append(n)
        material = join([self.plain, self.surfaces.take(np.sort(kept))])
        material.memo["choice", "clean"] = choose(self.plain)
        material.memo["layers", "clean"] = layer_scores(self.plain)
        return material


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
    parts = [from_run(run, name, seed=seed) for name in names]
    others = [part for one in parts if (part := surfaces_of(run, one)) is not None]
    answers = Answers(plain=join(parts), surfaces=join(others) if others else None)
    if reason := make_method(method).lacks(answers.plain):
        raise UserError(f"A detector '{method}' cannot be trained on {run.path}: {reason}.")
    if risk is not None:
        # Another seed than any fold's, so that the set aside is not drawn like a fold of the rest.
        third = entity_folds(answers.plain.entities, folds=3, seed=seed + 104_729) == 0
        answers, aside = answers.take(~third), answers.plain.take(third)
    plain = answers.plain
    if len(plain) < FEWEST:
        raise UserError(
            f"{len(plain)} answers are too few to train a detector on: {FEWEST} are needed, "
            f"{MIN_OVERALL} right and {MIN_OVERALL} wrong ones among them. Collect more."
        )
    check_classes(plain.z, dataset=plain.name)
    scores: Any = _held_out_scores(answers, method, folds, seed, progress)
    as_written = scores[scores["surface"] == ""].assign(dataset=plain.name)
    table = detectors_table(as_written, model=run.model_name, seed=seed, resamples=resamples)
    numbers = {row["detector"]: row for row in table.to_dict("records")}
    progress.start("the detector of all answers", 3)
    learn_from = answers.to_learn_from()
    fitted = fit_all(learn_from, (method,))[method]
    fitted = getattr(fitted, "best_", fitted)
    kind = Isotonic if calibration == "isotonic" else Platt
    line = fitted.calibration_ = kind.fit(fitted.inner_scores_, learn_from.z)
    progress.advance()
    held_out, distance = line.probability(fitted.inner_scores_), learn_distance(learn_from)
    threshold, promise = best_threshold(held_out, learn_from.z), None
    entity = np.array(learn_from.entities)
    low, high = threshold_band(held_out, learn_from.z, entity=entity, seed=plain.seed)
    if aside is not None and risk is not None:
        probability = line.probability(fitted.decision_function(aside))
        far = distance.place(aside.layer("clean", distance.layer)) >= FAR
        threshold, promise = risk_threshold(
            np.where(far, np.inf, probability), aside.z, np.array(aside.entities),
            risk=risk, cuts=held_out, seed=plain.seed,
        )  # fmt: skip
        low, high = threshold, max(threshold, high)
    progress.advance()
    by_surface, forms = _by_surface(scores[scores["detector"] == method], threshold)
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
        "forms": forms,
        "calibrated_on": (
            f"{calibration} calibration on held-out scores of {len(plain)} answers of "
            f"{', '.join(names)} by {run.model_name}, folds disjoint by entity"
        ),
        "trained_on": {"datasets": names, "answers": len(plain), "wrong": int(plain.z.sum())},
        "evaluation": evaluation | by_surface | {"cannot_say": unsure},
        "beliefs": learn_beliefs(plain),
        "distance": distance,
        "pre_answer": learn_pre_answer(
            plain, {key: _json_value(question.get(key)) for key in _PRE_ANSWER}
        ),
    }
    progress.advance()
    return found


def _held_out_scores(
    answers: Answers, method: str, folds: int, seed: int, progress: Progress
) -> pd.DataFrame:
    """Held-out scores of the answers in every form, and of the question-only probe.

    Folds are disjoint by entity. The question-only probe learns from plain answers alone.
    """
    fold = entity_folds(answers.plain.entities, folds=folds, seed=seed)
    tests, names = [], []
    for n in range(folds):
        learn, held = answers.take(fold != n, seed=seed), answers.take(fold == n)
        tests.append(Trial(learn.to_learn_from(), held.every, fold=n))
        names.append([method])
        if not make_method("question-only").lacks(answers.plain):
            tests.append(Trial(learn.plain, held.plain, fold=n))
            names.append(["question-only"])
    progress.start(f"folds on {answers.plain.name}", len(tests))
    return pd.concat(fit_and_score(tests, names, progress), ignore_index=True)


def _by_surface(
    scores: pd.DataFrame, threshold: float
) -> tuple[dict[str, float], tuple[str, ...] | None]:
    """Evaluate each surface form on the same answers, and list the forms that are scored well.

    The numbers are AUROC and the share of right answers above the threshold; the forms are those
    scored nearly as well as the model's own, None if no form was read.
    """
    pairs = zip(scores["id"], scores["surface"], strict=True)
    base = np.array([id.removesuffix(f"#{form}") if form else id for id, form in pairs])
    read = scores[np.isin(base, base[(scores["surface"] != "").to_numpy()])]
    areas, flagged = {}, {}
    groups: Any = read.groupby("surface", sort=False)
    for form, rows in groups:
        z, probability = rows["z"].to_numpy(), rows["probability"].to_numpy(dtype=float)
        areas[form or "as-written"] = float(auroc(z, probability))
        flagged[form or "as-written"] = float(np.mean(probability[z == 0] > threshold))
    if not areas:
        return {}, None
    usual, often = areas["as-written"], flagged["as-written"]
    well_read = [
        form
        for form in areas
        if areas[form] >= usual - WORSE_AUROC and abs(flagged[form] - often) <= MORE_FLAGGED
    ]
    numbers = {f"auroc {form}": area for form, area in areas.items()}
    return numbers | {f"right flagged {f}": share for f, share in flagged.items()}, tuple(well_read)


def _json_value(value: Any) -> Any:
    """Convert a NumPy value for JSON; NaN becomes null."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and np.isnan(value) else value
