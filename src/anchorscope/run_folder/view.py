"""A finished run folder, each file read when it is first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pandas as pd

from anchorscope.errors import UserError
from anchorscope.notebook import card
from anchorscope.records import Sample
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.info import RUN, check_described, read_info
from anchorscope.run_folder.links import check_inside
from anchorscope.run_folder.read_table import (
    Facts,
    read_csv,
    read_parquet,
    read_samples,
    require_among,
    senseless,
)
from anchorscope.run_folder.remote import local_folder
from anchorscope.run_folder.samples import from_frame
from anchorscope.run_folder.table_columns import Columns


def _csv(name: str, columns: Columns, *, optional: bool = False) -> cached_property[pd.DataFrame]:
    """A property that reads tables/<name>.csv; an `optional` table may be missing: no row then."""

    def read(run: RunView) -> pd.DataFrame:
        if optional and not run._has_table(name):
            return pd.DataFrame(columns=list(columns))
        return read_csv(run.path, f"tables/{name}.csv", columns, run._facts)

    return cached_property(read)


def _rows(piece: str, columns: Columns) -> cached_property[pd.DataFrame]:
    """A property that reads the shards of one piece of evidence; no row where it was not read."""

    def read(run: RunView) -> pd.DataFrame:
        files = sorted((run.path / "evidence" / piece).glob("*.parquet"))
        names = [file.relative_to(run.path).as_posix() for file in files]
        parts = [read_parquet(run.path, name, columns, run._facts) for name in names]
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
        """The run in folder `path`; a run still under way is refused unless asked for.

        A folder of `detect collect` has no analysis in it: only detectors ask for such a one.

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
            raise UserError(f"There is no folder '{folder}'. Give the folder of a finished run.")
        check_inside(folder)
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
        check_described(info, folder / RUN)
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
        """The hash of the model's weights; its name where an early version noted no hash."""
        return str(self.model.get("weights") or self.model["name"])

    @property
    def titles(self) -> dict[str, str]:
        """Dataset short name -> title, in the run's order."""
        return {str(d["name"]): str(d.get("title") or d["name"]) for d in self.info["datasets"]}

    @property
    def datasets(self) -> list[str]:
        """Short names, in the run's order."""
        return list(self.titles)

    @property
    def config(self) -> Mapping[str, Any]:
        return self.info.get("config") or {}

    @property
    def unit(self) -> str:
        """What ΔP counts in this run's tables."""
        return "percent" if self.config.get("delta") == "relative" else "points"

    @property
    def has_strict(self) -> bool:
        """Whether the run holds strict mode's evidence (runs of early versions do not)."""
        return self._has_table("strict") and self._has_table("findings")

    @property
    def has_robust(self) -> bool:
        """Whether the finding was looked for under other choices."""
        return self._has_table("robust")

    @cached_property
    def findings(self) -> pd.DataFrame:
        """The finding of every dataset, and the answers to the five questions behind it."""
        columns, key = table_columns.FINDINGS + table_columns.FINDINGS_MORE, ["dataset", "layer"]
        table = read_csv(self.path, "tables/findings.csv", columns, self._facts)
        merged = table.merge(self.strict[key], how="left", on=key, indicator=True)
        if set(merged["_merge"]) != {"both"}:
            raise senseless(self.path / "tables/findings.csv", "strict.csv lacks a layer it names")
        return table

    @cached_property
    def detector_claims(self) -> pd.DataFrame:
        """The claims about detectors; no row before `detect eval` was asked for them here."""
        exists, table = self._has_table("detector_claims"), pd.DataFrame()
        if exists:
            table = read_csv(self.path, "tables/detector_claims.csv", ("claim",), self._facts)
        table = table.reindex(columns=list(table_columns.CLAIMS))
        words = {"paper_decision": "not measured", "strict_decision": "not measured", "finding": ""}
        return table.astype(dict.fromkeys(words, object)).fillna(words)

    @cached_property
    def pathways(self) -> pd.DataFrame:
        name = "tables/pathways.parquet"
        table = read_parquet(self.path, name, table_columns.PATHWAYS, self._facts)
        require_among(table, self.path / name, "id", set(self.samples["id"]))
        require_among(table, self.path / name, "layer", set(self.layers["layer"]))
        return table

    @cached_property
    def evidence(self) -> dict[str, pd.DataFrame]:
        """The tables of the other evidence that the run holds, by name."""
        tables = {
            name: read_csv(self.path, f"tables/{name}.csv", columns, self._facts)
            for name, columns in table_columns.EVIDENCE.items()
            if self._has_table(name)
        }
        return {name: table for name, table in tables.items() if len(table)}

    @cached_property
    def p_true(self) -> dict[str, float]:
        """P(True) by question, where it was asked for."""
        ids, numbers = self._p_true_rows["id"], self._p_true_rows["p_true"]
        return {str(id): float(p) for id, p in zip(ids, numbers, strict=True)}

    @cached_property
    def samples(self) -> pd.DataFrame:
        return read_samples(self.path, self._facts)

    @cached_property
    def answers(self) -> list[Sample]:
        """The samples as values."""
        return from_frame(self.samples)

    def delta_p(self) -> pd.DataFrame:
        """ΔP by layer, mode and pathway, with intervals: a tidy copy of tables/layers.csv."""
        return self.layers.copy()

    def _repr_html_(self) -> str:
        """HTML for notebooks: the model, the folder, and the finding of each dataset."""
        rows = records(self.findings) if self.has_strict else []
        findings = {row["dataset"]: f"finding: {row['finding']} ({row['why']})" for row in rows}
        facts = [("folder", str(self.path))]
        for dataset in self.info["datasets"]:
            name, count = str(dataset["name"]), dataset.get("questions")
            words = [f"{count} questions" if count is not None else "", findings.get(name, "")]
            facts.append((self.titles[name], "; ".join(filter(None, words))))
        return card(self.model_name, facts)

    @property
    def _facts(self) -> Facts:
        return Facts(self.datasets, self.model.get("blocks"))

    def _has_table(self, name: str) -> bool:
        return (self.path / "tables" / f"{name}.csv").is_file()


def where(table: pd.DataFrame, **equal: object) -> pd.DataFrame:
    """The rows whose columns have these values."""
    keep = pd.Series(True, index=table.index)
    for column, value in equal.items():
        keep &= table[column] == value
    return cast(pd.DataFrame, table.loc[keep])


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dictionaries, column name -> value."""
    return cast(list[dict[str, Any]], table.to_dict("records"))


def values(table: pd.DataFrame, name: str) -> pd.Series:
    """One column."""
    return cast(pd.Series, table[name])
