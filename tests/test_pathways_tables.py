"""Every number of the tables, worked out again with plain Python from states and weights."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from anchorscope.pathways.effects import controls_table, layers_table, pathways_table, probes_table
from anchorscope.probes.cross_fit import cross_fit
from anchorscope.probes.folds import entity_folds

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
