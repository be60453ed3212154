"""Saliency and heads: sums, humps, ranks, by other routes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from kit.piece_inputs import inputs_for
from scipy.special import expit
from scipy.stats import spearmanr

from anchorscope.evidence.heads import heads_agreement, heads_table
from anchorscope.evidence.saliency import saliency_table
from anchorscope.probes.probe_set import Readings
from anchorscope.run_folder.table_columns import EVIDENCE
from anchorscope.stats.ranking import spearman

N, LAYERS = 160, 4


def saliency_rows(power: np.ndarray, *, seed: int = 0) -> pd.DataFrame:
    """Rows whose size is 10 to the `power` [question], spread over the layers."""
    rng = np.random.default_rng(seed)
    split = rng.dirichlet(np.ones(LAYERS), len(power))
    return pd.DataFrame(
        {
            "id": np.repeat([f"q{i}" for i in range(len(power))], LAYERS), "dataset": "d",
            "loss": "probe", "source": "exact",
            "layer": np.tile(np.arange(1, LAYERS + 1), len(power)),
            "saliency": (10.0 ** power[:, None] * split).ravel(),
        }
    )  # fmt: skip


def plain_readings(z: dict[str, int]) -> Readings:
    """Readings of questions with these classes, which say nothing."""
    n = len(z)
    return Readings(ids=tuple(z), z=np.array(list(z.values())), fold=np.zeros(n, dtype=int),
                    probes=("paper",), logits={"clean": np.zeros((1, n, 1))})  # fmt: skip


def saliency_of(rows: pd.DataFrame, z: dict[str, int]) -> pd.DataFrame:
    return saliency_table(inputs_for(plain_readings(z), rows={"saliency": rows}, resamples=200))


def heads_of(rows: pd.DataFrame) -> pd.DataFrame:
    readings, name = plain_readings(dict.fromkeys(rows["id"], 0)), rows["dataset"].iloc[0]
    return heads_table(inputs_for(readings, rows={"heads": rows}, dataset=name, resamples=200))


def summed(table: pd.DataFrame, subset: str) -> pd.Series:
    return table[(table["layer"] == "") & (table["subset"] == subset)].iloc[0]


def test_sums_and_means_of_logs():
    power = np.random.default_rng(1).normal(-3, 0.5, N)
    z = {f"q{i}": i % 2 for i in range(N)}
    rows = saliency_rows(power)
    table = saliency_of(rows, z)
    assert list(table.columns) == list(EVIDENCE["saliency"]) and len(table) == 3 * (LAYERS + 1)
    assert summed(table, "all")["mean"] == pytest.approx(power.mean())
    assert summed(table, "wrong")["mean"] == pytest.approx(power[1::2].mean())
    assert summed(table, "right")["n"] == N // 2
    third = table[(table["layer"] == 3) & (table["subset"] == "all")].iloc[0]
    logs = np.log10(rows.loc[rows["layer"] == 3, "saliency"])
    assert third["mean"] == pytest.approx(logs.mean())
    assert third["low"] < third["mean"] < third["high"]


def test_two_humps_are_told_from_one():
    rng = np.random.default_rng(2)
    z = {f"q{i}": i % 2 for i in range(N)}
    one = saliency_of(saliency_rows(rng.normal(0, 1, N)), z)
    two = saliency_of(saliency_rows(rng.normal(0, 0.4, N) + 4 * (np.arange(N) % 4 < 2)), z)
    assert summed(one, "all")["dip_p"] > 0.1 and summed(one, "all")["bic"] < 10
    for subset in ("all", "right", "wrong"):
        assert summed(two, subset)["dip_p"] < 0.01 and summed(two, subset)["bic"] > 10


def test_what_has_no_logarithm_or_no_class_is_left_out():
    rows = saliency_rows(np.zeros(N) + np.linspace(0, 1, N))
    rows.loc[rows["id"] == "q0", "saliency"] = 0.0
    z = {f"q{i}": i % 2 for i in range(N - 1)}  # the last one abstained
    found = summed(saliency_of(rows, z), "all")
    assert found["n"] == N - 2 and np.isfinite(found["mean"])
    few = saliency_of(rows[rows["id"].isin(["q1", "q2"])], z)
    assert np.isnan(summed(few, "all")["dip_p"])
    none = saliency_of(rows[rows["id"] == "q2"], z)
    assert summed(none, "wrong")["n"] == 0 and np.isnan(summed(none, "wrong")["mean"])


def head_rows(dataset: str, strength: np.ndarray, *, layers=(5,), seed: int = 0) -> pd.DataFrame:
    """`strength` [block, head]: how far each head pushes every logit back."""
    rng, frames = np.random.default_rng(seed), []
    clean = rng.normal(0, 2, 60)
    places = [(b + 1, h, "", s) for (b, h), s in np.ndenumerate(strength)]
    places += [(1, -1, "block", 3.0), (0, -4, "top4", 4.0)]
    for layer in layers:
        for block, head, name, much in places:
            frames.append(
                pd.DataFrame({
                    "id": [f"{dataset}{i}" for i in range(60)], "dataset": dataset, "block": block,
                    "head": head, "set": name, "layer": layer, "logit_clean": clean,
                    "logit_knockout": clean - much * np.sign(clean),
                })
            )  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def test_heads_by_hand():
    strength = np.array([[0.1, 2.0], [0.3, 0.0], [0.5, 1.0]])
    rows = head_rows("d", strength)
    table = heads_of(rows)
    assert len(table) == 8 and (table["n"] == 60).all()
    lacking = rows[~((rows["head"] == 1) & rows["id"].isin(["d0", "d1"]))]
    assert set(heads_of(lacking).groupby("head")["n"].first().items()) >= {(0, 60), (1, 58)}
    clean = rows["logit_clean"].to_numpy()[:60]
    sign = np.sign(clean)
    for (block, head), much in np.ndenumerate(strength):
        found = table[(table["block"] == block + 1) & (table["head"] == head)].iloc[0]
        effect = 100 * (expit(sign * clean - much) - expit(sign * clean))
        assert found["delta_p"] == pytest.approx(effect.mean())
        assert found["flip_rate"] == pytest.approx((np.abs(clean) < much).mean())
        assert found["low"] <= found["delta_p"] <= found["high"]
    assert table.loc[table["set"] == "top4", "delta_p"].item() < table["delta_p"].median()


def test_agreement_is_spearmans_over_single_heads():
    rng = np.random.default_rng(3)
    one, noise = rng.random((5, 4)), rng.random((5, 4))
    other = one + 0.5 * noise
    tables = [
        heads_of(head_rows("a", one, layers=(4, 5))),
        heads_of(head_rows("b", other, seed=1)),
    ]
    found = heads_agreement(pd.concat(tables, ignore_index=True)).iloc[0]
    assert (found["dataset_a"], found["dataset_b"], found["n"]) == ("a", "b", 20)
    assert found["spearman"] == pytest.approx(spearmanr(one.ravel(), other.ravel()).statistic)
    assert found["low"] < found["spearman"] < found["high"] <= 1
    assert heads_agreement(tables[0]).empty  # one dataset has none to agree with


def test_spearman_with_ties_and_too_few():
    x, y = np.array([1.0, 2, 2, 3, 5, 5]), np.array([2.0, 1, 3, 3, 4, 6])
    assert spearman(x, y, seed=0).value == pytest.approx(spearmanr(x, y).statistic)
    assert np.isnan(spearman(x[:2], y[:2], seed=0).value)
    assert np.isnan(spearman(np.ones(6), y, seed=0).value)
