"""Write tables, figures and report from states in a run folder, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import pandas as pd

from anchorscope.config import Config
from anchorscope.pipeline.analyse import pathway_tables, save, train_and_read
from anchorscope.pipeline.evidence import tables_of_evidence
from anchorscope.pipeline.stages import Run
from anchorscope.probes.labelled import Labelled
from anchorscope.records import Sample
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


def write_tables(
    run: Run, samples: Sequence[Sample], answers: Labelled, *, passes: Sequence[str]
) -> None:
    """Write every table of a run from the one shard of states of each pass."""
    readings = train_and_read(run, [answers], passes=passes)
    tables = pathway_tables(run, [answers], readings)
    tables |= tables_of_evidence(run, [answers], readings, samples, shards=1)
    save(run, samples, [answers], tables)


def publish(run: Run) -> RunView:
    """Write the figures and the report, mark the run as finished, and return it."""
    view = RunView.open(run.store.path, unfinished_ok=True)
    write_figures(view)
    write_report(view)
    run.store.save_info({"finished": True})
    return RunView.open(run.store.path)
