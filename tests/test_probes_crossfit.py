"""Cross-fitting: no question is read by a probe that saw it; stored probes are those used."""

from __future__ import annotations

import json

import numpy as np
import pytest
from kit.cross_fitted import cross_fit

from anchorscope.errors import UserError
from anchorscope.probes.folds import (
    INNER_FOLDS,
    PROBES,
    ProbeName,
    entity_folds,
    inner_folds,
    training_rows,
)
from anchorscope.probes.linear_probe import LinearProbe
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.stats.logistic import class_weights, platt_lines
from anchorscope.stats.ranking import auroc

N, LAYERS, WIDTH = 150, 3, 12


def a_run(n: int = N, *, layers: int = LAYERS, width: int = WIDTH, seed: int = 0) -> dict:
    """States with some signal, a knockout that weakens it, two questions per entity."""
    rng = np.random.default_rng(seed)
    z = rng.integers(2, size=n)
    clean = rng.standard_normal((n, layers, width)).astype(np.float32)
    clean[:, :, 0] += (2 * z - 1)[:, None]
    knockout = clean + 0.5 * rng.standard_normal(clean.shape).astype(np.float32)
    knockout[:, :, 0] *= 0.3
    return {
        "states": {"clean": clean, "knockout": knockout},
        "ids": [f"made:test:{i}" for i in range(n)],
        "z": z,
        "fold": entity_folds([f"e{i // 2}" for i in range(n)]),
    }


def fit(run: dict, **options):
    rest = {key: value for key, value in run.items() if key != "states"}
    return cross_fit(run["states"], **rest, **options)


def test_readings_are_the_stored_weights_on_the_raw_states():
    run = a_run()
    readings, probes = fit(run)
    assert readings.probes == PROBES == ("paper", "a", "b")
    assert probes.weights.shape == (3, 5, LAYERS, WIDTH)
    for name, states in run["states"].items():
        for p, i, k in np.ndindex(3, N, LAYERS):
            f = run["fold"][i]
            dot = sum(
                float(x) * float(w)
                for x, w in zip(states[i, k], probes.weights[p, f, k], strict=True)
            )
            expected = dot + probes.intercept[p, f, k]
            assert readings.logits[name][p, i, k] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_layer_alone_gives_the_same_bits():
    run = a_run()
    readings, probes = fit(run)
    for k in range(LAYERS):
        states = {name: own[:, k : k + 1] for name, own in run["states"].items()}
        alone, own = fit({**run, "states": states})
        assert np.array_equal(own.weights[:, :, 0], probes.weights[:, :, k])
        assert np.array_equal(own.intercept[:, :, 0], probes.intercept[:, :, k])
        for name, logits in alone.logits.items():
            assert np.array_equal(logits[:, :, 0], readings.logits[name][:, :, k])


@pytest.mark.parametrize("calibrate", [True, False])
def test_flipped_labels_of_the_held_out_fold_leave_its_readings_bit_for_bit(calibrate):
    run = a_run()
    before, _ = fit(run, calibrate=calibrate)
    mine = run["fold"] == 2
    after, _ = fit({**run, "z": np.where(mine, 1 - run["z"], run["z"])}, calibrate=calibrate)
    for name in run["states"]:
        one, other = before.logits[name], after.logits[name]
        assert np.array_equal(one[:, mine], other[:, mine])
        # The paper's probe of any other fold did learn from this one.
        assert (one[0, ~mine] != other[0, ~mine]).all()


def test_states_of_the_held_out_fold_leave_its_probe_bit_for_bit():
    run = a_run()
    _, before = fit(run)
    clean = run["states"]["clean"].copy()
    clean[run["fold"] == 2] += 7
    _, after = fit({**run, "states": {"clean": clean}})
    assert np.array_equal(before.weights[:, 2], after.weights[:, 2])
    assert np.array_equal(before.intercept[:, 2], after.intercept[:, 2])


def test_probes_a_and_b_share_no_question_not_even_for_calibration():
    run = a_run()
    before, _ = fit(run)
    mine = run["fold"] == 0
    pairs: list[tuple[ProbeName, ProbeName]] = [("a", "b"), ("b", "a")]
    for changed, other in pairs:
        rows = training_rows(run["fold"], held_out=0, probe=changed)
        after, _ = fit({**run, "z": np.where(rows, 1 - run["z"], run["z"])})
        assert np.allclose(before.of(other)[mine], after.of(other)[mine], atol=1e-4)
        assert not np.allclose(before.of(changed)[mine], after.of(changed)[mine], atol=1e-2)


def test_line_of_a_probe_comes_from_inner_probes_that_held_whole_entities_out():
    run = a_run(600, layers=1)
    entity = [f"e{i // 3}" for i in range(600)]
    run["fold"], clean, z = (
        entity_folds(entity),
        run["states"]["clean"][:, 0].astype(float),
        run["z"],
    )
    plain, _ = fit(run, calibrate=False)
    lined, _ = fit({**run, "entity": entity})
    inner, mine = inner_folds(entity), run["fold"] == 4
    assert len({(e, part) for e, part in zip(entity, inner, strict=True)}) == 200
    for probe in PROBES:
        rows = training_rows(run["fold"], held_out=4, probe=probe)
        held_out = np.zeros(600)
        for part in range(INNER_FOLDS):
            learnt = LinearProbe().fit(clean[rows & (inner != part)], z[rows & (inner != part)])
            held_out[inner == part] = learnt.decision_function(clean[inner == part])
        weights = class_weights(z, rows[None], "weights")
        slope, intercept = platt_lines(held_out[None], z, weights)
        expected = slope * plain.of(probe)[mine, 0] + intercept
        assert lined.of(probe)[mine, 0] == pytest.approx(expected, abs=1e-4)


def test_a_class_about_one_entity_only_is_read_without_a_line():
    run = a_run(layers=1)
    entity = np.where(run["z"] == 1, "one", run["ids"])  # as with folds that nobody made by entity
    plain, _ = fit(run, calibrate=False)
    lined, _ = fit({**run, "entity": entity.tolist()})
    assert np.allclose(plain.logits["clean"], lined.logits["clean"], atol=1e-4)


def test_a_memorised_entity_does_not_help():
    # Every entity has its own direction and a coin for a label: only memory can tell.
    rng = np.random.default_rng(0)
    entity = np.repeat(np.arange(100), 4)
    z = rng.integers(2, size=100)[entity]
    clean = rng.standard_normal((100, 300))[entity] + 0.1 * rng.standard_normal((400, 300))
    run = {"states": {"clean": clean[:, None]}, "ids": [str(i) for i in range(400)], "z": z}
    blind, _ = fit({**run, "fold": entity_folds([f"e{i}" for i in entity])})
    leaky, _ = fit({**run, "fold": np.arange(400) % 4})
    for probe in PROBES:
        assert auroc(z, leaky.of(probe)[:, 0]) > 0.99
        assert 0.3 < auroc(z, blind.of(probe)[:, 0]) < 0.7


def test_training_counts_are_the_rows_learnt_from():
    run = a_run()
    _, probes = fit(run)
    for p, f in np.ndindex(3, 5):
        assert probes.n_train[p, f] == training_rows(run["fold"], held_out=f, probe=PROBES[p]).sum()
    assert np.array_equal(probes.n_train[1] + probes.n_train[2], probes.n_train[0])


def test_a_missing_state_reads_nan_and_touches_nobody_else():
    run = a_run()
    whole, _ = fit(run)
    knockout = run["states"]["knockout"].copy()
    knockout[[3, 40]] = np.nan
    holed, _ = fit({**run, "states": {**run["states"], "knockout": knockout}})
    gone = np.isin(np.arange(N), [3, 40])
    assert np.isnan(holed.logits["knockout"][:, gone]).all()
    assert np.allclose(holed.logits["knockout"][:, ~gone], whole.logits["knockout"][:, ~gone])
    assert np.array_equal(holed.logits["clean"], whole.logits["clean"])


@pytest.mark.parametrize(
    ("name", "bad"),
    [("clean", "hole"), ("clean", np.nan), ("knockout", np.nan), ("knockout", np.inf)],
)
def test_broken_states_are_named_by_intervention_layer_and_question(name, bad):
    run = a_run()
    states = run["states"][name].copy()
    if bad == "hole":
        states[9] = np.nan
        where = "layer 1 "
    else:
        states[9, 1, 4] = bad
        where = "layer 2 "
    with pytest.raises(UserError, match=rf"'{name}' hold NaN or inf at {where}.*made:test:9\)"):
        fit({**run, "states": {**run["states"], name: states}})


def test_too_few_of_a_class_are_refused():
    with pytest.raises(UserError, match="made up: 0 wrong and 150 right"):
        fit({**a_run(), "z": np.zeros(N, dtype=int)}, dataset="made up")


def test_saved_probes_come_back_identical_and_read_the_same(tmp_path):
    run = a_run()
    readings, probes = fit(run, C=0.02, balance="none")
    probes.save(tmp_path / "probes" / "made")
    back = ProbeSet.load(tmp_path / "probes" / "made")
    for name in ("weights", "intercept", "n_train"):
        assert np.array_equal(getattr(back, name), getattr(probes, name))
        assert getattr(back, name).dtype == getattr(probes, name).dtype
    assert (back.probes, back.C, back.balance, back.calibrated) == (PROBES, 0.02, "none", True)
    again = back.logits(run["states"]["knockout"], run["fold"])
    assert np.array_equal(again, readings.logits["knockout"])
    names = sorted(path.name for path in (tmp_path / "probes" / "made").iterdir())
    assert names == ["probes.json", "probes.safetensors"]


def test_probes_that_cannot_be_read_are_said_so(tmp_path):
    with pytest.raises(UserError, match=r"No such file.*probes\.json"):
        ProbeSet.load(tmp_path)
    _, probes = fit(a_run())
    probes.save(tmp_path)
    _, others = fit(a_run(seed=1))
    others.save(tmp_path / "others")
    torn = (tmp_path / "others" / "probes.safetensors").read_bytes()
    (tmp_path / "probes.safetensors").write_bytes(torn)
    with pytest.raises(UserError, match="is not the file"):
        ProbeSet.load(tmp_path)
    (tmp_path / "probes.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        ProbeSet.load(tmp_path)
    about = tmp_path / "others" / "probes.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "format": 99}))
    with pytest.raises(UserError, match="format 99 is not 2"):
        ProbeSet.load(tmp_path / "others")
