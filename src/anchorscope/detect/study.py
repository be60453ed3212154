"""Evaluate every detector on several runs of one model, and write all tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from anchorscope.claims.about_detectors import detector_claims
from anchorscope.detect.compare import detectors_table, enough_resamples, write_tables
from anchorscope.detect.evaluate import check_same_model, evaluate, transfer_table, within_rows
from anchorscope.detect.kinds import AUTO, METHODS, make_method
from anchorscope.detect.material import from_run
from anchorscope.detect.peer import peer_table
from anchorscope.errors import UserError
from anchorscope.progress import Progress, Quiet
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.view import RunView


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
        optional = {"transfer": self.transfer, "peer": self.peer}
        tables |= {name: table for name, table in optional.items() if table is not None}
        files = write_tables(folder, tables)
        scores = folder / "tables" / "detector_scores.parquet"
        return [*files, write_atomic(scores, self.scores.to_parquet())]


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
        make_method(name)  # a wrong name is an error before anything slow starts
    resamples = enough_resamples(resamples, len(names))
    folders = _open(runs)
    model = folders[0].model_name
    parts = [from_run(f, name, seed=seed, limit=limit) for f in folders for name in f.datasets]
    datasets = [part.name for part in parts]
    if len(set(datasets)) < len(datasets):
        raise UserError(
            f"Two of the runs have the same dataset ({', '.join(datasets)}). Give each dataset "
            "once."
        )
    peer = None
    if peers:
        others = _open(peers)
        theirs = [from_run(f, name) for f in others for name in f.datasets if name in datasets]
        peer = peer_table(
            parts, theirs, model=model, peer=others[0].model_name, folds=folds, seed=seed,
            resamples=resamples, progress=progress,
        )  # fmt: skip
    scores = evaluate(parts, names=names, folds=folds, seed=seed, progress=progress)
    table = detectors_table(scores, model=model, seed=seed, resamples=resamples)
    found = Study(scores=scores, table=table, transfer=None, peer=peer)
    if not transfer:
        return found
    keep(found)
    _note_prompts(folders, progress)
    rows = transfer_table(parts, model=model, names=names, seed=seed, progress=progress)
    return replace(found, transfer=pd.concat([within_rows(table), rows], ignore_index=True))


def _open(runs: Sequence[str | Path]) -> list[RunView]:
    """The run folders; a UserError where they are of different models."""
    folders = [RunView.open(run, collected_ok=True) for run in runs]
    check_same_model([folder.weights for folder in folders])
    return folders


def _note_prompts(folders: Sequence[RunView], progress: Progress) -> None:
    """A note where the runs asked their questions in different ways."""
    styles = {name: str(f.model.get("prompt")) for f in folders for name in f.datasets}
    if len(set(styles.values())) > 1:
        ways = ", ".join(f"{name} as {style}" for name, style in styles.items())
        progress.note(
            f"questions were asked in different ways ({ways}), and transfer holds that too; "
            "collect all of them with one --prompt"
        )
