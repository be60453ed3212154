"""The ΔP figure: the published manner, and the table's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kit.show_fixture import make_run
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D

from anchorscope.errors import UserError
from anchorscope.records import MODES
from anchorscope.run_folder.view import RunView, where
from anchorscope.show import plot_delta_p, write_figures
from anchorscope.show.canvas import FORMATS, save_figure
from anchorscope.show.charts import PALETTE, pale
from anchorscope.show.figures import STYLES, figure_of

FOUR = {"popqa": "PopQA", "triviaqa": "TriviaQA", "hotpotqa": "HotpotQA", "nq": "NQ"}
PAIRS = [color for color in PALETTE for _ in "QA"]  # one colour a dataset; A is dashed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunView]:
    folder = tmp_path_factory.mktemp("runs")
    small = make_run(folder / "1b", model="Llama-3.2-1B", datasets=FOUR, layers=6, n=60)
    large = make_run(folder / "3b", model="Llama-3.2-3B", datasets=FOUR, layers=9, n=60, seed=1)
    return [RunView.open(small), RunView.open(large)]


def curves(ax: Axes) -> dict[str, Line2D]:
    """Label -> line of the groups drawn in a panel."""
    return {str(line.get_label()): line for line in ax.lines if "Anchored" in str(line.get_label())}


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_colours_styles_and_legend_follow_the_published_order(runs: list[RunView]) -> None:
    figure = plot_delta_p(runs, mode="paper")
    expected = [f"{p}-Anchored ({title})" for title in FOUR.values() for p in "QA"]
    assert legend(figure) == expected
    handles = figure.legends[0].get_lines()
    assert [to_hex(handle.get_color()) for handle in handles] == PAIRS[:8]
    assert [handle.get_linestyle() for handle in handles] == ["-", "--"] * 4
    assert [ax.get_title() for ax in figure.axes] == ["Llama-3.2-1B", "Llama-3.2-3B"]
    for ax in figure.axes:
        lines = curves(ax)
        assert list(lines) == expected
        assert [to_hex(lines[name].get_color()) for name in expected] == PAIRS[:8]
        assert [lines[name].get_linestyle() for name in expected] == ["-", "--"] * 4
        assert ax.get_xlabel() == "Layer"
    assert figure.axes[0].get_ylabel() == "ΔP (points)"
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


@pytest.mark.parametrize("mode", ["paper", "strict"])
def test_lines_and_bands_are_the_tables_numbers(runs: list[RunView], mode) -> None:
    figure = plot_delta_p(runs, mode=mode)
    for ax, run in zip(figure.axes, runs, strict=True):
        for name, title in FOUR.items():
            for pathway in "QA":
                line = curves(ax)[f"{pathway}-Anchored ({title})"]
                rows = where(run.layers, dataset=name, mode=mode, pathway=pathway)
                np.testing.assert_array_equal(line.get_xdata(), rows["layer"])
                np.testing.assert_array_equal(line.get_ydata(), rows["delta_p"])
        bands = [c for c in ax.collections if isinstance(c, PolyCollection) and not c.get_hatch()]
        first = where(run.layers, dataset="popqa", mode=mode, pathway="Q")
        corners = bands[0].get_paths()[0].vertices
        assert corners[:, 1].min() == first["delta_p_low"].min()
        assert corners[:, 1].max() == first["delta_p_high"].max()


def test_control_is_its_own_q_and_a_in_a_pale_tone(runs: list[RunView]) -> None:
    ax = plot_delta_p(runs[0], mode="paper").axes[0]
    drawn = [line for line in ax.lines if line.get_label() == "_control"]
    assert len(drawn) == 8
    rows = runs[0].control_layers.query("dataset == 'popqa' and mode == 'paper'")
    for line, pathway in zip(drawn, "QA", strict=False):
        values = rows[rows["pathway"] == pathway]["delta_p"]
        np.testing.assert_array_equal(line.get_ydata(), values)
        assert to_hex(line.get_color()) == pale(PALETTE[0])
    assert any(list(line.get_ydata()) == [0, 0] for line in ax.lines)  # the line at zero


def test_both_modes_are_on_one_scale(runs: list[RunView]) -> None:
    one, two = plot_delta_p(runs[0], mode="both"), plot_delta_p(runs, mode="both")
    assert [ax.get_title() for ax in one.axes] == [f"Llama-3.2-1B, {m} mode" for m in MODES]
    assert [ax.get_ylabel() for ax in two.axes[::2]] == [f"ΔP (points)\n{m} mode" for m in MODES]
    for figure in (one, two):
        assert len({ax.get_ylim() for ax in figure.axes}) == 1
        assert len(figure.legends[0].get_texts()) == 8


def test_the_caption_says_mode_and_counts(runs: list[RunView]) -> None:
    figure = plot_delta_p(runs[0], mode="paper")
    said = " ".join(text.get_text() for text in reversed(figure.texts)).replace("\u00a0", " ")
    rows = runs[0].layers.query("dataset == 'nq' and mode == 'paper' and layer == 1")
    assert "Paper mode" in said
    assert "cumulative, before the softmax" in said
    assert f"{rows['n'].sum()} NQ" in said


def test_same_model_in_two_folders_shares_a_panel_unless_a_dataset_repeats(tmp_path: Path) -> None:
    one = RunView.open(make_run(tmp_path / "one", datasets={"a": "A"}, layers=3, n=20))
    two = RunView.open(make_run(tmp_path / "two", datasets={"b": "B"}, layers=3, n=20))
    again = RunView.open(make_run(tmp_path / "again", datasets={"a": "A"}, layers=3, n=20))
    (ax,) = plot_delta_p([one, two]).axes
    assert len(curves(ax)) == 4
    titles = [ax.get_title() for ax in plot_delta_p([one, again]).axes]
    assert titles == ["SmolLM2-135M-Instruct (one)", "SmolLM2-135M-Instruct (again)"]


def test_empty_groups_and_gaps_are_drawn_as_nothing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", layers=5, n=40, empty=("atlas",))
    file = folder / "tables" / "layers.csv"
    run = RunView.open(folder)
    table = run.layers
    gap = (table["dataset"] == "popqa") & (table["layer"].isin([2, 4]))
    table.loc[gap, ["delta_p", "delta_p_low", "delta_p_high"]] = np.nan
    table.to_csv(file, index=False)
    figure = plot_delta_p(RunView.open(folder), mode="paper")
    lines = curves(figure.axes[0])
    assert np.isnan(lines["Q-Anchored (Atlas)"].get_ydata()).all()
    q = lines["Q-Anchored (PopQA)"]
    assert np.flatnonzero(np.isnan(q.get_ydata())).tolist() == [1, 3]
    assert set(q.get_markevery()) >= {0, 2, 4}  # points without neighbours are seen as dots
    assert "Q-Anchored (Atlas)" in legend(figure)
    assert all(file.stat().st_size for file in save_figure(figure, tmp_path / "gaps"))


def test_saved_files_are_the_same_bytes_every_time(runs: list[RunView], tmp_path: Path) -> None:
    one = save_figure(plot_delta_p(runs), tmp_path / "one" / "delta.p")
    two = save_figure(plot_delta_p(runs), tmp_path / "two" / "delta.p")
    assert [file.name for file in one] == ["delta.p.png", "delta.p.svg", "delta.p.pdf"]
    for first, second in zip(one, two, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert one[0].read_bytes().startswith(b"\x89PNG")
    assert b"<dc:date>" not in one[1].read_bytes()
    assert b"CreationDate" not in one[2].read_bytes()


def test_many_processes_draw_the_files_that_one_draws(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", datasets={"a": "A$_$"}, model="a$_$b", layers=2, n=20)
    run = RunView.open(folder)  # whose dollar signs are text
    files = write_figures(run, workers=2)
    names = ["delta_p", "delta_p_strict", "delta_p_both", "probes", "controls"]
    assert [file.stem for file in files] == [name for name in names for _ in FORMATS]
    for name in ("delta_p_both", "controls"):
        for file in save_figure(figure_of(run, name), tmp_path / name):
            assert file.read_bytes() == (folder / "figures" / file.name).read_bytes()


def test_probe_and_control_figures_show_the_tables_numbers(runs: list[RunView]) -> None:
    (ax,) = figure_of(runs[0], "probes").axes
    drawn = {line.get_label(): line for line in ax.lines}
    rows = runs[0].probes.query("dataset == 'nq'")
    np.testing.assert_array_equal(drawn["NQ"].get_ydata(), rows["auroc"])
    axes = figure_of(runs[0], "controls").axes
    assert [ax.get_title() for ax in axes] == list(FOUR.values())
    drawn = {line.get_label(): line for line in axes[1].lines}
    rows = runs[0].controls.query("dataset == 'triviaqa' and intervention == 'neutral'")
    np.testing.assert_allclose(drawn["neutral tokens"].get_ydata(), 100 * rows["flip_rate"])


def test_wrong_choices_are_said(runs: list[RunView], cli) -> None:
    code, _, error = cli("figure", runs[0].path, "--style", "poster")
    assert code == 2 and "Unknown style 'poster'. Accepted: paper, slides." in error
    with pytest.raises(UserError, match=r"Unknown mode 'loose'\. Accepted: paper, strict, both"):
        plot_delta_p(runs, mode="loose")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no run to draw"):
        plot_delta_p([])


LONG = {name: f"{title}, the questions that were asked again" for name, title in FOUR.items()}
PIXELS = {"paper": (None, 2100), "slides": (1080, 1920)}  # height, width


@pytest.mark.parametrize("style", STYLES)
def test_a_style_has_its_size_and_leaves_the_caption_to_the_text(runs, cli, tmp_path, style):
    out = tmp_path / f"{style}.png"
    code, said, error = cli(
        "figure", *(run.path for run in runs), "--style", style, "--mode", "paper", "--out", out
    )
    assert code == 0, error
    height, width = PIXELS[style]
    shape = imread(out).shape
    assert shape[1] == width and (height is None or shape[0] == height)
    name, caption = said.strip().split("\n", 1)
    assert name == str(out)
    assert caption.startswith("Caption: Solid: question-anchored (Q). Dashed: answer-anchored (A).")
    assert "Llama-3.2-3B: " in caption and "\u00a0" not in caption


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("titles", [FOUR, LONG], ids=["published", "long"])
def test_two_panels_and_a_legend_that_stays_inside(runs, style, titles):
    views = []
    for run in runs:
        info = [{"name": name, "title": title} for name, title in titles.items()]
        views.append(RunView(run.path, {**run.info, "datasets": info}))
    figure = plot_delta_p(views, mode="strict", style=STYLES[style])
    figure.canvas.draw()
    assert [ax.get_title() for ax in figure.axes] == ["Llama-3.2-1B", "Llama-3.2-3B"]
    whole = figure.bbox
    for each in figure.legends:
        box = each.get_window_extent()
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1
        assert whole.y0 <= box.y0 and box.y1 <= min(ax.bbox.y0 for ax in figure.axes)
    assert legend(figure) == [f"{p}-Anchored ({title})" for title in titles.values() for p in "QA"]


def test_a_dataset_called_na_keeps_its_name_and_an_empty_group_is_nan(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", datasets={"NA": "NA"}, layers=2, n=20, empty=("NA",))
    run = RunView.open(folder)
    assert set(run.layers["dataset"]) == set(run.spans["dataset"]) == {"NA"}
    row = run.layers.query("mode == 'paper' and pathway == 'Q'")
    assert (row["n"] == 0).all() and row["delta_p"].isna().all()
