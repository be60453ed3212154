"""ΔP against exact arithmetic, tables against plain loops, both modes on known mechanisms."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from kit.cross_fitted import cross_fit
from scipy.integrate import quad
from scipy.stats import norm

from anchorscope.pathways.effects import (
    controls_table,
    delta_p,
    flips,
    layers_table,
    pathways_table,
    prediction,
    probes_table,
)
from anchorscope.probes.folds import entity_folds
from anchorscope.probes.probe_set import Readings
from anchorscope.records import Mode
from anchorscope.run_folder.table_columns import PATHWAYS

getcontext().prec = 60


def exact_points(clean: float, other: float) -> float:
    """100 · (P'(ŷ) − P(ŷ)) with sixty digits."""
    sign = 1 if clean > 0 else -1
    before, after = (1 / (1 + (-sign * Decimal(x)).exp()) for x in (clean, other))
    return float(100 * (after - before))


@pytest.mark.parametrize("clean", [-60.0, -3.0, -1e-9, 0.0, 0.5, 8.0, 45.0])
@pytest.mark.parametrize("other", [-50.0, -2.0, 0.0, 1e-9, 3.0, 46.0])
def test_points_are_exact_for_small_and_large_logits(clean, other):
    got = float(delta_p(np.array(clean), np.array(other)))
    assert got == pytest.approx(exact_points(clean, other), rel=1e-12, abs=0)


def test_signs_and_units():
    clean, other = np.array([2.0, -2.0, 2.0, -2.0]), np.array([1.0, -1.0, 3.0, -3.0])
    points = delta_p(clean, other)
    assert (points[:2] < 0).all()  # less sure of ŷ, whichever class ŷ is
    assert (points[2:] > 0).all()
    assert points[0] == pytest.approx(points[1], abs=1e-12)
    assert delta_p(clean, other, delta="logit").tolist() == [-1.0, -1.0, 1.0, 1.0]
    p = 1 / (1 + np.exp(-2.0))
    assert np.allclose(delta_p(clean, other, delta="relative"), points / p, rtol=1e-12)


def test_an_empty_intervention_changes_nothing():
    logit = np.random.default_rng(0).standard_normal((50, 4)) * 20
    for delta in ("points", "relative", "logit"):
        assert np.array_equal(delta_p(logit, logit, delta=delta), np.zeros((50, 4)))
    assert np.array_equal(flips(logit, logit), np.zeros((50, 4)))


def test_extremes_neither_overflow_nor_warn():
    with np.errstate(all="raise", under="ignore"):
        got = delta_p(np.array([1e4, -1e4, 1e4]), np.array([-1e4, 1e4, 1e4]))
    assert got.tolist() == [-100.0, -100.0, 0.0]


def test_predictions_and_flips():
    clean = np.array([1.0, -1.0, 0.0, 3.0, np.nan])
    other = np.array([-1.0, -2.0, 0.1, np.nan, 1.0])
    assert np.array_equal(prediction(clean), [1, 0, 0, 1, np.nan], equal_nan=True)
    assert np.array_equal(flips(clean, other), [1, 0, 1, np.nan, np.nan], equal_nan=True)
    assert np.isnan(delta_p(clean, other)[3:]).all()


N, LAYERS, WIDTH = 120, 3, 8
ABSENT = 11  # this question has no neutral control


@pytest.fixture(scope="module")
def made() -> dict:
    rng = np.random.default_rng(0)
    z = rng.integers(2, size=N)
    clean = rng.standard_normal((N, LAYERS, WIDTH)).astype(np.float32)
    clean[:, 1:, 0] += 1.5 * (2 * z - 1)[:, None]
    random = clean + np.float32(0.2) * rng.standard_normal(clean.shape).astype(np.float32)
    random[ABSENT] = np.nan
    knockout = clean.copy()
    knockout[::2, :, 0] *= -1
    knockout[:, 0] = clean[:, 0]  # layer 1 is untouched: its group Q is empty
    states = {"clean": clean, "neutral": random, "knockout": knockout}
    fold = entity_folds([f"e{i // 2}" for i in range(N)])
    ids = [f"q{i}" for i in range(N)]
    readings, probes = cross_fit(states, ids=ids, z=z, fold=fold)
    return {"states": states, "fold": fold, "z": z, "readings": readings, "probes": probes}


def records(table: pd.DataFrame) -> list[SimpleNamespace]:
    """The rows of a table, each with its columns as attributes."""
    return [SimpleNamespace(**row) for row in table.to_dict("records")]


def logit(made: dict, name: str, probe: int, i: int, k: int) -> float:
    fold, probes = int(made["fold"][i]), made["probes"]
    state, weights = made["states"][name][i, k], probes.weights[probe, fold, k]
    dot = sum(float(x) * float(w) for x, w in zip(state, weights, strict=True))
    return dot + float(probes.intercept[probe, fold, k])


def effect(clean: float, other: float) -> tuple[float, float, float]:
    """ΔP in points, relative, and in logits, as docs/method.md writes them."""

    def p_hat(x: float) -> float:
        p = 1 / (1 + math.exp(-x))
        return p if clean > 0 else 1 - p

    points = 100 * (p_hat(other) - p_hat(clean))
    return points, points / p_hat(clean), (other - clean) * (1 if clean > 0 else -1)


def by_hand(made: dict, mode: str, k: int, pathway: str) -> list[tuple[float, float, float]]:
    group, measure = (0, 0) if mode == "paper" else (1, 2)
    found = []
    for i in range(N):
        turned = (logit(made, "clean", group, i, k) > 0) != (
            logit(made, "knockout", group, i, k) > 0
        )
        if turned == (pathway == "Q"):
            found.append(
                effect(logit(made, "clean", measure, i, k), logit(made, "knockout", measure, i, k))
            )
    return found


@pytest.mark.parametrize("delta", ["points", "relative", "logit"])
def test_layers_table_is_what_a_plain_loop_gives(made, delta):
    samples = pathways_table(made["readings"], dataset="made")
    table = layers_table(samples, model="m", delta=delta, resamples=200)
    assert len(table) == 2 * LAYERS * 2
    for row in records(table):
        expected = by_hand(made, row.mode, row.layer - 1, row.pathway)
        assert row.n == len(expected)
        if expected:
            points, relative, logits = (
                sum(column) / len(expected) for column in zip(*expected, strict=True)
            )
            assert row.delta_p == pytest.approx(
                relative if delta == "relative" else points, abs=1e-8
            )
            assert row.delta_logit == pytest.approx(logits, abs=1e-8)
        if len(expected) > 1:
            assert row.delta_p_low <= row.delta_p <= row.delta_p_high
            assert row.delta_logit_low <= row.delta_logit <= row.delta_logit_high
    assert (
        table["n"].to_numpy().sum() == 2 * LAYERS * N
    )  # every sample in one group of every mode and layer


def test_an_empty_group_has_no_number(made):
    table = layers_table(pathways_table(made["readings"], dataset="made"), model="m")
    numbers = [name for name in table.columns if name.startswith("delta_")]
    first = [row for row in records(table) if row.layer == 1]
    for row in first:
        values = np.array([getattr(row, name) for name in numbers])
        if row.pathway == "Q":
            assert row.n == 0
            assert np.isnan(values).all()
        else:
            assert row.n == N
            assert (values == 0).all()  # layer 1 was not touched: nothing changed, bit for bit
    assert len(first) == 4


def test_probes_table_counts_pairs(made):
    table = probes_table(made["readings"], model="m", dataset="made", resamples=200)
    sizes = [int((made["fold"] != f).sum()) for f in range(5)]
    for k, row in enumerate(records(table)):
        scores = [logit(made, "clean", 0, i, k) for i in range(N)]
        wrong = [s for s, z in zip(scores, made["z"], strict=True) if z == 1]
        right = [s for s, z in zip(scores, made["z"], strict=True) if z == 0]
        above = sum(1.0 if s > t else 0.5 if s == t else 0.0 for s in wrong for t in right)
        assert row.auroc == pytest.approx(above / (len(wrong) * len(right)), abs=1e-12)
        assert row.auroc_low <= row.auroc <= row.auroc_high
        hits = sum((s > 0) == (z == 1) for s, z in zip(scores, made["z"], strict=True))
        assert row.accuracy == pytest.approx(hits / N, abs=1e-12)
        assert (row.n_train, row.n_test) == (min(sizes), N)
    none, some, _ = table["auroc"].to_numpy()
    assert none < 0.7 < 0.85 < some  # layer 1 carries nothing


def test_controls_table_is_what_a_plain_loop_gives(made):
    table = controls_table(made["readings"], model="m", dataset="made")
    assert table["intervention"].unique().tolist() == ["knockout", "neutral"]
    for row in records(table):
        k, name = row.layer - 1, row.intervention
        read = [i for i in range(N) if not (name == "neutral" and i == ABSENT)]
        pairs = [(logit(made, "clean", 0, i, k), logit(made, name, 0, i, k)) for i in read]
        assert row.n == len(read)
        turned = sum((a > 0) != (b > 0) for a, b in pairs)
        assert row.flip_rate == pytest.approx(turned / len(read), abs=1e-12)
        assert row.flip_rate_low <= row.flip_rate <= row.flip_rate_high
        assert row.delta_p == pytest.approx(
            sum(effect(a, b)[0] for a, b in pairs) / len(read), abs=1e-8
        )


def test_seeds_repeat_and_the_order_of_questions_has_no_say(made):
    samples = pathways_table(made["readings"], dataset="made")
    first = layers_table(samples, model="m", seed=1)
    assert first.equals(layers_table(samples, model="m", seed=1))
    assert not first.equals(layers_table(samples, model="m", seed=2))
    keys = ["mode", "layer", "pathway"]
    shuffled = layers_table(samples.sample(frac=1, random_state=0), model="m", seed=1)
    assert first.sort_values(keys, ignore_index=True).equals(
        shuffled.sort_values(keys, ignore_index=True)
    )


MANY = 100_000


def as_readings(clean: np.ndarray, knockout: np.ndarray) -> Readings:
    """Readings of one layer from logits [probe, question] of paper, a and b."""
    n = clean.shape[1]
    return Readings(
        ids=tuple(str(i) for i in range(n)),
        z=np.arange(n) % 2,
        fold=np.arange(n) % 5,
        probes=("paper", "a", "b"),
        logits={"clean": clean[:, :, None], "knockout": knockout[:, :, None]},
    )


def one_mechanism(s: float, rho: float, *, seed: int = 0) -> Readings:
    """Logits z ~ MANY(0, s), z' = ρz + sqrt(1 − ρ²)·s·ε; probes share z, each has its own ε."""
    rng = np.random.default_rng(seed)
    clean = np.repeat(s * rng.standard_normal((1, MANY)), 3, axis=0)
    noise = np.sqrt(1 - rho**2) * s * rng.standard_normal((3, MANY))
    noise[0] = noise[1]
    return as_readings(clean, rho * clean + noise)


def rows(readings: Readings, mode: Mode) -> dict:
    table = layers_table(pathways_table(readings, dataset="made"), model="m", resamples=10)
    return {row.pathway: row for row in records(table) if row.mode == mode}


@pytest.mark.parametrize(("s", "rho"), [(3, 0.9), (3, 0.5)])
def test_strict_mode_gives_the_one_mechanism_its_exact_effects(s, rho):
    # Given |z| = t, probe a flips with probability Φ(−ρt / (s·sqrt(1−ρ²))), and the mean logit of
    # probe b moves by (ρ − 1)·t, whichever group a put the sample in.
    def flip(t):
        return norm.cdf(-rho * t / (s * np.sqrt(1 - rho**2)))

    def mean(weight):
        top = quad(lambda t: (rho - 1) * t * weight(t) * norm.pdf(t, scale=s), 0, 12 * s)[0]
        return top / quad(lambda t: weight(t) * norm.pdf(t, scale=s), 0, 12 * s)[0]

    readings = one_mechanism(s, rho)
    strict, paper = rows(readings, "strict"), rows(readings, "paper")
    assert strict["Q"].delta_logit == pytest.approx(mean(flip), abs=0.06)
    assert strict["A"].delta_logit == pytest.approx(mean(lambda t: 1 - flip(t)), abs=0.03)
    # Paper mode: flippers fall far below the others. Strict mode: they do not.
    assert paper["Q"].delta_logit < paper["A"].delta_logit - 1
    assert strict["Q"].delta_logit > strict["A"].delta_logit


def test_strict_mode_sees_no_gap_between_unrelated_probes():
    rng = np.random.default_rng(0)
    clean, knockout = 3 * rng.standard_normal((2, 3, MANY))
    got = rows(as_readings(clean, knockout), "strict")
    assert got["Q"].n / MANY == pytest.approx(0.5, abs=0.01)
    assert got["Q"].delta_p == pytest.approx(got["A"].delta_p, abs=1.0)
    paper = rows(as_readings(clean, knockout), "paper")
    assert paper["Q"].delta_p < -60
    assert paper["A"].delta_p == pytest.approx(0, abs=0.5)


def test_a_sample_without_a_knocked_out_state_has_no_pathway():
    rng = np.random.default_rng(0)
    clean, knockout = rng.standard_normal((2, 3, 6))
    knockout[:, 4] = np.nan
    table = pathways_table(as_readings(clean, knockout), dataset="made")
    assert tuple(table.columns) == PATHWAYS and len(table) == 6 * 2
    assert not table.duplicated(["id", "layer", "mode"]).any()
    for row in records(table):
        number, (group, effect) = int(row.id), (0, 0) if row.mode == "paper" else (1, 2)
        assert row.logit_clean == clean[effect, number]
        if number == 4:
            assert np.isnan(row.logit_knockout) and not isinstance(row.pathway, str)
        else:
            turned = (clean[group, number] > 0) != (knockout[group, number] > 0)
            assert row.pathway == ("Q" if turned else "A")
