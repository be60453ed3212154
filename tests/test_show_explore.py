"""What the page of samples holds: each number against the run folder, each token in its role."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from kit.evidence_fixture import simulated
from kit.explore_fixture import QUESTION, SHARED, make_evil, make_tokens
from kit.show_fixture import make_run
from safetensors.numpy import load_file
from scipy.stats import linregress

from anchorscope.errors import UserError
from anchorscope.run_folder.view import RunView, where
from anchorscope.show.token_texts import Tokens, tokens_of
from anchorscope.show.view_page import beliefs_of, halves, lines, write_view
from anchorscope.simulate import Truth


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """States, probes and tables of a real analysis, of made-up states."""
    truth = Truth(world="two-pathways", layers=3, samples=90, width=8)
    return simulated(tmp_path_factory.mktemp("run") / "run", truth)


def unpack(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<f2")


def test_half_precision_keeps_numbers_and_the_side_of_zero() -> None:
    exact = np.array([[0.5, -3.1415], [1e-12, -1e-12], [np.nan, 1e9]])
    read = unpack(halves(exact)).reshape(exact.shape)
    assert read[0] == pytest.approx(exact[0], rel=2**-11)
    assert read[1, 0] > 0
    assert read[1, 1] <= 0
    assert np.isnan(read[2, 0])
    assert read[2, 1] == 65504


def test_beliefs_are_the_table_and_a_plain_loop_over_states_and_probes(run: RunView) -> None:
    beliefs = beliefs_of(run)
    table = where(run.pathways, mode="strict", layer=2).set_index("id").loc[list(beliefs.ids)]
    assert beliefs.logits["clean"]["strict"][:, 1] == pytest.approx(table["logit_clean"])
    assert beliefs.logits["knockout"]["strict"][:, 1] == pytest.approx(table["logit_knockout"])
    assert [("", "Q", "A")[g] for g in beliefs.pathway["strict"][:, 1]] == table["pathway"].tolist()
    states = load_file(run.path / "states" / "neutral" / "00000.safetensors")["states"]
    probes = load_file(run.path / "probes" / "simulated" / "probes.safetensors")
    fold = run.samples["fold"].to_numpy(int)
    for place, layer in ((0, 0), (17, 2), (89, 1)):
        for mode, probe in (("paper", 0), ("strict", 2)):  # the third probe gives strict effects
            at = (probe, fold[place], layer)
            logit = float(states[place, layer] @ probes["weights"][at]) + probes["intercept"][at]
            assert beliefs.logits["neutral"][mode][place, layer] == pytest.approx(logit, abs=1e-4)


def test_the_page_of_a_run_without_states_has_what_the_table_has(tmp_path: Path) -> None:
    run = RunView.open(make_run(tmp_path / "run", layers=3, n=40))
    beliefs = beliefs_of(run)
    assert set(beliefs.logits) == {"clean", "knockout"}
    unread = ~run.samples["id"].isin(run.pathways["id"]).to_numpy()
    assert unread.any()
    assert (np.isnan(beliefs.logits["clean"]["paper"]).all(axis=1) == unread).all()
    assert (beliefs.pathway["paper"][unread] == 0).all()


def test_the_line_of_one_mechanism_is_the_least_squares_line(run: RunView) -> None:
    (drawn,) = lines(run, beliefs_of(run), "paper")
    table = where(run.pathways, mode="paper", layer=3)
    fit = linregress(table["logit_clean"], table["logit_knockout"])
    assert drawn["slope"][2] == pytest.approx(fit.slope)
    assert drawn["intercept"][2] == pytest.approx(fit.intercept)


def test_the_page_holds_the_figure_of_the_tables(run: RunView, tmp_path: Path) -> None:
    text = write_view([run], tmp_path / "view.html").read_text(encoding="utf-8")
    head = json.loads(re.findall(r'id="run-0">(.*?)</script>', text)[0])
    view = head["views"]["strict"]
    rows = where(run.layers, dataset="simulated", mode="strict", pathway="Q")
    (curve,) = (line for line in view["curves"] if not line["dashed"])
    assert curve["value"] == rows["delta_p"].tolist() and curve["dataset"] == "simulated"
    rows = where(run.control_layers, mode="strict", pathway="A")
    (control,) = (line for line in view["controls"] if line["dashed"])
    assert control["value"] == rows["delta_p"].tolist()
    assert head["start"] == run.findings["layer"].iloc[0]


def test_tokens_have_their_text_and_their_role(tmp_path: Path) -> None:
    run = RunView.open(make_tokens(make_run(tmp_path / "run", layers=2, n=20)))
    tokens = tokens_of(run.answers, run.model)
    assert isinstance(tokens, Tokens)
    (shared, _) = tokens.shared.values()
    assert "".join(tokens.texts[id] for id in shared).startswith(SHARED)
    for place, sample in enumerate(run.answers):
        text = [tokens.texts[id] for id in tokens.ids[place]]
        assert "".join(text).endswith(f"{sample.question.text}\nA: {sample.answer.text}")
        subject = [t for t, role in zip(text, tokens.roles[place], strict=True) if role & 2]
        assert "".join(subject) == sample.question.subjects[0]
        entity = [t for t, role in zip(text, tokens.roles[place], strict=True) if role & 8]
        assert "".join(entity) == ("France" if sample.answer.text else "")
        answer = [t for t, role in zip(text, tokens.roles[place], strict=True) if role & 4]
        assert "".join(answer) == sample.answer.text


def test_without_the_right_tokenizer_the_page_says_why(tmp_path: Path) -> None:
    run = RunView.open(make_evil(tmp_path / "run"))
    other = RunView.open(make_run(tmp_path / "other", n=20, layers=2))

    def why(model: dict) -> str:
        tokens = tokens_of(other.answers, model)
        assert isinstance(tokens, str)
        return tokens

    assert "does not give back the questions" in why(dict(run.model))
    assert "is not on this machine" in why({"name": "gone", "source": str(tmp_path / "nowhere")})
    assert "is not on this machine" in why({"name": "gone", "source": "org/name"})
    assert "does not say" in why({"name": "mine"})
    (tmp_path / "run" / "model" / "tokenizer.json").write_text("{")
    assert "could not be read" in why(dict(run.model))


def test_the_policy_names_the_hashes_of_what_is_there(tmp_path: Path) -> None:
    text = write_view([RunView.open(make_evil(tmp_path / "run"))]).read_text(encoding="utf-8")
    (policy,) = re.findall(r'Security-Policy" content="([^"]*)"', text)
    for kind in ("script", "style"):
        (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "connect-src" not in policy  # and so nothing may be fetched
    assert QUESTION.split("{")[0] not in text  # only inside JSON, with < as an escape


def test_runs_that_cannot_be_shown_are_refused(tmp_path: Path, cli) -> None:
    one = make_run(tmp_path / "one", n=20, layers=2)
    other = make_run(tmp_path / "other", n=20, layers=2, datasets={"x": "X"})
    with pytest.raises(UserError, match="share no question"):
        write_view([RunView.open(one), RunView.open(other)])
    code, _, error = cli("view", one, one, one)
    assert code == 2 and "Accepted: one run, or two" in error
    info = json.loads((one / "run.json").read_text())
    (one / "run.json").write_text(json.dumps(info | {"finished": False}))
    code, _, error = cli("view", one)
    assert code == 2 and "not finished" in error


@pytest.mark.skipif(sys.platform != "linux", reason="the browser of $BROWSER")
def test_a_browser_that_never_ends_does_not_hold_the_command(tmp_path, monkeypatch, cli) -> None:
    folder, seen = make_run(tmp_path / "run", n=20, layers=2), tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}.new\nmv {seen}.new {seen}\nexec sleep 20\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    assert cli("view", folder, "--no-open")[0] == 0
    assert cli("view", folder, "--out", tmp_path / "new" / "page.html")[0] == 0
    address = (tmp_path / "new" / "page.html").resolve().as_uri()
    for _ in range(300):
        if seen.exists():
            break
        time.sleep(0.1)
    assert seen.read_text().strip() == address


def test_without_a_screen_no_browser_is_asked(tmp_path: Path, monkeypatch) -> None:
    from anchorscope.cli.results import open_in_browser

    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert open_in_browser("file:///x") is False
