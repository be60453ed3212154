"""Train a detector on a run: learn from every surface, evaluate on unseen entities, calibrate.

An answer is learnt from as the model wrote it and once more in a form drawn for it, so that neither
probe nor token probability takes the form for an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.detect.compare import detectors_table
from anchorscope.detect.deployed.beliefs import Beliefs, learn_beliefs
from anchorscope.detect.deployed.pre_answer import PreAnswerProbe, learn_pre_answer
from anchorscope.detect.distance import FAR, Distance, learn_distance
from anchorscope.detect.evaluate import check_scores, fit_all, rows_of
from anchorscope.detect.inner_probes import choose, layer_scores
from anchorscope.detect.kinds import AUTO, DEPLOYED, make_method
from anchorscope.detect.kinds.probes import QuestionOnly
from anchorscope.detect.material import Material, join
from anchorscope.detect.method import Calibration, Method, calibrate
from anchorscope.detect.threshold import Cut, choose_cut
from anchorscope.errors import UserError
from anchorscope.parallel import in_parallel
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
class Trained:
    """What training found: the method, what is kept beside it, and how well it did."""

    method: Method
    cut: Cut
    forms: tuple[str, ...] | None  # in which answers were read well; None: not evaluated
    evaluation: dict[str, Any]
    beliefs: Beliefs
    distance: Distance
    pre_answer: PreAnswerProbe | None
    answers: int
    wrong: int


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers as the model wrote them, and the same ones in other forms, where they were read."""

    plain: Material
    surfaces: Material | None

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
        rng = np.random.default_rng(self.plain.seed)
        order = rng.permutation(len(self.surfaces))
        bases = np.array([self.surfaces.ids[n].rpartition("#")[0] for n in order])
        seen: Counter[str] = Counter()
        kept = [n for n, base in zip(order, bases, strict=True) if _count(seen, base) <= DRAWN]
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
) -> Trained:
    """A detector of one kind, or the best of a handful, with the evaluation it is accepted with."""
    progress = progress or Quiet()
    aside = None
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
    before = not QuestionOnly().lacks(plain)
    names = (method, "question-only") if before else (method,)
    rows, by_surface = _evaluate(answers, names, folds, seed, progress)
    table = detectors_table(rows, model=model, seed=seed, resamples=resamples)
    numbers = {row["detector"]: row for row in table.to_dict("records")}
    learn_from = answers.to_learn_from()
    progress.start("the detector of all answers", 3)
    fitted = fit_all(learn_from, (method,))[method]
    fitted = getattr(fitted, "best_", fitted)
    fitted.calibration_ = calibrate(calibration, fitted.inner_scores_, learn_from.z)
    progress.advance()
    distance = learn_distance(learn_from)
    line, held = fitted.calibration_, None
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
    evaluation = {key: json_value(numbers[method][key]) for key in _EVALUATION}
    forms = by_surface(cut.threshold)
    question = numbers.get("question-only", {})
    done = Trained(
        method=fitted,
        cut=cut,
        forms=_well_read(forms),
        evaluation=evaluation | forms | {"cannot_say": cut.cannot_say},
        beliefs=learn_beliefs(plain),
        distance=distance,
        pre_answer=learn_pre_answer(
            plain, {key: json_value(question.get(key)) for key in _PRE_ANSWER}
        ),
        answers=len(plain),
        wrong=int(plain.z.sum()),
    )
    progress.advance()
    return done


def _evaluate(
    answers: Answers, names: Sequence[str], folds: int, seed: int, progress: Progress
) -> tuple[pd.DataFrame, Any]:
    """Held-out scores of plain answers, and what tells the numbers of each surface by threshold.

    Folds are disjoint by entity. The question has no surface: its probe learns from plain answers.
    """
    fold = entity_folds(answers.plain.entities, folds=folds, seed=seed)
    method, *others = names
    progress.start(f"folds on {answers.plain.name}", folds)

    def one_fold(number: int) -> tuple[list[pd.DataFrame], pd.DataFrame]:
        train, test = answers.take(fold != number, seed=seed), answers.take(fold == number)
        one = fit_all(train.to_learn_from(), (method,))[method]
        fitted = {method: one} | fit_all(train.plain, others)
        rows = [
            rows_of(each, name, test.plain).assign(split="entity", fold=number)
            for name, each in fitted.items()
        ]
        every = test.plain if test.surfaces is None else join([test.plain, test.surfaces])
        score = one.decision_function(every)
        check_scores(method, score)
        probability = one.calibration_.probability(score)
        base = [t.id.rpartition("#")[0] if t.surface else t.id for t in every.texts]
        columns = {"base": base, "z": every.z, "surface": every.surfaces, "score": probability}
        return rows, pd.DataFrame(columns)

    done = in_parallel(one_fold, range(folds), progress=lambda finished, total: progress.advance())
    rows = pd.concat([frame for frames, _ in done for frame in frames], ignore_index=True)
    surfaces = pd.concat([frame for _, frame in done], ignore_index=True)

    def numbers(threshold: float) -> dict[str, float]:
        found: dict[str, float] = {}
        if answers.surfaces is None:
            return found
        others = list(set(surfaces["base"][surfaces["surface"] != ""]))
        for surface in dict.fromkeys(surfaces["surface"]):
            own = ((surfaces["surface"] == surface) & surfaces["base"].isin(others)).to_numpy()
            z, score = np.array(surfaces["z"])[own], np.array(surfaces["score"])[own]
            name = surface or "as-written"
            found[f"auroc {name}"] = float(auroc(z, score))
            found[f"right flagged {name}"] = float(np.mean(score[z == 0] > threshold))
        return found

    return rows, numbers


def _well_read(numbers: dict[str, float]) -> tuple[str, ...] | None:
    """The forms in which answers are told apart nearly as well as those that the model wrote."""
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


def _count(seen: Counter[str], key: str) -> int:
    seen[key] += 1
    return seen[key]


def check_method(method: str) -> None:
    """Raise a UserError where no detector of this kind can score new answers."""
    make_method(method)  # an error where there is none of that name
    if method not in (AUTO, *DEPLOYED):
        raise UserError(
            f"'{method}' is only compared (`detect eval`) and cannot be trained to score new "
            f"answers. Accepted: {', '.join((AUTO, *DEPLOYED))}."
        )


def json_value(value: Any) -> Any:
    """A value that JSON knows; NaN becomes null."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and np.isnan(value) else value
