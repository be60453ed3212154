"""The ΔP figure for papers and slides: its size, its legend, its caption."""

from __future__ import annotations

import pytest
from kit.show_fixture import make_run
from matplotlib.image import imread

from anchorscope.run_folder.view import RunView
from anchorscope.show import plot_delta_p
from anchorscope.show.delta_p import STYLES

SETS = {"popqa": "PopQA", "triviaqa": "TriviaQA", "hotpotqa": "HotpotQA", "nq": "NQ"}
LONG = {name: f"{title}, the questions that were asked again" for name, title in SETS.items()}
PIXELS = {"paper": (None, 2100), "slides": (1080, 1920)}  # height, width


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The four datasets of the published figure on two models."""
    place = tmp_path_factory.mktemp("styles")
    models = {"Llama-3.2-1B": 16, "Llama-3.2-3B": 28}
    return [make_run(place / m, model=m, layers=n, n=60, datasets=SETS) for m, n in models.items()]


@pytest.mark.parametrize("style", STYLES)
def test_a_style_has_its_size_and_leaves_the_caption_to_the_text(runs, cli, tmp_path, style):
    out = tmp_path / f"{style}.png"
    code, said, error = cli("figure", *runs, "--style", style, "--mode", "paper", "--out", out)
    assert code == 0, error
    height, width = PIXELS[style]
    shape = imread(out).shape
    assert shape[1] == width and (height is None or shape[0] == height)
    name, caption = said.strip().split("\n", 1)
    assert name == str(out)
    assert caption.startswith("Caption: Solid: question-anchored (Q). Dashed: answer-anchored (A).")
    assert "Llama-3.2-3B: " in caption and "\u00a0" not in caption


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("titles", [SETS, LONG], ids=["published", "long"])
def test_two_panels_and_a_legend_that_stays_inside(tmp_path, style, titles):
    views = [
        RunView.open(make_run(tmp_path / m, model=m, layers=6, n=60, datasets=titles))
        for m in ("one", "two")
    ]
    figure = plot_delta_p(views, mode="strict", style=STYLES[style])
    figure.canvas.draw()
    assert [ax.get_title() for ax in figure.axes] == ["one", "two"]
    whole = figure.bbox
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1
        assert whole.y0 <= box.y0 and box.y1 <= min(ax.bbox.y0 for ax in figure.axes)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == [f"{p}-Anchored ({title})" for title in titles.values() for p in "QA"]


def test_an_unknown_style(runs, cli):
    code, _, error = cli("figure", runs[0], "--style", "poster")
    assert code == 2 and "Unknown style 'poster'. Accepted: paper, slides." in error
