"""Make semi-synthetic worlds: plant a law of the knockout on a finished run's clean states.

States, classes and labels are real; only the effect of a knockout is simulated. It displaces a
state by the run's own displacement of another sample of the same predicted class, and removes the
belief of the chosen samples along the direction between the class means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from anchorscope.config import Config
from anchorscope.errors import UserError, unknown
from anchorscope.probes.folds import Covariates, labelled
from anchorscope.records import Sample
from anchorscope.run_folder.states import StateBank
from anchorscope.run_folder.view import RunView, records, where

Law = Literal[
    "one-law",  # the run's own displacements, each sample's given to another
    "two-pathways",  # a share loses its belief
    "coin-toss",  # half lose it, drawn again at every pass
    "finder-misses",  # all lose it, but the exact tokens of some were not found
    "relation",
    "popularity",
    "length",
    "interaction",  # one half of the relations where long, the other where short
]
LAWS: tuple[Law, ...] = get_args(Law)
_PASSES = ("clean", "knockout", "neutral", "question", "retest", "retest-knockout")


@dataclass(frozen=True, kw_only=True)
class RealStates:
    """The states of a dataset [question, layer, width] by pass, at the layers of its finding."""

    states: dict[str, np.ndarray]
    samples: list[Sample]
    z: np.ndarray
    covariates: Covariates


def real_states(run: RunView, dataset: str) -> RealStates:
    """Read a finished run's states of one dataset, of the samples that have a knocked-out one."""
    rows = records(where(run.findings, dataset=dataset))
    if not rows:
        raise unknown("dataset", dataset, run.datasets)
    answers = labelled(run.answers, dataset, Config.restore(dict(run.config)))
    bank = StateBank(run.path, list(answers.ids))
    layers = [int(layer) for layer in str(rows[0]["layers"]).split()]
    states = {
        name: np.stack([bank.layer(name, layer) for layer in layers], axis=1).astype(np.float64)
        for name in _PASSES
        if name in bank.names
    }
    cut = np.asarray(np.isfinite(states["knockout"]).all(axis=(1, 2)))
    by_id = {sample.id: sample for sample in run.answers}
    return RealStates(
        states={name: values[cut] for name, values in states.items()},
        samples=[by_id[id] for id, has in zip(answers.ids, cut, strict=True) if has],
        z=answers.z[cut],
        covariates=answers.covariates.take(cut),
    )


def plant_law(
    real: RealStates,
    law: Law,
    *,
    share: float = 0.5,
    lost: float = 1.0,
    missed: float = 0.3,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Simulate the states of every pass under a planted law; `lost` is the share of belief lost."""
    if law not in LAWS:
        raise unknown("law", law, LAWS)
    rng = np.random.default_rng(seed)
    clean, n = real.states["clean"], len(real.z)
    means = [clean[real.z == which].mean(axis=0) for which in (0, 1)]
    axis = means[1] - means[0]
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    belief = np.einsum("nlw,lw->nl", clean - (means[0] + means[1]) / 2, axis)
    wrong = belief.mean(axis=1) > 0
    jolts = _displacements(real, wrong, whole=law == "one-law")
    dose = np.zeros(n) if law == "one-law" else _dose(real.covariates, law, share, rng)
    found = dose * (rng.random(n) >= missed) if law == "finder-misses" else dose

    def cut(before: np.ndarray, part: np.ndarray) -> np.ndarray:
        if law == "coin-toss":
            part = (rng.random(n) < share).astype(float)
        donor = np.arange(n)
        for mine in (wrong, ~wrong):
            donor[mine] = rng.permutation(donor[mine])
        gone = lost * part[:, None] * belief
        return before + jolts[donor] - gone[..., None] * axis

    states = {"clean": clean, "knockout": cut(clean, found), "question": cut(clean, dose)}
    if "neutral" in real.states:
        states["neutral"] = real.states["neutral"]
    if "retest" in real.states:
        again = real.states["retest"]
        states |= {"retest": again, "retest-knockout": cut(again, found)}
    return {name: values.astype(np.float32) for name, values in states.items()}


def _displacements(real: RealStates, wrong: np.ndarray, *, whole: bool) -> np.ndarray:
    """Measure each state's displacement under the run's knockout: `whole`, or its noise alone.

    The noise is the difference from the displacement in the retest, over the square root of 2;
    without a retest, the difference from the mean of the predicted class.
    """
    states = real.states
    moved = states["knockout"] - states["clean"]
    if whole:
        return moved
    apart = moved.copy()
    for mine in (wrong, ~wrong):
        apart[mine] -= moved[mine].mean(axis=0)
    if "retest" in states and "retest-knockout" in states:
        twice = (moved - (states["retest-knockout"] - states["retest"])) / np.sqrt(2)
        both = np.isfinite(twice).all(axis=(1, 2))
        apart[both] = twice[both]
    return apart


def _dose(covariates: Covariates, law: Law, share: float, rng: np.random.Generator) -> np.ndarray:
    """Choose the samples that lose their belief, [question] 0 or 1."""
    n = len(covariates.prompt_length)
    doses: dict[str, Callable[[], np.ndarray]] = {
        "two-pathways": lambda: rng.random(n) < share,
        "coin-toss": lambda: np.zeros(n),
        "finder-misses": lambda: np.ones(n),
        "relation": lambda: _half_of_relations(covariates, rng),
        "popularity": lambda: _above_middle(covariates.log_popularity, "popularity"),
        "length": lambda: _above_middle(covariates.prompt_length, "length"),
        "interaction": lambda: (
            _half_of_relations(covariates, rng) ^ _above_middle(covariates.prompt_length, "length")
        ),
    }
    return doses[law]().astype(float)


def _half_of_relations(covariates: Covariates, rng: np.random.Generator) -> np.ndarray:
    relation = covariates.relation
    if relation is None or len(names := np.unique(relation)) < 2:
        raise UserError("This run's questions are of one relation. Plant another law on it.")
    return np.isin(relation, rng.permutation(names)[: len(names) // 2])


def _above_middle(values: np.ndarray, name: str) -> np.ndarray:
    if not (np.isfinite(values).any() and np.nanstd(values) > 0):
        raise UserError(f"The {name} of this run's questions does not vary. Plant another law.")
    return np.nan_to_num(values, nan=-np.inf) > np.nanmedian(values)
