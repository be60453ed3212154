"""What figures and report read of a run folder, each file when it is first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pandas as pd

from anchorscope.errors import UserError
from anchorscope.store import RUN, read_info


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# The columns are a contract with the stages that write the files.
LAYERS = _names(
    "model dataset layer mode pathway n delta_p delta_p_low delta_p_high "
    "delta_logit delta_logit_low delta_logit_high"
)
PROBES = _names("model dataset layer auroc auroc_low auroc_high accuracy n_train n_test")
CONTROLS = _names(
    "model dataset layer intervention flip_rate flip_rate_low flip_rate_high delta_p n"
)
STRICT = _names(
    "model dataset layer n kappa group_explained collapse paper_gap paper_null_low paper_null_high "
    "strict_gap strict_null_low strict_null_high"
)
VERDICT = _names("model dataset layer finding why gap null_low null_high p")
CLAIMS = _names(
    "claim statement source paper_value paper_verdict strict_value strict_verdict dataset finding"
)
SPANS = _names("dataset finder_a finder_b n jaccard identical")
PATHWAYS = _names("id dataset layer mode z prediction logit_clean logit_knockout pathway")
SAMPLES = _names(
    "id dataset question answers answer verdict finder span_starts span_stops "
    "answer_start answer_stop exact_question exact_answer"
)

# Tables of the other evidence: a run has those that were asked for.
EVIDENCE: Mapping[str, tuple[str, ...]] = {
    "patching": _names(
        "model dataset layer intervention mode subset pathway n flip_rate flip_low flip_high"
    ),
    "answer_only": _names(
        "model dataset layer mode subset pathway n delta_p delta_p_low delta_p_high"
    ),
    "question_probe": _names("model dataset layer auroc auroc_low auroc_high n"),
    "saliency": _names("model dataset loss source subset n mean low high dip_p bic layer"),
    "boundary": _names("model dataset layer mode subset measure pathway n value low high p"),
    "boundary_model": _names("model dataset layer mode term coefficient low high p n"),
    "awareness": _names("model dataset layer mode subset predictor n auroc low high"),
    "heads": _names("model dataset block head set layer n delta_p low high flip_rate"),
    "heads_agreement": _names("dataset_a dataset_b spearman low high n"),
    "windows": _names("model dataset layer layers mode pathway n delta_p delta_p_low delta_p_high"),
}
SALIENCY = _names("id dataset loss source layer saliency")
DONORS = _names("id kind donor same_relation resized")

_TEXT = frozenset(
    {
        *("model", "dataset", "mode", "pathway", "intervention", "finder_a", "finder_b", "id"),
        *("finding", "why", "within", "collapse", "variant"),
        *("subset", "loss", "measure", "term", "predictor", "set", "layers"),
        *("dataset_a", "dataset_b"),
        *("claim", "statement", "source", "paper_verdict", "strict_verdict"),
    }
)


@dataclass(frozen=True)
class RunView:
    """A finished run folder, read from disk lazily and never written to."""

    path: Path
    info: Mapping[str, Any]  # run.json

    @classmethod
    def open(cls, path: str | Path, *, unfinished_ok: bool = False) -> RunView:
        """The run in folder `path`; a run still under way is refused unless asked for."""
        folder = Path(path).expanduser()
        info = _read_info(folder)
        if not (unfinished_ok or info.get("finished") is True):
            raise UserError(
                f"The run in '{folder}' is not finished. "
                "Run its command again to let it continue, then try once more."
            )
        if not {"model", "datasets"} <= info.keys():
            raise UserError(f"'{folder / RUN}' names no model or datasets. Run its command again.")
        if "only" in info.get("identity", {}):
            raise UserError(
                f"'{folder}' was collected for detectors: nothing in it was analysed. Give it to "
                "`anchorscope detect`, or ask `anchorscope run` for a folder of its own."
            )
        return cls(folder, info)

    @property
    def model_name(self) -> str:
        return str(self.info["model"]["name"])

    @property
    def titles(self) -> dict[str, str]:
        """Dataset short name -> title, in the run's order."""
        return {str(d["name"]): str(d.get("title") or d["name"]) for d in self.info["datasets"]}

    @property
    def config(self) -> Mapping[str, Any]:
        return self.info.get("config") or {}

    @property
    def unit(self) -> str:
        """What ΔP counts in this run's tables."""
        return "percent" if self.config.get("delta") == "relative" else "points"

    @cached_property
    def layers(self) -> pd.DataFrame:
        return _read_csv(self.path / "tables" / "layers.csv", LAYERS)

    @cached_property
    def probes(self) -> pd.DataFrame:
        return _read_csv(self.path / "tables" / "probes.csv", PROBES)

    @cached_property
    def controls(self) -> pd.DataFrame:
        return _read_csv(self.path / "tables" / "controls.csv", CONTROLS)

    @property
    def has_strict(self) -> bool:
        """Whether the run holds strict mode's evidence (runs of early versions do not)."""
        return all((self.path / "tables" / f"{n}.csv").is_file() for n in ("strict", "verdict"))

    @cached_property
    def strict(self) -> pd.DataFrame:
        return _read_csv(self.path / "tables" / "strict.csv", STRICT)

    @cached_property
    def verdict(self) -> pd.DataFrame:
        return _read_csv(self.path / "tables" / "verdict.csv", VERDICT)

    @cached_property
    def claims(self) -> pd.DataFrame:
        return _read_csv(self.path / "tables" / "claims.csv", CLAIMS)

    @cached_property
    def spans(self) -> pd.DataFrame:
        return _read_csv(self.path / "tables" / "spans.csv", SPANS)

    @cached_property
    def pathways(self) -> pd.DataFrame:
        return _read_parquet(self.path / "tables" / "pathways.parquet", PATHWAYS)

    @cached_property
    def ablation(self) -> pd.DataFrame:
        """How the verdicts move when a choice is made otherwise; only where it was asked for."""
        return _read_csv(self.path / "tables" / "ablate.csv", ("variant", "dataset"))

    @cached_property
    def evidence(self) -> dict[str, pd.DataFrame]:
        """The tables of the other evidence that the run holds, by name."""
        files = {name: self.path / "tables" / f"{name}.csv" for name in EVIDENCE}
        there = {name: file for name, file in files.items() if file.is_file()}
        tables = {name: _read_csv(file, EVIDENCE[name]) for name, file in there.items()}
        return {name: table for name, table in tables.items() if len(table)}

    @cached_property
    def saliency(self) -> pd.DataFrame:
        """Saliency of every sample and layer; no row where it was not asked for."""
        return self._pieces("saliency", SALIENCY)

    @cached_property
    def donors(self) -> pd.DataFrame:
        """Who gave the tokens of each patch; no row where nothing was patched."""
        return self._pieces("donors", DONORS)

    def _pieces(self, piece: str, columns: tuple[str, ...]) -> pd.DataFrame:
        """The shards of one piece of evidence as one table, empty where it was not read."""
        files = sorted((self.path / "evidence" / piece).glob("*.parquet"))
        if not files:
            return pd.DataFrame(columns=list(columns))
        return pd.concat([_read_parquet(file, columns) for file in files], ignore_index=True)

    def delta_p(self) -> pd.DataFrame:
        """ΔP by layer, mode and pathway, with intervals: a tidy copy of tables/layers.csv."""
        return self.layers.copy()

    @cached_property
    def samples(self) -> pd.DataFrame:
        return _read_parquet(self.path / "samples.parquet", SAMPLES)


def _read_info(folder: Path) -> dict[str, Any]:
    """run.json of the folder."""
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}'. Give the folder of a finished run.")
    info = read_info(folder)
    if not isinstance(info, dict):
        raise UserError(
            f"'{folder}' is not a run folder: it has no run.json. Give what --out named."
        )
    return info


def _read_csv(file: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """The table, names kept as text: a dataset called 'NA' is a name, not a missing number."""
    _must_exist(file)
    table = pd.read_csv(
        file,
        dtype=cast(Any, dict.fromkeys(_TEXT, str)),
        keep_default_na=False,
        na_values=cast(Any, {name: ["", "nan", "NaN"] for name in _numbers(file)}),
    )
    return _checked(table, file, columns)


def _numbers(file: Path) -> list[str]:
    """The columns of the file that do not hold text."""
    return [str(name) for name in pd.read_csv(file, nrows=0).columns if name not in _TEXT]


def _read_parquet(file: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    _must_exist(file)
    return _checked(pd.read_parquet(file), file, columns)


def _must_exist(file: Path) -> None:
    if not file.is_file():
        raise UserError(f"The run lacks '{file}'. Run its command again to have it written.")


def _checked(table: pd.DataFrame, file: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise UserError(
            f"'{file}' lacks the column(s) {', '.join(missing)}. "
            "It was written by another version: run the command again into a new folder."
        )
    return table


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
