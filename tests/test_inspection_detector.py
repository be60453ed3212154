"""One question taken apart with a detector: it says what it says elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from kit.inspection_fixture import LAYERS, hostile_model, make_inspected, prompt_ids

import anchorscope as anc
from anchorscope.detect.deployed.beliefs import Beliefs
from anchorscope.detect.deployed.bind import Example
from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.kinds import METHODS
from anchorscope.detect.method import Platt
from anchorscope.models import Model
from anchorscope.run_folder.identity import weights_hash
from anchorscope.run_folder.view import RunView

NEW, OWN = "Which country is Oslo in?", "Which country is Kyoto 1 in?"


@pytest.fixture(scope="module")
def model() -> Model:
    return hostile_model()


@pytest.fixture(scope="module")
def run(model: Model, tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return RunView.open(make_inspected(tmp_path_factory.mktemp("inspect") / "run", model))


def make_detector(model: Model, name: str = "probe") -> Detector:
    """A detector with random weights, asked as the run asks."""
    rng = np.random.default_rng(4)
    width = model.parts.width
    method = METHODS[name]().restore(
        {"coef": rng.standard_normal(width).astype(np.float32), "intercept": np.zeros(1)},
        {"layer": 2, "C": 1.0},
    )
    method.calibration_ = Platt(0.4, 0.2)
    shape = {"blocks": model.blocks, "width": width, "dtype": "float32", "revision": None}
    texts = ["Who is it?", "What was that?", OWN]
    return Detector(
        name=name,
        method=method,
        model={"name": "tiny", "source": "tiny", "weights": weights_hash(model.lm), **shape},
        prompt={"style": "text", "shots": 1, "max_tokens": 5, "finder": "auto", "dataset": "atlas"},
        examples=tuple(Example(question=q, prompt_ids=prompt_ids(model, q)) for q in texts),
        threshold=0.5,
        calibrated_on="held-out scores of a test",
        trained_on={"datasets": ["atlas"], "answers": 0, "wrong": 0},
        evaluation={"auroc": 0.81, "ece": 0.07, "n": 123},
        licence={"detector": "other"},
        beliefs=Beliefs(
            coef=rng.standard_normal((LAYERS, width)).astype(np.float32),
            intercept=np.zeros(LAYERS),
            gate=rng.standard_normal(width).astype(np.float32),
        ),
    )


def test_a_detector_says_what_it_says_elsewhere(model, run) -> None:
    detector = make_detector(model)
    one = anc.inspect(model, NEW, run=run, detector=detector)
    scored = detector.score(model, NEW)
    assert one.wrong.scored.answer == scored.answer == one.answer
    assert one.wrong.probability == pytest.approx(scored.probability, abs=1e-3)
    assert one.wrong.scored.predicted_pathway == scored.predicted_pathway
    assert one.growth[-1] == pytest.approx(scored.probability, abs=1e-3)
    said = one.wrong.calibration
    assert "held-out scores of a test" in said and "123 answers" in said and "off by 7%" in said
    shown = one._repr_html_()
    assert "detector probe" in shown and f"detector predicts {scored.predicted_pathway}" in shown
