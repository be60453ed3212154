"""Read a finished run folder lazily, and check each table against its schema.

A folder may come from another person, with forged tables and checksums that fit them. So each table
is compared with the schema in `table_columns` and with run.json when it is read, and every command
can rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import pandas as pd

from anchorscope.errors import UserError, beside, did_you_mean, in_a_line
from anchorscope.records import Sample
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.disk import refuse_unsafe
from anchorscope.run_folder.manifest import REMAINING, RUN, check_info, read_info, require_whole
from anchorscope.run_folder.remote import local_folder
from anchorscope.run_folder.samples import from_frame
from anchorscope.run_folder.table_columns import Columns

ROBUST_TABLE = "tables/robust.csv"  # only with --robust


def _csv(name: str, columns: Columns, *, optional: bool = False) -> cached_property[pd.DataFrame]:
    """Make a property that reads tables/<name>.csv; a missing `optional` table has no rows."""
    return cached_property(lambda run: _read_csv(run, name, columns, optional=optional))


def _rows(piece: str, columns: Columns) -> cached_property[pd.DataFrame]:
    """Make a property that reads the shards of a piece of evidence; empty without any."""

    def read(run: RunView) -> pd.DataFrame:
        files = sorted((run.path / "evidence" / piece).glob("*.parquet"))
        names = [file.relative_to(run.path).as_posix() for file in files]
        parts = [_read_parquet(run, name, columns) for name in names]
        return pd.concat(parts or [pd.DataFrame(columns=list(columns))], ignore_index=True)

    return cached_property(read)


@dataclass(frozen=True)
class RunView:
    """A finished run folder, read from disk lazily and never written to."""

    path: Path
    info: Mapping[str, Any]  # run.json

    layers = _csv("layers", table_columns.LAYERS)
    control_layers = _csv("control_layers", table_columns.CONTROL_LAYERS, optional=True)
    probes = _csv("probes", table_columns.PROBES)
    output = _csv("output", table_columns.OUTPUT, optional=True)
    associated = _csv("associated", table_columns.ASSOCIATED, optional=True)
    controls = _csv("controls", table_columns.CONTROLS)
    strict = _csv("strict", table_columns.STRICT)
    claims = _csv("claims", table_columns.CLAIMS)
    spans = _csv("spans", table_columns.SPANS)
    ablation = _csv("ablate", table_columns.ABLATION)  # only with --ablate
    robust = _csv("robust", table_columns.ROBUST)  # only with --robust
    saliency = _rows("saliency", table_columns.SALIENCY_ROWS)
    donors = _rows("donors", table_columns.DONOR_ROWS)  # of each patch
    sampled = _rows("sampled", table_columns.SAMPLED_ROWS)  # drawn answers to each question
    _p_true_rows = _rows("ptrue", table_columns.P_TRUE_ROWS)

    @classmethod
    def open(
        cls, path: str | Path, *, unfinished_ok: bool = False, collected_ok: bool = False
    ) -> RunView:
        """Open a run folder for reading.

        Args:
            path: The folder that `out` named.
            unfinished_ok: Also open a run that is still under way.
            collected_ok: Also open a folder of `detect collect`, which has no analysis in it.

        Returns:
            The run, whose tables are read when they are first used.

        Examples:
            >>> import anchorscope as anc
            >>> run = anc.RunView.open("runs/atlas")
            >>> run.model_name, run.datasets
            ('SmolLM2-135M-Instruct', ['atlas'])
            >>> run.delta_p().columns[:5].tolist()
            ['model', 'dataset', 'layer', 'mode', 'pathway']

        """
        folder = local_folder(path, states=collected_ok)
        if not folder.is_dir():
            meant = did_you_mean(folder, beside(folder))
            raise UserError(
                f"There is no folder '{folder}'. Give the folder of a finished run.{meant}"
            )
        refuse_unsafe(folder)
        info = read_info(folder)
        if info is None:
            raise UserError(
                f"'{folder}' is not a run folder: it has no run.json. Give what --out named."
            )
        if not (unfinished_ok or info.get("finished") is True):
            raise UserError(
                f"The run in '{folder}' is not finished. "
                "Run its command again to let it continue, then try once more."
            )
        check_info(info, folder / RUN)
        if "only" in (info.get("identity") or {}) and not collected_ok:
            raise UserError(
                f"'{folder}' was collected for detectors: nothing in it was analysed. Give it to "
                "`anchorscope detect`, or ask `anchorscope run` for a folder of its own."
            )
        return cls(folder, info)

    @property
    def model(self) -> Mapping[str, Any]:
        """The model's part of run.json."""
        return self.info["model"]

    @property
    def model_name(self) -> str:
        return str(self.model["name"])

    @property
    def weights(self) -> str:
        """The hash of the model's weights; its name where the run had no weights."""
        return str(self.model.get("weights") or self.model["name"])

    @property
    def titles(self) -> dict[str, str]:
        """The title of each dataset by its short name, in the run's order."""
        return {str(d["name"]): str(d.get("title") or d["name"]) for d in self.info["datasets"]}

    @property
    def datasets(self) -> list[str]:
        """The short names of the datasets, in the run's order."""
        return list(self.titles)

    @property
    def config(self) -> Mapping[str, Any]:
        return self.info.get("config") or {}

    @property
    def unit(self) -> str:
        """The unit of ΔP in this run's tables: points or percent."""
        return "percent" if self.config.get("delta") == "relative" else "points"

    @property
    def has_robust(self) -> bool:
        """Whether the run has robust.csv, the finding under other choices."""
        return (self.path / "tables/robust.csv").is_file()

    @cached_property
    def findings(self) -> pd.DataFrame:
        """The finding of every dataset, and the answers to the five questions behind it."""
        columns, key = table_columns.FINDINGS, ["dataset", "layer"]
        table = _read_csv(self, "findings", columns)
        merged = table.merge(self.strict[key], how="left", on=key, indicator=True)
        if set(merged["_merge"]) != {"both"}:
            raise _senseless(self.path / "tables/findings.csv", "strict.csv lacks a layer it names")
        return table

    @cached_property
    def detector_claims(self) -> pd.DataFrame:
        """The claims about detectors; empty until `detect eval` writes them into this folder."""
        table = _read_csv(self, "detector_claims", ("claim",), optional=True)
        table = table.reindex(columns=list(table_columns.CLAIMS))
        words = {"paper_decision": "not measured", "strict_decision": "not measured", "finding": ""}
        return table.astype(dict.fromkeys(words, object)).fillna(words)

    @cached_property
    def pathways(self) -> pd.DataFrame:
        name = "tables/pathways.parquet"
        table = _read_parquet(self, name, table_columns.PATHWAYS)
        _require_among(table, self.path / name, "id", set(self.samples["id"]))
        _require_among(table, self.path / name, "layer", set(self.layers["layer"]))
        return table

    @cached_property
    def evidence(self) -> dict[str, pd.DataFrame]:
        """The tables of further evidence in the run, by name; empty ones are left out."""
        tables = {
            name: _read_csv(self, name, columns, optional=True)
            for name, columns in table_columns.EVIDENCE.items()
        }
        return {name: table for name, table in tables.items() if len(table)}

    @cached_property
    def p_true(self) -> dict[str, float]:
        """P(True) by question id; empty where it was not measured."""
        ids, numbers = self._p_true_rows["id"], self._p_true_rows["p_true"]
        return {str(id): float(p) for id, p in zip(ids, numbers, strict=True)}

    @property
    def samples(self) -> pd.DataFrame:
        """The table samples.parquet, one row for each question."""
        return self._samples[0]

    @property
    def answers(self) -> list[Sample]:
        """All samples as `Sample` records."""
        return self._samples[1]

    @cached_property
    def _samples(self) -> tuple[pd.DataFrame, list[Sample]]:
        file = self.path / "samples.parquet"
        table = _read(self, file.name, table_columns.SAMPLES, pd.read_parquet)
        samples = from_frame(table)
        _require_once(table, file, ("id",))
        _require_among(table, file, "dataset", self.datasets)
        return table, samples

    def readings(self, layer: int, probe: table_columns.ProbeName = "paper") -> pd.DataFrame:
        """Logits of one probe at layer k (from 1) for the questions beyond `learn_from`.

        A row for each question: `table_columns.READINGS`, then a column for each pass. Empty where
        the probes learnt from all questions.
        """
        files = sorted((self.path / REMAINING / "readings").glob("*.parquet"))
        filters = [("layer", "==", layer), ("probe", "==", probe)]
        read = partial(pd.read_parquet, filters=filters)
        names = [file.relative_to(self.path).as_posix() for file in files]
        columns = table_columns.READINGS
        parts = [_read(self, name, columns, read) for name in names]
        return pd.concat(parts or [pd.DataFrame(columns=list(columns))], ignore_index=True)

    def delta_p(self) -> pd.DataFrame:
        """ΔP by layer, mode and pathway, with intervals: a tidy copy of tables/layers.csv."""
        return self.layers.copy()

    def __repr__(self) -> str:
        return f"RunView({str(self.path)!r}, {self.model_name} on {', '.join(self.datasets)})"

    def _repr_html_(self) -> str:
        """The finding of each dataset as a table, for notebooks; pandas escapes every text."""
        columns = ["model", "dataset", "n", "finding", "why"]
        return self.findings[columns].to_html(index=False)


def where(table: pd.DataFrame, **equal: object) -> pd.DataFrame:
    """Select the rows of a table whose columns have these values."""
    keep = pd.Series(True, index=table.index)
    for column, value in equal.items():
        keep &= table[column] == value
    return cast(pd.DataFrame, table.loc[keep])


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Convert the rows of a table to dictionaries, column name -> value."""
    return cast(list[dict[str, Any]], table.to_dict("records"))


def values(table: pd.DataFrame, name: str) -> pd.Series:
    """One column of a table."""
    return cast(pd.Series, table[name])


# --- Tables read and checked ---


def _read_csv(run: RunView, name: str, columns: Columns, *, optional: bool = False) -> pd.DataFrame:
    """Read and check tables/<name>.csv; a dataset called 'NA' is a name, not a missing number."""
    if optional and not (run.path / "tables" / f"{name}.csv").is_file():
        return pd.DataFrame(columns=list(columns))

    def read(file: Path) -> pd.DataFrame:
        numbers = [n for n in pd.read_csv(file, nrows=0).columns if n not in table_columns.TEXT]
        return pd.read_csv(
            file,
            dtype=cast(Any, dict.fromkeys(table_columns.TEXT, str)),
            keep_default_na=False,
            na_values=cast(Any, {str(name): ["", "nan", "NaN"] for name in numbers}),
        )

    table = _read(run, f"tables/{name}.csv", columns, read)
    _check(table, run, run.path / "tables" / f"{name}.csv")
    return table


def _read_parquet(run: RunView, name: str, columns: Columns) -> pd.DataFrame:
    """Read and check a table in a parquet file."""
    table = _read(run, name, columns, pd.read_parquet)
    _check(cast(pd.DataFrame, table[list(columns)]), run, run.path / name)
    return table


def _read(
    run: RunView, name: str, columns: Columns, read: Callable[[Path], pd.DataFrame]
) -> pd.DataFrame:
    """Read a table; a UserError where its file was changed or lacks one of these columns."""
    file = run.path / name
    if not file.is_file():
        raise UserError(f"The run lacks '{file}'. Run its command again to have it written.")
    require_whole(run.path, name)
    try:
        table = read(file)
    # For bytes that are no table: ParserError, ArrowInvalid, UnicodeDecodeError are ValueErrors.
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{file}' cannot be read ({in_a_line(error)}). Run its command again to have it made."
        ) from error
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise UserError(
            f"'{file}' lacks the column(s) {', '.join(missing)}. "
            "It was written by another version: run the command again into a new folder."
        )
    return table


def _check(table: pd.DataFrame, run: RunView, file: Path) -> None:
    """Raise a UserError where a table does not fit its schema and run.json."""
    for column in table.columns:
        text, cells = column in table_columns.TEXT, table[column]
        kind = pd.api.types.infer_dtype(cells, skipna=True)
        numbers = pd.api.types.is_numeric_dtype(cells) or kind in ("boolean", "empty")
        if not (kind in ("string", "empty") if text else numbers):
            raise _senseless(file, f"its column {column} is not {'text' if text else 'numbers'}")
    if "dataset" in table and "claim" not in table:
        _require_among(table, file, "dataset", run.datasets)
    if key := table_columns.KEYS.get(file.stem):
        _require_once(table, file, key)
        layers: list[float] = table["layer"].tolist()
        bands: list[str] = table["layers"].tolist() if "layers" in table else []
        for band in bands:  # "7 8 9"
            layers += [float(word) if word.isdecimal() else 0 for word in band.split() or [""]]
        most = run.model.get("blocks") or float("inf")
        for layer in set(layers):
            if not (1 <= layer <= most and layer % 1 == 0):
                raise _senseless(file, f"it has a layer {layer}")
        for column, accepted in table_columns.WORDS.items():
            if column in table:
                _require_among(table, file, column, accepted)


def _require_once(table: pd.DataFrame, file: Path, key: Sequence[str]) -> None:
    """Raise a UserError where a table is empty, or two of its rows have the same key."""
    if table.empty:
        raise _senseless(file, "it has no rows")
    twice = table.duplicated(list(key))
    if twice.any():
        row = table.loc[twice, list(key)].iloc[0].to_dict()
        raise _senseless(file, f"it has two rows with {in_a_line(row, 120)}")


def _require_among(
    table: pd.DataFrame, file: Path, column: str, accepted: Collection[object]
) -> None:
    """Raise a UserError where a column holds anything but the accepted values."""
    found = table.loc[~table[column].isin(list(accepted)), column]
    if len(found):
        shown = ", ".join(map(str, list(accepted)[:6]))
        value = in_a_line(found.iloc[0], 60)
        raise _senseless(file, f"its {column} '{value}' is none of those of the run ({shown})")


def _senseless(file: Path, why: str) -> UserError:
    """Make the error for a table with inconsistent content."""
    return UserError(
        f"'{file}' makes no sense: {why}. Get the folder again, or run its command into a new one."
    )
