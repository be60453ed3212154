"""Several runs of one model to all tables of its detectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from anchorscope.claims.about_detectors import detector_claims
from anchorscope.detect.compare import detectors_table, enough_resamples, write_tables
from anchorscope.detect.evaluate import check_same_model, evaluate, transfer_table, within_rows
from anchorscope.detect.kinds import AUTO, METHODS, make_method
from anchorscope.detect.material import Material, from_run
from anchorscope.detect.peer import peer_table
from anchorscope.errors import UserError
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.view import RunView
from anchorscope.run_folder.whole import put_whole


@dataclass(frozen=True, kw_only=True)
class Study:
    """What an evaluation found."""

    scores: pd.DataFrame  # a row per answer, detector and split
    table: pd.DataFrame  # a row per dataset, split and detector
    transfer: pd.DataFrame | None
    peer: pd.DataFrame | None = None  # a row per dataset, position and set of answers

    @property
    def claims(self) -> pd.DataFrame:
        """The published claims about detectors, with a verdict each."""
        return detector_claims(self.table)

    def write(self, folder: Path) -> list[Path]:
        """The files written under tables/: detectors.csv, .md, .tex, detector_claims.csv,
        transfer.csv, peer.csv, and the scores.
        """
        tables = {"detectors": self.table}
        if len(self.claims):
            tables["detector_claims"] = self.claims
        also = {"transfer": self.transfer, "peer": self.peer}
        tables |= {name: table for name, table in also.items() if table is not None}
        files = write_tables(folder, tables)
        scores = folder / "tables" / "detector_scores.parquet"
        return [*files, put_whole(scores, self.scores.to_parquet())]


def study(
    runs: Sequence[str | Path],
    *,
    peers: Sequence[str | Path] = (),
    names: Sequence[str] = (),
    transfer: bool = False,
    limit: int | None = None,
    folds: int = 5,
    seed: int = 0,
    resamples: int | None = None,
    progress: Progress | None = None,
    keep: Callable[[Study], object] = lambda found: None,
) -> Study:
    """Every detector on every dataset of these runs; all of them where `names` is empty.

    With a `limit`, as many right as wrong answers of each dataset, that many in all at most.
    `peers` are runs of a second model over the same questions: its states are the control.
    `resamples` is chosen by the number of detectors where it is not given. `keep` gets what was
    found before transfer begins, which takes longest.
    """
    progress = progress or Quiet()
    names = tuple(names) or (*METHODS, AUTO)
    for name in names:
        make_method(name)  # a wrong name is said before anything slow starts
    resamples = enough_resamples(resamples, len(names))
    folders = [RunView.open(run, collected_ok=True) for run in runs]
    check_same_model([folder.weights for folder in folders])
    parts = _parts(folders, seed, limit)
    beside = _beside(
        parts,
        peers,
        folds=folds,
        seed=seed,
        resamples=resamples,
        progress=progress,
        model=folders[0].model_name,
    )
    options = {"names": names, "seed": seed, "progress": progress}
    scores = evaluate(parts, folds=folds, **options)
    model = folders[0].model_name
    table = detectors_table(scores, model=model, seed=seed, resamples=resamples)
    moved = None
    if transfer:
        keep(Study(scores=scores, table=table, transfer=None, peer=beside))
        _say_prompts(folders, progress)
        away = transfer_table(parts, model=model, **options)
        moved = pd.concat([within_rows(table), away], ignore_index=True)
    return Study(scores=scores, table=table, transfer=moved, peer=beside)


def _beside(parts: Sequence[Material], peers: Sequence[str | Path], **options: Any) -> Any:
    """The table of the second model's states; None where no run of one was given."""
    folders = [RunView.open(run, collected_ok=True) for run in peers]
    if not folders:
        return None
    check_same_model([folder.weights for folder in folders])
    asked = {part.name for part in parts}
    theirs = [from_run(f, name) for f in folders for name in f.datasets if name in asked]
    return peer_table(parts, theirs, peer=folders[0].model_name, **options)


def _say_prompts(folders: Sequence[RunView], progress: Progress) -> None:
    """A note where the runs asked their questions in different ways."""
    styles = {name: str(f.model.get("prompt")) for f in folders for name in f.datasets}
    if len(set(styles.values())) > 1:
        asked = ", ".join(f"{name} as {style}" for name, style in styles.items())
        progress.note(
            f"questions were asked in different ways ({asked}), and transfer holds that too; "
            "collect all of them with one --prompt"
        )


def _parts(folders: Sequence[RunView], seed: int, limit: int | None) -> list[Material]:
    parts = [from_run(f, name, seed=seed, limit=limit) for f in folders for name in f.datasets]
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise UserError(
            f"Two of the runs have the same dataset ({', '.join(names)}). Give each dataset once."
        )
    return parts
