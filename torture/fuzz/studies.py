"""The page over several runs, and figures, with hostile names: no element is theirs."""

from __future__ import annotations

import io
import tempfile
import warnings
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pandas as pd
from kit.show_fixture import make_run
from kit.strict_fixture import add_strict

from anchorscope.pipeline.study.study import COSTS, STUDY, study_claims
from anchorscope.run_folder.view import RunView
from anchorscope.show import study as study_page
from anchorscope.show.delta_p import plot_delta_p
from anchorscope.show.study import Failed, ShownPanel, ShownStudy
from torture.fuzz.pages import Elements, Seen, elements
from torture.fuzz.target import Target
from torture.fuzz.texts import MARKUP, part, seeded, text

PLACE = Path(tempfile.mkdtemp(prefix="fuzz-studies-"))


class Names(NamedTuple):
    """Every text of a study that somebody else chose."""

    title: str
    panel: str
    models: tuple[str, str]
    dataset: str  # its title
    error: str
    why: str
    finding: str
    folder: str


HARMLESS = Names(
    "Two models", "A family", ("One", "Two"), "Atlas", "No room.", "Few.", "undecided", "x"
)


@cache
def _run() -> RunView:
    folder = make_run(PLACE / "run", layers=2, n=12, datasets={"atlas": "Atlas"})
    return add_strict(folder)


@cache
def _claims() -> pd.DataFrame:
    claims = study_claims([ShownPanel(title="x", runs=[_run()])])
    assert claims is not None
    return claims


def _shown(names: Names) -> ShownStudy:
    """A study of two models, one of which failed, under these names."""
    info = _run().info
    own = {"model": {**info["model"], "name": names.models[0]},
           "datasets": [{**of, "title": names.dataset} for of in info["datasets"]]}  # fmt: skip
    run = RunView(_run().path, {**info, **own})
    numbers = dict.fromkeys(STUDY, 0.5)
    said = {"panel": names.panel, "dataset": names.dataset, "folder": names.folder,
            "error": names.error, "why": names.why, "finding": names.finding}  # fmt: skip
    rows = [{**numbers, **said, "model": model, "state": state}
            for model, state in zip(names.models, ("finished", "failed"), strict=True)]  # fmt: skip
    costs = [{**dict.fromkeys(COSTS, 1.0), "model": model} for model in names.models]
    claims = _claims().replace({_run().model_name: names.models[0]})
    folder = PLACE / "study"
    folder.mkdir(exist_ok=True)
    return ShownStudy(
        title=names.title,
        folder=folder,
        panels=[ShownPanel(title=names.panel, runs=[run])],
        failed=[Failed(names.models[1], names.error)],
        table=pd.DataFrame(rows, columns=list(STUDY)),
        claims=claims,
        costs=pd.DataFrame(costs, columns=list(COSTS)),
    )


def _written(names: Names) -> str:
    """The page; its two pictures are drawn elsewhere."""
    real, picture = study_page.save_figure, PLACE / "picture.png"
    picture.write_bytes(b"\x89PNG")

    def save(figure: Any, stem: Path) -> list[Path]:
        (stem.parent).mkdir(exist_ok=True)
        stem.with_name(stem.name + ".png").write_bytes(b"x")  # the name is one that a file can have
        assert stem.parent == PLACE / "study" / "figures"
        return [picture]

    drawn = study_page.plot_delta_p
    study_page.save_figure, study_page.plot_delta_p = save, lambda *args, **options: None  # type: ignore[assignment]
    try:
        return study_page.page(_shown(names))
    finally:
        study_page.save_figure, study_page.plot_delta_p = real, drawn


@cache
def _harmless() -> Elements:
    return elements(_written(HARMLESS))


def check_study(given: Names) -> None:
    """The page has the elements of a harmless one, a policy, and no script."""
    page = _written(given)
    assert elements(page) == _harmless()
    policies = [of for name, of in Seen(page).elements if "http-equiv" in of]
    assert [of["http-equiv"] for of in policies] == ["Content-Security-Policy"]
    assert "default-src 'none'" in str(policies[0]["content"])
    assert "script" not in {name for name, _ in _harmless()}


def check_figure(given: Names) -> None:
    """A figure with hostile names is drawn, and its drawing as text holds no element of theirs."""
    import matplotlib.pyplot as plt

    runs = list(_shown(given).panels[0].runs)
    figure = plot_delta_p(runs, mode="paper")
    out = io.StringIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # letters that no font here has
            figure.savefig(out, format="svg")
    finally:
        plt.close(figure)
    names = {name for name, _ in Seen(out.getvalue()).elements}
    assert not names & {"script", "img", "iframe", "a", "foreignobject", "image"}, names


def _odd(r: Random) -> str:
    said = r.choice((text, part))(r)
    return (
        r.choice(MARKUP) + said + r.choice((*MARKUP, "$x", "$\\frac$", "\\", "x" * 400))
    ).strip()


def _names(r: Random) -> Names:
    return Names(*(_odd(r), _odd(r), (_odd(r), _odd(r)), _odd(r), _odd(r), _odd(r), _odd(r),
                   _odd(r).replace("/", "")[:80].replace("\x00", "")))  # fmt: skip


TARGETS = (
    Target(name="pages of studies", inputs=seeded(_names), check=check_study, share=3),
    Target(name="figures", inputs=seeded(_names), check=check_figure, share=0.05),
)
