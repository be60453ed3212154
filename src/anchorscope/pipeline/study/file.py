"""Read a study (models, datasets and options) from a TOML file or from the shipped studies."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from anchorscope.config import Config, from_text
from anchorscope.errors import UserError, unknown, user_path

_KEYS = ("title", "data", "options", "models")
_MODEL_KEYS = ("model", "name", "panel")  # every other key of a model is an option of its run
_SET_BY_STUDY = ("model", "data")
_RESERVED = ("figures", "errors")  # folders of the study itself
_TRUST = "trust_remote_code"  # set by a person, never by a file


@dataclass(frozen=True, kw_only=True)
class StudyModel:
    """One model of a study: where it comes from, its panel, and options of its own."""

    name: str  # of its folder, and what --place calls it
    model: str  # as `anchorscope run --model` takes it
    panel: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study: its models and datasets; each model is one run over all datasets."""

    title: str
    data: tuple[str, ...]
    models: tuple[StudyModel, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def config(self, model: StudyModel) -> Config:
        """The config of this model's run."""
        options = {**self.options, **model.options}
        return Config(**read_options(options), model=model.model, data=self.data)

    @property
    def panels(self) -> dict[str, list[StudyModel]]:
        """The models of each panel, in the file's order."""
        panels: dict[str, list[StudyModel]] = {}
        for model in self.models:
            panels.setdefault(model.panel, []).append(model)
        return panels

    def with_places(self, places: Mapping[str, str]) -> Study:
        """Copy the study with models and datasets loaded from other places, by name."""
        names = {model.name for model in self.models} | {*self.data}
        for name in places.keys() - names:
            raise unknown("model or dataset to place", name, sorted(names))
        models = [replace(m, model=places.get(m.name, m.model)) for m in self.models]
        return replace(self, models=tuple(models), data=tuple(places.get(d, d) for d in self.data))

    def with_options(self, options: Mapping[str, Any]) -> Study:
        """Copy the study with options that override those of the file."""
        models = [
            replace(m, options={k: v for k, v in m.options.items() if k not in options})
            for m in self.models
        ]
        return replace(self, models=tuple(models), options={**self.options, **options})


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options of a file to fields of `Config`; a UserError for an unknown name."""
    accepted = [f.name for f in fields(Config) if f.name not in _SET_BY_STUDY]
    named = {name.replace("-", "_"): value for name, value in options.items()}
    for name in named.keys() - set(accepted):
        raise unknown("option of a run", name, accepted)
    return {name: from_text(name, value) for name, value in named.items()}


def shipped() -> dict[str, Any]:
    """The files of the studies that come with the package, by name."""
    folder = resources.files("anchorscope.pipeline.study") / "shipped"
    return {
        file.name.removesuffix(".toml"): file
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".toml")
    }


def read_study(place: str | Path) -> Study:
    """Read a study by its shipped name or from a .toml file."""
    named = shipped().get(str(place))
    path = user_path(place)
    if named is None and not path.is_file():
        raise unknown("study", place, shipped(), "Or the path of a .toml file.")
    try:
        content = tomllib.loads((named or path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{place} is no TOML: {error}.") from error
    return study_of(content, str(place))


def study_of(content: Mapping[str, Any], where: str) -> Study:
    """Build a study from a file's content; `where` names the file in errors."""
    for key in content.keys() - set(_KEYS):
        raise unknown(f"part of {where}", key, _KEYS)
    data, models, options = (content.get(key) for key in ("data", "models", "options"))
    tables = [options or {}, *(models if isinstance(models, list) else ())]
    named = isinstance(data, list) and data and all(isinstance(name, str) for name in data)
    whole = all(isinstance(table, Mapping) for table in tables)
    if (
        not named
        or not whole
        or not all(isinstance(t.get("model"), str) for t in tables[1:] or [{}])
    ):
        raise UserError(
            f"{where} needs data (a list of names or files), and one [[models]] at least, each "
            "with its model (a hub id, a folder or a file); options are a table, [options]."
        )
    for table in tables:
        if _TRUST in {str(key).replace("-", "_") for key in table}:
            raise UserError(
                f"{where} sets {_TRUST}, which no file decides. Take that line out; if you have "
                "read the models' code and want it run, give --trust-remote-code."
            )
    study = Study(
        title=str(content.get("title", Path(where).stem)),
        data=tuple(data or ()),
        models=tuple(map(_model, tables[1:])),
        options=dict(tables[0]),
    )
    names = [model.name for model in study.models]
    for name in names:
        if names.count(name) > 1 or _folder_name(name) != name or name in _RESERVED:
            raise UserError(
                f"{where} has two models named '{name}', or a folder cannot be called so. Give one "
                "of them another name."
            )
    return study


def value_of(text: str) -> Any:
    """Parse a TOML value such as `3` or `["a"]`; text that is not TOML is returned unchanged."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _model(table: Mapping[str, Any]) -> StudyModel:
    source = table["model"]
    name = str(table.get("name", _folder_name(source)))
    return StudyModel(
        name=name,
        model=source,
        panel=str(table.get("panel", name)),
        options={key: item for key, item in table.items() if key not in _MODEL_KEYS},
    )


def _folder_name(model: str) -> str:
    """Make a folder name from the last part of a model's name."""
    last = model.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")
    return re.sub(r"[^\w.+-]", "-", last).lstrip(".-") or "model"
