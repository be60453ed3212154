"""A question asked twice, in one entity, adds no information: no interval of a run shrinks."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from kit.piece_inputs import inputs_for

from anchorscope.claims.decision import ClaimInputs
from anchorscope.config import Config
from anchorscope.detect.evaluate import detectors_table
from anchorscope.evidence.answer_only import answer_only_table, question_probe_table
from anchorscope.evidence.awareness import awareness_tables
from anchorscope.evidence.boundary import boundary_table
from anchorscope.evidence.heads import heads_table
from anchorscope.evidence.patching import patching_table
from anchorscope.evidence.pieces import PREDICTED
from anchorscope.evidence.saliency import saliency_table
from anchorscope.evidence.windows import windows_table
from anchorscope.pathways.effects import controls_table, layers_table, pathways_table, probes_table
from anchorscope.pathways.strict_tables import refit_columns
from anchorscope.probes.folds import Covariates
from anchorscope.probes.probe_set import Readings
from anchorscope.records import MODES

N, OF = 240, {"model": "m", "dataset": "d"}
RNG = np.random.default_rng(5)
Z = np.arange(N) % 2
BELIEF = 1.2 * (2 * Z - 1) + RNG.normal(0, 1.5, N)
CLEAN = (BELIEF + RNG.normal(0, 0.5, (3, N)))[..., None]
Q = RNG.random(N) < 0.4
NOISE = RNG.normal(0, 1, CLEAN.shape)
POPULARITY = RNG.normal(3, 1, N) + 0.2 * Q
STATES = RNG.normal(0, 1, (N, 12)) + 0.8 * BELIEF[:, None]
KNOCKED = STATES + RNG.normal(0, 1, (N, 12))
FOLD = RNG.integers(5, size=N)
LOGITS = {
    "clean": CLEAN,
    "knockout": np.where(Q[None, :, None], -CLEAN, CLEAN) + NOISE,
    "patch-matched": 0.4 * CLEAN + 2 * NOISE,
    "answer-only": 0.5 * CLEAN + NOISE,
    "single": CLEAN + NOISE,
}


def repeated(times: int, *, named: bool) -> Readings:
    """Readings in which every question stands `times` times, its entity known or not."""
    rows = np.repeat(np.arange(N), times)
    return Readings(
        ids=tuple(f"q{row:03d}-{copy}" for copy, row in enumerate(rows)),
        z=Z[rows],
        fold=FOLD[rows],
        probes=("paper", "a", "b"),
        logits={name: values[:, rows] for name, values in LOGITS.items()},
        entity=np.array([f"thing {row}" for row in rows]) if named else None,
    )


def rows_of(readings: Readings) -> np.ndarray:
    return np.array([int(id[1:4]) for id in readings.ids])


def layers(readings: Readings) -> pd.DataFrame:
    by_id = readings.entity_by_id
    return layers_table(pathways_table(readings, dataset="d"), model="m", entity_by_id=by_id)


def heads(readings: Readings) -> pd.DataFrame:
    k = readings.of("paper")[:, 0]
    rows = pd.DataFrame({"id": readings.ids, "dataset": "d", "block": 1, "head": 0, "set": "",
                         "layer": 1, "logit_clean": k,
                         "logit_knockout": readings.of("paper", "knockout")[:, 0]})  # fmt: skip
    return heads_table(inputs_for(readings, rows={"heads": rows}))


def saliency(readings: Readings) -> pd.DataFrame:
    values = np.exp(BELIEF[rows_of(readings)])
    rows = pd.DataFrame({"id": readings.ids, "dataset": "d", "loss": "probe", "source": "exact",
                         "layer": 1, "saliency": values})  # fmt: skip
    return saliency_table(inputs_for(readings, rows={"saliency": rows}))


def detectors(readings: Readings) -> pd.DataFrame:
    k, entity = readings.of("paper")[:, 0], list(readings.entity_by_id.values())
    rows = pd.DataFrame({"dataset": "d", "split": "entity", "detector": "probe", "id": readings.ids,
                         "z": readings.z, "entity": entity, "score": k,
                         "probability": 0.5, "ms": 0.0, "chosen": ""})  # fmt: skip
    return detectors_table(rows, model="m")


def awareness(readings: Readings) -> pd.DataFrame:
    rows = rows_of(readings)
    covariates = Covariates(POPULARITY[rows], np.ones(len(rows)))
    states = {"clean": STATES[rows][:, None]}
    return awareness_tables(inputs_for(readings, covariates=covariates, states=states), 1)[
        "awareness"
    ]


def question_probe(readings: Readings) -> pd.DataFrame:
    states = {"question-only": STATES[rows_of(readings)][:, None]}
    return question_probe_table(inputs_for(readings, states=states), 1)


def boundary(readings: Readings) -> pd.DataFrame:
    """The table of all modes and subsets."""
    rows = rows_of(readings)
    inputs = inputs_for(readings, covariates=Covariates(POPULARITY[rows], np.ones(len(rows))))
    pairs = itertools.product(MODES, PREDICTED)
    return pd.concat([boundary_table(inputs, *pair) for pair in pairs], ignore_index=True)


TABLES = {
    "layers": (layers, "delta_p_low", "delta_p_high"),
    "layers in logits": (layers, "delta_logit_low", "delta_logit_high"),
    "probes": (lambda r: probes_table(r, **OF), "auroc_low", "auroc_high"),
    "controls": (lambda r: controls_table(r, **OF), "flip_rate_low", "flip_rate_high"),
    "answer-only": (lambda r: answer_only_table(inputs_for(r)), "delta_p_low", "delta_p_high"),
    "windows": (lambda r: windows_table(inputs_for(r)), "delta_p_low", "delta_p_high"),
    "patching": (lambda r: patching_table(inputs_for(r)), "flip_low", "flip_high"),
    "boundary": (boundary, "low", "high"),
    "heads": (heads, "low", "high"),
    "saliency": (saliency, "low", "high"),
    "detectors": (detectors, "auroc_low", "auroc_high"),
    "awareness": (awareness, "low", "high"),
    "question probe": (question_probe, "auroc_low", "auroc_high"),
}  # fmt: skip


def widths(name: str, readings: Readings) -> np.ndarray:
    table, low, high = TABLES[name]
    rows = table(readings)
    width = (rows[high] - rows[low]).to_numpy(dtype=float)
    return width[
        np.isfinite(width) & (width > 0) & (rows["n"].to_numpy() > 40 if "n" in rows else True)
    ]


@pytest.mark.parametrize("name", TABLES)
def test_a_question_asked_twice_narrows_no_interval(name: str):
    once, twice = (widths(name, repeated(times, named=True)) for times in (1, 2))
    fooled = widths(name, repeated(2, named=False))
    assert len(once) == len(twice) == len(fooled) > 0
    assert np.median(twice / once) == pytest.approx(1.0, abs=0.09)
    if name not in ("awareness", "question probe"):  # their classifiers learn from the copies too
        assert np.median(fooled / once) == pytest.approx(np.sqrt(0.5), abs=0.07)


def test_a_refit_takes_entities():
    widths = {}
    for times, named in ((1, True), (2, True), (2, False)):
        readings = repeated(times, named=named)
        states = tuple(values[rows_of(readings)] for values in (STATES, KNOCKED))
        options = {"config": Config(), "entity": readings.entity}
        found = refit_columns(states, readings, 1, **options)
        widths[times, named] = found["knockout_auroc_high"] - found["knockout_auroc_low"]
    assert widths[2, True] / widths[1, True] == pytest.approx(1.0, abs=0.08)
    assert widths[2, False] / widths[1, True] == pytest.approx(np.sqrt(0.5), abs=0.08)


def test_the_curves_of_the_claims_draw_entities():
    spread = []
    for readings, named in ((repeated(1, named=True), True), (repeated(2, named=True), True),
                            (repeated(2, named=True), False)):  # fmt: skip
        inputs = ClaimInputs("m", 1.0, {"d": "D"}, pathways_table(readings, dataset="d"),
                             pd.DataFrame(), pd.DataFrame(), {},
                             entity=readings.entity_by_id if named else {})  # fmt: skip
        spread.append(inputs.curves["d", "strict"].drawn_q.std())
    assert spread[1] / spread[0] == pytest.approx(1.0, abs=0.08)
    assert spread[2] / spread[0] == pytest.approx(np.sqrt(0.5), abs=0.08)


def test_a_test_that_takes_questions_as_independent_gives_way():
    """Fisher's p of doubled answers would be far smaller than that of the answers themselves."""
    p = {}
    for times, named in ((1, True), (2, True), (2, False)):
        readings = repeated(times, named=named)
        table = boundary(readings)
        keep = (table["pathway"] == "Q-A") & (table["mode"] == "paper") & (table["subset"] == "all")
        p[times, named] = table[keep].set_index("measure").loc["popularity", "p"]
    assert p[2, True] == pytest.approx(p[1, True], rel=0.5)
    assert p[2, False] < 0.5 * p[1, True]
