"""One question taken apart: every belief against a plain pass, and the errors of mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from kit.explore_fixture import IMAGE, START, TURNED
from kit.inspection_fixture import LAYERS, SEED, hostile_model, make_inspected, prompt_ids
from kit.plain import eager_mass, plain_states
from scipy.special import expit

import anchorscope as anc
from anchorscope.detect.calibration import Platt
from anchorscope.detect.detector import Detector
from anchorscope.detect.kinds import METHODS
from anchorscope.detect.prompts import Example
from anchorscope.detect.scored import Scored
from anchorscope.detect.side_probes import Beliefs
from anchorscope.engine.interventions import TokenPositions, keys_of
from anchorscope.errors import UserError
from anchorscope.inspection.result import heads_in
from anchorscope.models import Model
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.run_folder.identity import weights_hash
from anchorscope.run_folder.view import RunView, where

NEW = "Which country is Oslo in?"
OWN = "Which country is Kyoto 1 in?"
HEADS = [(block, head) for block in range(1, LAYERS + 1) for head in range(4)]


@pytest.fixture(scope="module")
def model() -> Model:
    return hostile_model()


@pytest.fixture(scope="module")
def run(model: Model, tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return RunView.open(make_inspected(tmp_path_factory.mktemp("inspect") / "run", model))


def whole(model: Model, one, question: str) -> tuple[int, ...]:
    """Prompt and answer up to the probe position, from the run's own prompt function."""
    prompt = prompt_ids(model, question)
    last = max(token.position for token in one.tokens if token.exact_answer)
    answer = [token for token in one.tokens if token.answer]
    ids = [model.tokenizer.convert_tokens_to_ids(token.text) for token in answer]
    return (*prompt, *ids)[: last + 1]


def beliefs(run: RunView, states: np.ndarray, fold: int | None = None) -> np.ndarray:
    """P(wrong) by strict mode's effect probe (b), by a plain product."""
    probes = ProbeSet.load(run.path / "probes" / "atlas")
    weights, intercept = probes.weights[2].astype(float), probes.intercept[2]
    logits = (weights * states[None]).sum(axis=-1) + intercept  # [fold, layer]
    return expit(logits.mean(axis=0) if fold is None else logits[fold])


def plain(model: Model, ids, cut=lambda row, block, query, key: False) -> np.ndarray:
    return plain_states(model, [ids], cut)[0].double().numpy()


def cutting(keys, first: int = 1, last: int = LAYERS):
    def cut(row: int, block: int, query: int, key: int) -> bool:
        return first <= block <= last and key in keys and query not in keys

    return cut


@pytest.mark.parametrize(("question", "fold"), [(NEW, None), (OWN, 1)])
def test_every_belief_is_that_of_a_plain_pass(model, run, question, fold) -> None:
    one = anc.inspect(model, question, run=run, subject="Rome", window=2)
    ids, prompt = whole(model, one, question), prompt_ids(model, question)
    exact = tuple(token.position for token in one.tokens if token.exact_question)
    assert model.tokenizer.decode([ids[at] for at in exact]) in ("countryOslo", "countryKyoto 1")
    assert one.cut == exact
    states = {"clean": plain(model, ids), "knockout": plain(model, ids, cutting(exact))}
    id = "atlas:test:1" if fold is not None else None
    for name in states:
        want = beliefs(run, states[name], fold)
        assert one.beliefs[name] == pytest.approx(want, abs=2e-3)
    sized = [plain(model, ids, cutting(exact, k - 1, k))[k - 1] for k in range(1, LAYERS + 1)]
    assert one.beliefs["window"] == pytest.approx(beliefs(run, np.stack(sized), fold), abs=2e-3)
    alone = plain(model, (prompt[0], *ids[len(prompt) :]))
    assert one.beliefs["answer-only"] == pytest.approx(beliefs(run, alone, fold), abs=2e-3)
    subject = "Oslo" if question == NEW else "Kyoto 1"
    patched = prompt_ids(model, question.replace(subject, "Rome")) + ids[len(prompt) :]
    want = beliefs(run, plain(model, patched), fold)
    assert one.beliefs["patch"] == pytest.approx(want, abs=2e-3)
    if id is not None:  # the control is drawn by the question's id, as in the run
        sample = next(s for s in run.answers if s.id == id)
        positions = TokenPositions(
            id=id, ids=ids, answer_at=len(prompt), question_tokens=sample.question_tokens,
            exact_question=exact, content_tokens=sample.content_tokens,
            mass=eager_mass(model, ids),
        )  # fmt: skip
        assert sample.prompt_ids == prompt
        keys = keys_of(positions, "neutral", seed=SEED)
        turn = min(token.position for token in one.tokens)
        state = plain(model, ids, lambda r, b, q, k: q >= turn and cutting(keys)(r, b, q, k))
        assert one.beliefs["neutral"] == pytest.approx(beliefs(run, state, fold), abs=2e-3)


def test_chosen_tokens_are_cut_instead(model, run) -> None:
    one = anc.inspect(model, NEW, run=run, cut="country", neutral=False, answer_only=False)
    assert list(one.beliefs) == ["clean", "knockout"]
    ids = whole(model, one, NEW)
    assert model.tokenizer.decode([ids[at] for at in one.cut]) == "country"
    want = beliefs(run, plain(model, ids, cutting(one.cut)))
    assert one.beliefs["knockout"] == pytest.approx(want, abs=2e-3)
    again = anc.inspect(model, NEW, run=run, cut=one.cut, neutral=False, answer_only=False)
    assert again.beliefs == one.beliefs
    nothing = anc.inspect(model, NEW, run=run, cut=[])
    assert nothing.beliefs["knockout"] == pytest.approx(nothing.beliefs["clean"], abs=2e-3)


def test_all_heads_together_are_the_knockout_and_a_late_one_leaves_what_came_before(
    model, run
) -> None:
    one = anc.inspect(model, NEW, run=run, heads=HEADS)
    assert one.beliefs["heads"] == pytest.approx(one.beliefs["knockout"], abs=1e-3)
    late = anc.inspect(model, NEW, run=run, heads=[(LAYERS, 1)])
    assert late.beliefs["heads"][:-1] == pytest.approx(late.beliefs["clean"][:-1], abs=1e-3)
    assert late.beliefs["heads"][-1] != pytest.approx(late.beliefs["clean"][-1], abs=1e-4)


def test_the_pathway_is_what_the_probes_vote(model, run) -> None:
    one = anc.inspect(model, NEW, run=run)
    ids = whole(model, one, NEW)
    probes = ProbeSet.load(run.path / "probes" / "atlas")
    clean, cut = (plain(model, ids, c)[one.layer - 1] for c in (cutting(()), cutting(one.cut)))
    at = probes.weights[:, :, one.layer - 1].astype(float)
    before, after = (at @ state + probes.intercept[:, :, one.layer - 1] for state in (clean, cut))
    assert one.pathway.votes == ((before > 0) != (after > 0)).sum()
    assert one.pathway.probes == 9  # three probes of each of three folds
    named = (before[1].mean() > 0) != (after[1].mean() > 0)  # strict mode's group is of probe a
    assert one.pathway.pathway == ("Q" if named else "A")
    assert one.wrong.probability == pytest.approx(one.beliefs["clean"][one.layer - 1])
    assert one.growth[-1] == pytest.approx(one.wrong.probability, abs=2e-4)  # E_A ends the answer
    own = anc.inspect(model, OWN, run=run)
    assert own.pathway.probes == 3 and own.verdict == "wrong" and one.verdict == ""


@pytest.mark.parametrize("mode", ["paper", "strict"])
def test_bands_and_calibration_are_those_of_the_run(model, run, mode) -> None:
    one = anc.inspect(model, NEW, run=run, mode=mode)
    table = where(run.pathways, mode=mode)
    seen = 0
    for layer in range(1, LAYERS + 1):
        predicted = int(one.beliefs["clean"][layer - 1] > 0.5)
        for group in ("Q", "A"):
            rows = where(table, layer=layer, prediction=predicted, pathway=group)
            low, high = one.bands[group][layer - 1]
            if len(rows) < 10:
                assert np.isnan(low) and np.isnan(high)
            else:
                seen += 1
                want = np.quantile(expit(rows["logit_knockout"]), (0.25, 0.75))
                assert (low, high) == pytest.approx(tuple(want))
    assert seen
    rows = where(table, layer=one.layer)
    near = rows[abs(expit(rows["logit_clean"]) - one.wrong.probability) <= 0.1]
    if len(near) >= 10:
        assert one.wrong.calibration.startswith(f"Of the run's {len(near)} answers")
        assert f"{near['z'].mean():.0%} were wrong" in one.wrong.calibration
    else:
        assert f"Only {len(near)} answers" in one.wrong.calibration


def test_a_notebook_shows_text_as_text(model, run) -> None:
    question = f"{START}{IMAGE}{TURNED} Where is Oslo?"
    one = anc.inspect(model, question, run=run)
    scored = Scored(
        question=question, answer=f"{IMAGE}{TURNED}", answer_entity="", probability=0.25,
        score=0.0, outcome="right", predicted_pathway="Q", predicted_pathway_probability=0.75,
        belief=(0.1, 0.9),
    )  # fmt: skip
    for shown in (one._repr_html_(), scored._repr_html_()):
        assert "<img" not in shown and "&lt;img src=x onerror=alert(1)&gt;" in shown
    panel = one._repr_html_()
    assert not set("\u202e\u202c") & set(panel) and "U+202E" in panel and "<svg" in panel
    assert "0.25" in scored._repr_html_() and "0.75" in scored._repr_html_()
    evil = RunView(run.path, run.info)
    evil.__dict__["findings"] = run.findings.assign(why=IMAGE)
    assert "&lt;img" in evil._repr_html_() and "<img" not in evil._repr_html_()


def test_the_chart_draws_every_pass(model, run) -> None:
    one = anc.inspect(model, NEW, run=run, subject="Rome")
    paths = dict(re.findall(r'class="belief" data-pass="([^"]+)" d="M([^"]+)"', one.chart()))
    assert list(paths) == list(one.beliefs)
    for name, path in paths.items():
        heights = [(198 - float(point.split(",")[1])) / 190 for point in path.split("L")]
        assert heights == pytest.approx(list(one.beliefs[name]), abs=1e-4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"question": "  "}, "Type a question"),
        ({"question": "x" * 2001}, "2001 characters"),
        ({"heads": [(9, 0)]}, "no head 9.0"),
        ({"window": 5}, "Accepted: 1 to 4"),
        ({"cut": [0]}, "Token 0 cannot be cut"),
        ({"cut": "Paris"}, "does not contain 'Paris'"),
        ({"dataset": "popqa"}, "Unknown dataset of the run 'popqa'"),
        ({"mode": "other"}, "Unknown mode 'other'"),
        ({"model": "bundled"}, "Load it once"),
    ],
)
def test_mistakes_get_a_sentence(model, run, options, sentence) -> None:
    asked = {"model": model, "question": NEW, "run": run} | options
    with pytest.raises(UserError, match=sentence):
        anc.inspect(**asked)


def test_heads_are_read_from_text() -> None:
    assert heads_in(" 12.3, 14:0;2.11 ") == ((12, 3), (14, 0), (2, 11))
    assert heads_in("") == ()
    with pytest.raises(UserError, match="'all' names no head"):
        heads_in("12.3 all")


def make_detector(model: Model) -> Detector:
    """A probe with random weights, asked as the run asks."""
    rng = np.random.default_rng(4)
    width = model.parts.width
    method = METHODS["probe"]().restore(
        {
            "coef": rng.standard_normal((1, width)).astype(np.float32),
            "intercept": np.zeros(1),
            "layers": np.array([2]),
            "C": np.array(1.0),
        },
    )
    method.calibration_ = Platt(0.4, 0.2)
    shape = {"blocks": model.blocks, "width": width, "dtype": "float32", "revision": None}
    texts = ["Who is it?", "What was that?", OWN]
    return Detector(
        name="probe",
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


def test_a_detector_gives_the_probability_that_it_gives_elsewhere(model, run) -> None:
    detector = make_detector(model)
    one = anc.inspect(model, NEW, run=run, detector=detector)
    scored = detector.score(model, NEW)
    assert one.wrong.scored.answer == scored.answer == one.answer
    assert one.wrong.probability == pytest.approx(scored.probability, abs=1e-3)
    assert one.wrong.scored.predicted_pathway == scored.predicted_pathway
    assert one.growth[-1] == pytest.approx(scored.probability, abs=1e-3)
    calibration, shown = one.wrong.calibration, one._repr_html_()
    assert "held-out scores of a test" in calibration
    assert "123 answers" in calibration and "off by 7%" in calibration
    assert "detector probe" in shown and f"predicts {scored.predicted_pathway}" in shown


def test_another_model_or_dtype_is_refused(model, run, tiny_llama, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="other weights"):
        anc.inspect(tiny_llama, NEW, run=run)
    info = json.loads((run.path / "run.json").read_text())
    info["model"]["dtype"] = "bfloat16"
    with pytest.raises(UserError, match="was made in bfloat16"):
        anc.inspect(model, NEW, run=RunView(tmp_path, info))
