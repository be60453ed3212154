"""Train a detector on a run: learn from every surface, evaluate on unseen entities, calibrate.

An answer is learnt from as the model wrote it and once more in a form drawn for it, so that neither
probe nor token probability takes the form for an error.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.detect.calibration import Calibration, Isotonic, Platt, choose_cut
from anchorscope.detect.evaluate import Trial, fit_and_score
from anchorscope.detect.inner_probes import choose, layer_scores
from anchorscope.detect.kinds import AUTO, DEPLOYED, QuestionOnly, fit_all, make_method
from anchorscope.detect.material import Material, join
from anchorscope.detect.side_probes import FAR, learn_beliefs, learn_distance, learn_pre_answer
from anchorscope.detect.tables import detectors_table
from anchorscope.errors import UserError
from anchorscope.probes.folds import MIN_OVERALL, check_classes, entity_folds
from anchorscope.progress import Progress, Quiet
from anchorscope.stats.ranking import auroc

DRAWN = 2  # surfaces of every answer that are learnt from
# A form is read where it is told apart nearly as well as the answers that the model wrote.
WORSE_AUROC, MORE_FLAGGED = 0.02, 0.05
FEWEST = 3 * MIN_OVERALL  # right and wrong answers together
_EVALUATION = (
    "detector", "n", "wrong", "auroc", "auroc_low", "auroc_high", "auprc", "ece", "brier",
    "coverage_5", "coverage_10",
)  # fmt: skip
_PRE_ANSWER = ("n", "auroc", "auroc_low", "auroc_high")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers as the model wrote them, and the same ones in other forms, where they were read."""

    plain: Material
    surfaces: Material | None

    @property
    def every(self) -> Material:
        """Both together."""
        return self.plain if self.surfaces is None else join([self.plain, self.surfaces])

    def take(self, rows: np.ndarray, *, seed: int | None = None) -> Answers:
        """Those about the entities of these rows of the plain answers, bool [question]."""
        own = {entity.casefold() for entity in np.array(self.plain.entities)[rows]}
        surfaces = self.surfaces
        if surfaces is not None:
            keep = np.array([entity.casefold() in own for entity in surfaces.entities])
            surfaces = surfaces.take(keep)
        return Answers(plain=self.plain.take(rows, seed=seed), surfaces=surfaces)

    def to_learn_from(self) -> Material:
        """Every answer as it was written, and again on surfaces drawn by the seed.

        Layers and strength are chosen on the answers as written: that is most of the time.
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
    answers: Answers,
    *,
    method: str,
    model: str,
    folds: int,
    seed: int,
    resamples: int,
    risk: float | None,
    calibration: Calibration,
    progress: Progress | None,
) -> dict[str, Any]:
    """The fields of a `Detector` of one kind, or of the best of a handful, with its evaluation.

    And how many `answers` it was trained on, and how many of these are `wrong`.
    """
    progress, aside = progress or Quiet(), None
    if risk is not None:
        if not 0 < risk < 1:
            raise UserError(f"risk is {risk:g}. Accepted: a share between 0 and 1, as 0.1.")
        # Another seed than any fold's: the set aside is no fold of what is left.
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
    table = detectors_table(as_written, model=model, seed=seed, resamples=resamples)
    numbers = {row["detector"]: row for row in table.to_dict("records")}
    progress.start("the detector of all answers", 3)
    learn_from = answers.to_learn_from()
    fitted = fit_all(learn_from, (method,))[method]
    fitted = getattr(fitted, "best_", fitted)
    kind = Isotonic if calibration == "isotonic" else Platt
    line = fitted.calibration_ = kind.fit(fitted.inner_scores_, learn_from.z)
    progress.advance()
    distance, held = learn_distance(learn_from), None
    if aside is not None:
        probability = line.probability(fitted.decision_function(aside))
        far = distance.place(aside.layer("clean", distance.layer)) >= FAR
        held = np.where(far, np.inf, probability), aside.z, np.array(aside.entities)
    cut = choose_cut(
        line.probability(fitted.inner_scores_),
        learn_from.z,
        entity=np.array(learn_from.entities),
        seed=plain.seed,
        risk=risk,
        calibration=held,
    )
    progress.advance()
    by_surface = _numbers_by_surface(scores[scores["detector"] == method], cut.threshold)
    evaluation = {key: _json_value(numbers[method][key]) for key in _EVALUATION}
    question = numbers.get("question-only", {})
    found = {
        "method": fitted,
        "threshold": cut.threshold,
        "band": cut.band,
        "promise": cut.promise,
        "forms": _well_read(by_surface),
        "evaluation": evaluation | by_surface | {"cannot_say": cut.cannot_say},
        "beliefs": learn_beliefs(plain),
        "distance": distance,
        "pre_answer": learn_pre_answer(
            plain, {key: _json_value(question.get(key)) for key in _PRE_ANSWER}
        ),
        "answers": len(plain),
        "wrong": int(plain.z.sum()),
    }
    progress.advance()
    return found


def _held_out_scores(
    answers: Answers, method: str, folds: int, seed: int, progress: Progress
) -> pd.DataFrame:
    """Scores of the answers in every form, and of the questions, by fits on other entities.

    The question has no form: its probe learns from plain answers.
    """
    fold = entity_folds(answers.plain.entities, folds=folds, seed=seed)
    tests, names = [], []
    for n in range(folds):
        learn, held = answers.take(fold != n, seed=seed), answers.take(fold == n)
        tests.append(Trial(learn.to_learn_from(), held.every, fold=n))
        names.append([method])
        if not QuestionOnly().lacks(answers.plain):
            tests.append(Trial(learn.plain, held.plain, fold=n))
            names.append(["question-only"])
    progress.start(f"folds on {answers.plain.name}", len(tests))
    return pd.concat(fit_and_score(tests, names, progress), ignore_index=True)


def _numbers_by_surface(scores: pd.DataFrame, threshold: float) -> dict[str, float]:
    """AUROC and the share of right answers above the threshold, of each form on the same answers.

    None where no answer was read in another form.
    """
    # By the id of the answer as written, so that all forms are counted on the same answers.
    forms: dict[str, dict[str, dict[Any, Any]]] = {}
    for row in scores.to_dict("records"):
        base = row["id"].rpartition("#")[0] if row["surface"] else row["id"]
        forms.setdefault(row["surface"], {})[base] = row
    others = {base for surface, own in forms.items() if surface for base in own}
    found: dict[str, float] = {}
    for surface, own in forms.items() if others else ():
        rows = [row for base, row in own.items() if base in others]
        z, probability = (np.array([row[key] for row in rows]) for key in ("z", "probability"))
        name = surface or "as-written"
        found[f"auroc {name}"] = float(auroc(z, probability))
        found[f"right flagged {name}"] = float(np.mean(probability[z == 0] > threshold))
    return found


def _well_read(numbers: dict[str, float]) -> tuple[str, ...] | None:
    """Choose the answer forms that are scored nearly as well as the model's own answers."""
    names = [name.removeprefix("auroc ") for name in numbers if name.startswith("auroc ")]
    if not names:
        return None
    area, flagged = numbers["auroc as-written"], numbers["right flagged as-written"]
    return tuple(
        name
        for name in names
        if numbers[f"auroc {name}"] >= area - WORSE_AUROC
        and abs(numbers[f"right flagged {name}"] - flagged) <= MORE_FLAGGED
    )


def check_method(method: str) -> None:
    """Raise a UserError where no detector of this kind can score new answers."""
    make_method(method)  # an error where there is none of that name
    if method not in (AUTO, *DEPLOYED):
        raise UserError(
            f"'{method}' is only compared (`detect eval`) and cannot be trained to score new "
            f"answers. Accepted: {', '.join((AUTO, *DEPLOYED))}."
        )


def _json_value(value: Any) -> Any:
    """A value that JSON knows; NaN becomes null."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and np.isnan(value) else value
