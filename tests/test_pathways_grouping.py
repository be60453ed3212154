"""Paper and strict mode on made-up mechanisms whose truth is known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from anchorscope.errors import UserError
from anchorscope.pathways.effects import layers_table, pathways, pathways_table
from anchorscope.probes.cross_fit import cross_fit
from anchorscope.probes.folds import entity_folds
from anchorscope.probes.readings import Readings
from anchorscope.records import Mode
from anchorscope.run_folder.table_columns import PATHWAYS

N = 100_000


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
    """Logits z ~ N(0, s), z' = ρz + sqrt(1 − ρ²)·s·ε; probes share z, each has its own ε."""
    rng = np.random.default_rng(seed)
    clean = np.repeat(s * rng.standard_normal((1, N)), 3, axis=0)
    noise = np.sqrt(1 - rho**2) * s * rng.standard_normal((3, N))
    noise[0] = noise[1]
    return as_readings(clean, rho * clean + noise)


def records(table: pd.DataFrame) -> list[SimpleNamespace]:
    """The rows of a table, each with its columns as attributes."""
    return [SimpleNamespace(**row) for row in table.to_dict("records")]


def rows(readings: Readings, mode: Mode) -> dict:
    table = layers_table(
        pathways_table(readings, dataset="made", modes=(mode,)), model="m", resamples=10
    )
    return {row.pathway: row for row in records(table)}


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
    clean, knockout = 3 * rng.standard_normal((2, 3, N))
    got = rows(as_readings(clean, knockout), "strict")
    assert got["Q"].n / N == pytest.approx(0.5, abs=0.01)
    assert got["Q"].delta_p == pytest.approx(got["A"].delta_p, abs=1.0)
    paper = rows(as_readings(clean, knockout), "paper")
    assert paper["Q"].delta_p < -60
    assert paper["A"].delta_p == pytest.approx(0, abs=0.5)


def test_planted_pathways_in_states_survive_training_in_both_modes():
    # Q samples carry z in feature 0, which the knockout turns round; A samples in feature 1.
    rng = np.random.default_rng(0)
    n, width = 600, 20
    z, from_question = rng.integers(2, size=n), rng.integers(2, size=n).astype(bool)
    clean = 0.3 * rng.standard_normal((n, 2, width))
    clean[np.arange(n), :, np.where(from_question, 0, 1)] += 2 * (2 * z - 1)[:, None]
    knockout = clean.copy()
    knockout[from_question, :, 0] *= -1
    readings, _ = cross_fit(
        {"clean": clean, "knockout": knockout},
        ids=[str(i) for i in range(n)],
        z=z,
        fold=entity_folds([f"e{i}" for i in range(n)]),
        C=1.0,
    )
    table = pathways_table(readings, dataset="made")
    truth = dict(zip(readings.ids, np.where(from_question, "Q", "A"), strict=True))
    samples = records(table)
    for mode in ("paper", "strict"):
        mine = [row for row in samples if row.mode == mode]
        assert np.mean([row.pathway == truth[row.id] for row in mine]) > 0.98
        assert np.mean([row.prediction == row.z for row in mine]) > 0.98
    # The knocked-out state of an A sample is the clean one: its effect is nothing, bit for bit.
    untouched = [row for row in samples if truth[row.id] == "A"]
    assert all(row.logit_clean == row.logit_knockout for row in untouched)
    for row in records(layers_table(table, model="m", resamples=50)):
        assert row.delta_p < -80 if row.pathway == "Q" else row.delta_p > -2


def test_the_table_names_every_sample_by_id_with_the_right_probes():
    rng = np.random.default_rng(0)
    clean, knockout = rng.standard_normal((2, 3, 6, 2))
    knockout[:, 4] = np.nan
    readings = Readings(
        ids=tuple("uvwxyz"),
        z=np.array([0, 1, 0, 1, 0, 1]),
        fold=np.arange(6) % 3,
        probes=("paper", "a", "b"),
        logits={"clean": clean, "knockout": knockout},
    )
    table = pathways_table(readings, dataset="made")
    assert tuple(table.columns) == PATHWAYS
    assert len(table) == 6 * 2 * 2
    assert not table.duplicated(["id", "layer", "mode"]).any()
    for row in records(table):
        i, k = "uvwxyz".index(row.id), row.layer - 1
        group, effect = (0, 0) if row.mode == "paper" else (1, 2)
        assert row.logit_clean == clean[effect, i, k]
        assert row.prediction == int(clean[effect, i, k] > 0)
        assert row.z == i % 2
        if row.id == "y":
            assert np.isnan(row.logit_knockout)
            assert not isinstance(row.pathway, str)  # no state, no pathway
        else:
            assert row.logit_knockout == knockout[effect, i, k]
            turned = (clean[group, i, k] > 0) != (knockout[group, i, k] > 0)
            assert row.pathway == ("Q" if turned else "A")
    assert pathways(readings, probe="b")[4].tolist() == [None, None]


def test_unknown_modes_and_missing_knockouts_are_named():
    readings = one_mechanism(3, 0.5)
    with pytest.raises(UserError, match=r"Unknown mode 'loose'. Accepted: paper, strict"):
        pathways_table(readings, dataset="m", modes=("loose",))  # pyright: ignore[reportArgumentType]
    clean_only = Readings(
        ids=("x",),
        z=np.array([1]),
        fold=np.array([0]),
        probes=("paper",),
        logits={"clean": np.ones((1, 1, 1))},
    )
    with pytest.raises(UserError, match=r"Unknown intervention 'knockout'. Accepted: clean"):
        pathways(clean_only, probe="paper")
