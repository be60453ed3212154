"""Describe a run that has no model, and publish any run: figures, report, the mark of the end."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from typing import Any

import pandas as pd

from anchorscope.config import Config
from anchorscope.pipeline.stages import Run
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.identity import git_revision, versions
from anchorscope.run_folder.store import Store
from anchorscope.run_folder.view import RunView
from anchorscope.show import write_figures, write_report


def describe(
    store: Store, config: Config, *, command: str, model: dict[str, Any], dataset: dict[str, Any]
) -> None:
    """Write run.json as a run with a model does, and an empty table of spans."""
    store.save_info(
        {
            "config": asdict(config),
            "command": command,
            "model": model,
            "datasets": [dataset],
            "versions": versions(),
            "git": git_revision(),
        }
    )
    empty = pd.DataFrame(columns=list(table_columns.SPANS))
    store.write("tables/spans.csv", partial(empty.to_csv, index=False))


def publish(run: Run, **extras: list[str]) -> RunView:
    """Write the figures and the report, and mark the run as finished, with what it has beside."""
    with run.stage("report"):
        view = RunView.open(run.store.path, unfinished_ok=True)
        write_figures(view)
        if find_spec("plotly") is None:
            run.progress.note("report.html needs the package plotly, which is not here: left out")
        else:
            write_report(view)
    run.store.save_info({"finished": True, **extras})
    return RunView.open(run.store.path)
