"""Effects of an intervention on a probe's prediction: ΔP, flips, pathways, and their tables.

The columns of the tables, in their order, are a contract with every reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast, get_args

import numpy as np
import pandas as pd
from scipy.special import expit

from anchorscope.config import Delta, unit_of
from anchorscope.errors import UserError
from anchorscope.probes.folds import training_rows
from anchorscope.probes.probe_set import Readings
from anchorscope.records import MODES, Estimate, Mode, Pathway
from anchorscope.run_folder import table_columns
from anchorscope.stats.intervals import bootstrap_mean, rate
from anchorscope.stats.ranking import accuracy, auroc_interval

PATHWAYS: tuple[Pathway, ...] = get_args(Pathway)
CONTROLS = (
    "knockout", "neutral", "content", "question", "answer-only", "retest", "retest-knockout",
)  # fmt: skip


def prediction(clean_logit: np.ndarray) -> np.ndarray:
    """ŷ of each clean logit: 1.0 (wrong) above zero, else 0.0 (right); NaN stays NaN."""
    clean = np.asarray(clean_logit, dtype=np.float64)
    return np.where(np.isnan(clean), np.nan, (clean > 0).astype(np.float64))


def flips(clean_logit: np.ndarray, other_logit: np.ndarray) -> np.ndarray:
    """Whether an intervention flips the prediction: 1.0 or 0.0, NaN where unknown."""
    return np.abs(prediction(clean_logit) - prediction(other_logit))


def delta_p(
    clean_logit: np.ndarray, other_logit: np.ndarray, *, delta: Delta = "points"
) -> np.ndarray:
    """ΔP: the change in the probability of the clean prediction ŷ, in the shape of the logits.

    "points": 100 · (P'(ŷ) − P(ŷ)); "relative": the same divided by P(ŷ); "logit": the change of
    the logit, signed towards ŷ. Negative: the intervention took support away.
    """
    towards = np.where(prediction(clean_logit) == 1, 1.0, -1.0)
    before = towards * np.asarray(clean_logit, dtype=np.float64)
    after = towards * np.asarray(other_logit, dtype=np.float64)
    if delta == "logit":
        return after - before
    points = 100 * _expit_difference(after, before)
    return points if delta == "points" else points / expit(before)


def _expit_difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """σ(x) − σ(y), exact to rounding also where both are close to 0 or to 1.

    Subtracting would lose every digit there: σ(40) and σ(50) are the same number.
    """
    high, low = np.maximum(x, y), np.minimum(x, y)
    return np.sign(x - y) * expit(high) * expit(-low) * -np.expm1(low - high)


class Roles(NamedTuple):
    """The probes of a mode that give the group and the effect."""

    group: str
    effect: str


# Paper mode reads both from one probe, so noise that flips a sample also counts as its effect.
# In strict mode the two share no training question.
ROLES: dict[Mode, Roles] = {"paper": Roles("paper", "paper"), "strict": Roles("a", "b")}


def pathways(readings: Readings, *, probe: str) -> np.ndarray:
    """The pathway of each sample by one probe, [question, layer].

    "Q" where the knockout flips the prediction, "A" where not, None without a knocked-out state.
    """
    flipped = flips(readings.of(probe), readings.of(probe, "knockout"))
    named = np.where(flipped == 1, "Q", "A").astype(object)
    named[np.isnan(flipped)] = None
    return named


def regroup(named: np.ndarray, grouping: str) -> np.ndarray:
    """Regroup pathways [question, layer]: per layer, by one fixed layer, or by majority.

    `fixed:k` gives every layer the groups of layer k; `majority` makes a sample Q where it is Q
    in more than half of the layers.
    """
    layers = named.shape[1]
    layer = check_grouping(grouping, layers)
    if grouping == "per-layer":
        return named
    if layer is not None:
        chosen = named[:, layer - 1]
    else:
        chosen = np.where((named == "Q").mean(axis=1) > 0.5, "Q", "A").astype(object)
        chosen[[row[0] is None for row in named]] = None
    return np.repeat(chosen[:, None], layers, axis=1)


def check_grouping(grouping: str, layers: int) -> int | None:
    """The layer k of `fixed:k`, None for other groupings; a UserError for unknown ones."""
    if grouping in ("per-layer", "majority"):
        return None
    name, _, number = grouping.partition(":")
    if name == "fixed" and number.isdigit() and 1 <= int(number) <= layers:
        return int(number)
    raise UserError(
        f"Unknown grouping '{grouping}'. Accepted: per-layer, majority, fixed:k with k from 1 "
        f"to {layers}."
    )


def pathways_table(
    readings: Readings,
    *,
    dataset: str,
    grouping: str = "per-layer",
) -> pd.DataFrame:
    """One row per question, layer and mode: table_columns.PATHWAYS.

    `prediction` and the logits are those of the effect's probe, `pathway` that of the group's.
    """
    questions, layers = len(readings.ids), readings.layers
    frames = []
    for mode in MODES:
        roles = ROLES[mode]
        clean = readings.of(roles.effect)
        columns = {
            "id": np.repeat(np.array(readings.ids, dtype=object), layers),
            "dataset": dataset,
            "layer": np.tile(np.arange(1, layers + 1), questions),
            "mode": mode,
            "z": np.repeat(readings.z, layers),
            "prediction": prediction(clean).astype(np.int64).ravel(),
            "logit_clean": clean.ravel(),
            "logit_knockout": readings.of(roles.effect, "knockout").ravel(),
            "pathway": regroup(pathways(readings, probe=roles.group), grouping).ravel(),
        }
        frames.append(pd.DataFrame(columns, columns=list(table_columns.PATHWAYS)))
    return pd.concat(frames, ignore_index=True)


def layers_table(
    samples: pd.DataFrame,
    *,
    model: str,
    delta: Delta = "points",
    seed: int = 0,
    resamples: int = 1000,
    entity_by_id: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """One row per dataset, mode, layer and pathway, from the rows of `pathways_table`.

    Entities are drawn for the intervals, by question id; without them questions are.

    `delta_p` is in points, or relative where `delta` says so; under "logit" it stays in points,
    because `delta_logit` is beside it in any case. An empty group has n = 0 and NaN.
    """
    rows = []
    for key, at in samples.groupby(["dataset", "mode", "layer"], sort=False):
        dataset, mode, layer = cast("tuple[str, str, int]", key)
        for pathway in PATHWAYS:
            mine = at.loc[at["pathway"] == pathway]
            clean, other = (mine[f"logit_{name}"].to_numpy() for name in ("clean", "knockout"))
            entity = mine["id"].map(entity_by_id) if entity_by_id is not None else mine["id"]
            points, logits = (
                bootstrap_mean(
                    delta_p(clean, other, delta=unit),
                    seed=seed,
                    resamples=resamples,
                    entity=entity.to_numpy(dtype=str),
                )
                for unit in (unit_of(delta), "logit")
            )
            rows.append((model, dataset, layer, mode, pathway, points.n, *points[:3], *logits[:3]))
    return pd.DataFrame(rows, columns=list(table_columns.LAYERS))


def probes_table(
    readings: Readings, *, model: str, dataset: str, seed: int = 0, resamples: int = 1000
) -> pd.DataFrame:
    """One row per layer: AUROC and accuracy of the paper probe on held-out questions.

    All folds are scored together, as a detector would meet them. `n_train` is the smallest
    training part of any fold, `n_test` the questions scored.
    """
    folds = range(int(readings.fold.max()) + 1)
    n_train = min(
        int(training_rows(readings.fold, held_out=fold, probe="paper").sum()) for fold in folds
    )
    rows = []
    for layer, logit in enumerate(readings.of("paper").T, start=1):
        area = auroc_interval(
            readings.z, logit, seed=seed, resamples=resamples, entity=readings.entity
        )
        right = accuracy(readings.z, logit)
        rows.append((model, dataset, layer, *area[:3], right, n_train, area.n))
    return pd.DataFrame(rows, columns=list(table_columns.PROBES))


def controls_table(
    readings: Readings, *, model: str, dataset: str, delta: Delta = "points"
) -> pd.DataFrame:
    """One row per layer and intervention: flips and mean ΔP of the paper probe, all samples.

    `flip_rate` is a share from 0 to 1; `delta_p` is in the same unit as in `layers_table`.
    """
    others = [name for name in readings.logits if name not in (*CONTROLS, "clean")]
    rows = []
    for name in [*(name for name in CONTROLS if name in readings.logits), *others]:
        for layer in readings.layer_numbers:
            clean, other = readings.at(layer, "paper"), readings.at(layer, "paper", name)
            seen = ~np.isnan(other)
            entity = None if readings.entity is None else readings.entity[seen]
            flipped = rate(flips(clean[seen], other[seen]), entity=entity)
            effect = delta_p(clean[seen], other[seen], delta=unit_of(delta))
            mean = float(effect.mean()) if len(effect) else np.nan
            rows.append((model, dataset, layer, name, *flipped[:3], mean, flipped.n))
    return pd.DataFrame(rows, columns=list(table_columns.CONTROLS))


def estimate_columns(**estimates: Estimate) -> dict[str, float]:
    """Each estimate as the columns `name`, `name_low` and `name_high`."""
    return {
        f"{name}{end}": value
        for name, estimate in estimates.items()
        for end, value in zip(("", "_low", "_high"), estimate[:3], strict=True)
    }
