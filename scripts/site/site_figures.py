"""The interactive figures of the site, from the tables that lie beside its pages.

A page asks for one by a line of its own: `<!-- figure: gaps -->`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

DOCS = Path(__file__).parents[2] / "docs"
TITLES = {"popqa": "PopQA", "triviaqa": "TriviaQA", "hotpotqa": "HotpotQA", "nq": "NQ-open"}
PAPER, STRICT, BAND = "#e07b00", "#1f77b4", "rgba(128,128,128,0.35)"
DECISIONS = {"holds": "#3a923a", "fails": "#c03d3e", "undecided": "#e1b12c", "not shown": "#9aa5b1"}
_MODES = {"paper": "Paper mode", "strict": "Strict mode"}


def gaps() -> go.Figure:
    """The gap of Q and A in both modes beside what one mechanism gives; a row a dataset."""
    table = pd.read_csv(DOCS / "replication" / "study.csv")
    names = [f"{row.model} · {TITLES[row.dataset]}" for row in table.itertuples()]
    told = [
        f"<b>{row.finding}</b>: {row.why}<br>power {row.power:.0%}, n {row.n:,}, layer {row.layer}"
        for row in table.itertuples()
    ]
    figure = go.Figure()
    figure.add_bar(
        y=names, x=table["null_high"] - table["null_low"], base=table["null_low"],
        orientation="h", marker_color=BAND, width=0.7, name="what one mechanism gives",
        hovertemplate="one mechanism: %{base:.1f} to %{customdata:.1f}<extra></extra>",
        customdata=table["null_high"],
    )  # fmt: skip
    figure.add_scatter(
        y=names, x=table["paper_gap"], mode="markers", name="paper mode",
        marker={"color": PAPER, "size": 10, "symbol": "circle-open", "line": {"width": 2}},
        hovertemplate="paper mode: %{x:.1f}<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(
        y=names, x=table["strict_gap"], mode="markers", name="strict mode, 95 % interval",
        marker={"color": STRICT, "size": 9},
        error_x={
            "array": table["strict_gap_high"] - table["strict_gap"],
            "arrayminus": table["strict_gap"] - table["strict_gap_low"],
        },
        customdata=told, hovertemplate="strict mode: %{x:.1f}<br>%{customdata}<extra></extra>",
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="gap of Q and A at the layer of the best probe, points of ΔP")
    return _dressed(figure, height=520, bars="overlay")


def claims() -> go.Figure:
    """Every claim by model and dataset, one mode above the other, coloured by its decision."""
    table = pd.read_csv(DOCS / "replication" / "claims.csv")
    several = table["dataset"].str.contains(",")
    table["of"] = table["dataset"].where(~several, "all").map(TITLES | {"all": "all four"})
    table["models"] = table["model"].where(~table["model"].str.contains(","), "both Qwens")
    rows = list(dict.fromkeys(table["claim"]))
    order = [*TITLES.values(), "all four"]
    models = list(dict.fromkeys(table["models"]))
    pairs = set(zip(table["models"], table["of"], strict=True))
    found = sorted(pairs, key=lambda pair: (models.index(pair[0]), order.index(pair[1])))
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, subplot_titles=tuple(_MODES.values()),
        vertical_spacing=0.06,
    )  # fmt: skip
    for at, mode in enumerate(_MODES, start=1):
        figure.add_trace(_decided(table, mode, rows, found), row=at, col=1)
    for said, color in DECISIONS.items():  # the legend: a heat map has none of its own
        figure.add_scatter(
            x=[None], y=[None], mode="markers", name=said,
            marker={"color": color, "size": 12, "symbol": "square"},
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", dtick=1)
    figure.update_layout(legend_y=1.05)
    return _dressed(figure, height=900)


def _decided(
    table: pd.DataFrame, mode: str, rows: list[str], columns: list[tuple[str, str]]
) -> go.Heatmap:
    """A cell for each claim and column; empty where the claim does not speak of it."""
    said = [
        f"<b>{row['claim']}</b>: {row['statement']}<br>{row['models']}, {row['of']}<br>"
        f"{row[f'{mode}_verdict']} ({row[f'{mode}_value']:.2f}; "
        f"{row[f'{mode}_low']:.2f} to {row[f'{mode}_high']:.2f})"
        for _, row in table.iterrows()
    ]
    cells = table.assign(code=table[f"{mode}_verdict"].map(list(DECISIONS).index), said=said)
    code, text = (
        cells.pivot(index="claim", columns=["models", "of"], values=name).reindex(
            index=rows, columns=pd.MultiIndex.from_tuples(columns)
        )
        for name in ("code", "said")
    )
    steps = [
        [(at + end) / len(DECISIONS), color]
        for at, color in enumerate(DECISIONS.values())
        for end in (0, 1)
    ]
    return go.Heatmap(
        z=code.to_numpy(float), x=[list(part) for part in zip(*columns, strict=True)], y=rows,
        text=text.fillna("").to_numpy(str), zmin=-0.5, zmax=len(DECISIONS) - 0.5,
        colorscale=steps, showscale=False, xgap=2, ygap=2, hoverongaps=False,
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def worlds() -> go.Figure:
    """How often each mode says "two groups" in worlds whose truth is known."""
    table = pd.read_csv(DOCS / "worlds.csv")
    names = [_world_name(row) for row in table.itertuples()]
    figure = go.Figure()
    for mode, color in (("paper", PAPER), ("strict", STRICT)):
        figure.add_bar(
            y=names, x=100 * table[f"{mode}_holds"], orientation="h", marker_color=color,
            name=f"{mode} mode", customdata=table[["findings", f"{mode}_gap"]],
            hovertemplate="%{x:.1f} % of worlds; gap %{customdata[1]:.1f}"
            "<br>strict findings: %{customdata[0]}<extra></extra>",
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", tickfont={"size": 10})
    figure.update_xaxes(title="two groups reported, % of simulated worlds (pathways only in bold)")
    return _dressed(figure, height=14 * len(names))


def _world_name(row: Any) -> str:
    """The world in bold where it has pathways, and what tells it from others of its name."""
    name = f"<b>{row.world}</b>" if row.true else str(row.world)
    more = {"states": "", "width": 32, "strength": 4.0, "belief": 1.5, "control": "jolt",
            "missed": 0.3, "lost": 1.0, "mixture": 0.5, "templates": 4}  # fmt: skip
    facts = [f"n {row.samples}", f"noise {row.noise:g}"]
    for column, usual in more.items():
        value = getattr(row, column, usual)
        facts += [f"{column} {value}"] if pd.notna(value) and value != usual else []
    return f"{name} ({', '.join(facts)})"


def detectors() -> go.Figure:
    """AUROC of each detector on entities it was not trained on, a menu for the model."""
    figure, tables = go.Figure(), {}
    for file in ("qwen2.5-coder-1.5b", "smollm2-135m"):
        table = pd.read_csv(DOCS / "detection" / f"{file}.csv")
        tables[file] = table[table["split"] == "entity"]
    for file, table in tables.items():
        for dataset, part in table.groupby("dataset", sort=False):
            figure.add_scatter(
                y=part["title"], x=part["auroc"], mode="markers", name=TITLES[str(dataset)],
                visible=file == "qwen2.5-coder-1.5b",
                error_x={"array": part["auroc_high"] - part["auroc"], "thickness": 1,
                         "arrayminus": part["auroc"] - part["auroc_low"]},
                hovertemplate="%{y}: %{x:.3f}<extra>" + TITLES[str(dataset)] + "</extra>",
            )  # fmt: skip
    sizes = {file: table["dataset"].nunique() for file, table in tables.items()}
    buttons = [
        {"label": file, "method": "update",
         "args": [{"visible": [name == file for name, n in sizes.items() for _ in range(n)]}]}
        for file in tables
    ]  # fmt: skip
    figure.update_layout(updatemenus=[{"buttons": buttons, "x": 1, "y": 1.12, "xanchor": "right"}])
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="AUROC with its 95 % interval, folds disjoint by entity")
    return _dressed(figure, height=680)


def _dressed(figure: go.Figure, *, height: int, bars: str = "group") -> go.Figure:
    """No background of its own and grey text, so that it reads on light and dark pages."""
    figure.update_layout(
        height=height, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#7f8c99", "size": 12}, margin={"l": 10, "r": 10, "t": 40, "b": 10},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        barmode=bars, hoverlabel={"align": "left"},
    )  # fmt: skip
    figure.update_xaxes(gridcolor="rgba(128,128,128,0.2)", zerolinecolor="#7f8c99", automargin=True)
    figure.update_yaxes(gridcolor="rgba(128,128,128,0.1)", automargin=True)
    return figure


FIGURES: dict[str, Callable[[], go.Figure]] = {
    "gaps": gaps, "claims": claims, "worlds": worlds, "detectors": detectors,
}  # fmt: skip
