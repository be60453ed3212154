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
from anchorscope.run_folder.info import check_described, read_info
from anchorscope.run_folder.links import check_inside
from anchorscope.run_folder.read_table import (
    Known,
    read_csv,
    read_parquet,
    read_samples,
    require_among,
    senseless,
)
from anchorscope.run_folder.remote import RUN, local_folder
from anchorscope.run_folder.samples import from_frame
from anchorscope.run_folder.table_columns import Columns


@dataclass(frozen=True)
class RunView:
    """A finished run folder, read from disk lazily and never written to."""

    path: Path
    info: Mapping[str, Any]  # run.json

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
        info = _read_info(folder)
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
        """What run.json says of the model."""
        return self.info["model"]

    @property
    def model_name(self) -> str:
        return str(self.model["name"])

    @property
    def weights(self) -> str:
        """What tells this model from every other; its name where nothing better is known."""
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

    @cached_property
    def layers(self) -> pd.DataFrame:
        return self._table("layers", table_columns.LAYERS)

    @cached_property
    def control_layers(self) -> pd.DataFrame:
        """ΔP of the neutral control's own Q and A; no row for runs without that pass."""
        if not (self.path / "tables" / "control_layers.csv").is_file():
            return pd.DataFrame(columns=list(table_columns.CONTROL_LAYERS))
        return self._table("control_layers", table_columns.CONTROL_LAYERS)

    @cached_property
    def probes(self) -> pd.DataFrame:
        return self._table("probes", table_columns.PROBES)

    @cached_property
    def controls(self) -> pd.DataFrame:
        return self._table("controls", table_columns.CONTROLS)

    @property
    def has_strict(self) -> bool:
        """Whether the run holds strict mode's evidence (runs of early versions do not)."""
        return all((self.path / "tables" / f"{n}.csv").is_file() for n in ("strict", "findings"))

    @cached_property
    def strict(self) -> pd.DataFrame:
        return self._table("strict", table_columns.STRICT)

    @cached_property
    def findings(self) -> pd.DataFrame:
        """The finding of every dataset, and the answers to the five questions behind it."""
        columns, about = table_columns.FINDINGS + table_columns.FINDINGS_MORE, ["dataset", "layer"]
        table = self._table("findings", columns)
        lacking = table.merge(self.strict[about], how="left", on=about, indicator=True)
        if set(lacking["_merge"]) != {"both"}:
            raise senseless(self.path / "tables/findings.csv", "strict.csv lacks a layer it names")
        return table

    @cached_property
    def claims(self) -> pd.DataFrame:
        return self._table("claims", table_columns.CLAIMS)

    @cached_property
    def detector_claims(self) -> pd.DataFrame:
        """The claims about detectors; no row before `detect eval` was asked for them here."""
        file = self.path / "tables" / "detector_claims.csv"
        exists = file.is_file()
        table = self._table("detector_claims", ("claim",)) if exists else pd.DataFrame()
        table = table.reindex(columns=list(table_columns.CLAIMS))
        words = {"paper_decision": "not measured", "strict_decision": "not measured", "finding": ""}
        return table.astype(dict.fromkeys(words, object)).fillna(words)

    @cached_property
    def spans(self) -> pd.DataFrame:
        return self._table("spans", table_columns.SPANS)

    @cached_property
    def ablation(self) -> pd.DataFrame:
        """How the verdicts move when a choice is made otherwise; only where it was asked for."""
        return self._table("ablate", table_columns.ABLATION)

    @property
    def has_robust(self) -> bool:
        """Whether the finding was looked for under other choices."""
        return (self.path / "tables" / "robust.csv").is_file()

    @cached_property
    def robust(self) -> pd.DataFrame:
        """The finding under other choices; only where it was asked for."""
        return self._table("robust", table_columns.ROBUST)

    @cached_property
    def pathways(self) -> pd.DataFrame:
        name = "tables/pathways.parquet"
        table = read_parquet(self.path, name, table_columns.PATHWAYS, self._known)
        require_among(table, self.path / name, "id", set(self.samples["id"]))
        require_among(table, self.path / name, "layer", set(self.layers["layer"]))
        return table

    @cached_property
    def evidence(self) -> dict[str, pd.DataFrame]:
        """The tables of the other evidence that the run holds, by name."""
        names = [n for n in table_columns.EVIDENCE if (self.path / "tables" / f"{n}.csv").is_file()]
        tables = {name: self._table(name, table_columns.EVIDENCE[name]) for name in names}
        return {name: table for name, table in tables.items() if len(table)}

    @cached_property
    def saliency(self) -> pd.DataFrame:
        """Saliency of every sample and layer; no row where it was not asked for."""
        return self._rows("saliency", table_columns.SALIENCY_ROWS)

    @cached_property
    def donors(self) -> pd.DataFrame:
        """Who gave the tokens of each patch; no row where nothing was patched."""
        return self._rows("donors", table_columns.DONOR_ROWS)

    @cached_property
    def p_true(self) -> dict[str, float]:
        """P(True) by question, where it was asked for."""
        rows = self._rows("ptrue", table_columns.P_TRUE_ROWS)
        return {str(id): float(p) for id, p in zip(rows["id"], rows["p_true"], strict=True)}

    @cached_property
    def sampled(self) -> pd.DataFrame:
        """The drawn answers to each question; no row where none were asked for."""
        return self._rows("sampled", table_columns.SAMPLED_ROWS)

    @cached_property
    def samples(self) -> pd.DataFrame:
        return read_samples(self.path, self._known)

    @cached_property
    def answers(self) -> list[Sample]:
        """The samples as values."""
        return from_frame(self.samples)

    def _repr_html_(self) -> str:
        """What a notebook shows: the model, the folder, and what was found on each dataset."""
        asked = {str(d["name"]): d.get("questions") for d in self.info["datasets"]}
        findings = (
            {row["dataset"]: row for row in records(self.findings)} if self.has_strict else {}
        )
        facts = [("folder", str(self.path))]
        for name, title in self.titles.items():
            words = [] if asked[name] is None else [f"{asked[name]} questions"]
            if row := findings.get(name):
                words.append(f"finding: {row['finding']} ({row['why']})")
            facts.append((title, "; ".join(words)))
        return card(self.model_name, facts)

    def delta_p(self) -> pd.DataFrame:
        """ΔP by layer, mode and pathway, with intervals: a tidy copy of tables/layers.csv."""
        return self.layers.copy()

    def _table(self, name: str, columns: Columns) -> pd.DataFrame:
        return read_csv(self.path, f"tables/{name}.csv", columns, self._known)

    @property
    def _known(self) -> Known:
        return Known(self.datasets, self.model.get("blocks"))

    def _rows(self, piece: str, columns: Columns) -> pd.DataFrame:
        """The shards of one piece of evidence as one table, empty where it was not read."""
        files = sorted((self.path / "evidence" / piece).glob("*.parquet"))
        if not files:
            return pd.DataFrame(columns=list(columns))
        names = [file.relative_to(self.path).as_posix() for file in files]
        parts = [read_parquet(self.path, name, columns, self._known) for name in names]
        return pd.concat(parts, ignore_index=True)


def _read_info(folder: Path) -> dict[str, Any]:
    """run.json of the folder."""
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}'. Give the folder of a finished run.")
    check_inside(folder)
    info = read_info(folder)
    if not isinstance(info, dict):
        raise UserError(
            f"'{folder}' is not a run folder: it has no run.json. Give what --out named."
        )
    return info


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
