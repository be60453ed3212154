"""Options of a run and files of studies: accepted and kept, or refused in a sentence."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from random import Random
from typing import Any

from anchorscope.config import Config
from anchorscope.pipeline.study.file import (
    read_options,
    read_study,
    study_of,
    value_of,
)
from torture.fuzz.target import Target
from torture.fuzz.texts import part, seeded, text, value

NAMES = tuple(f.name for f in fields(Config))
DEFAULTS = {f.name: f.default for f in fields(Config)}
FILE = Path(tempfile.mkdtemp(prefix="fuzz-study-")) / "study.toml"


def _options(r: Random) -> dict[str, Any]:
    names = [r.choice(NAMES) for _ in range(r.randint(1, 3))]
    return {name: value(r) if r.random() < 0.6 else DEFAULTS[name] for name in names}


def check_config(given: dict[str, Any]) -> None:
    """A config that JSON brings back alike, with an identity that JSON can hold."""
    config = Config.restore(given)
    assert Config.restore(json.loads(json.dumps(asdict(config)))) == config
    json.dumps(config.identity())


def _study(r: Random) -> dict[str, Any]:
    def some(plain: Any) -> Any:
        return plain if r.random() < 0.85 else value(r)

    models = [
        some(
            {
                "model": some(part(r) or "m"),
                "name": some(part(r)),
                "panel": some("p"),
                **_options(r),
            }
        )
        for _ in range(r.randint(0, 3))
    ]
    content = {"title": some(text(r)), "data": some(["atlas", some("a")]), "models": some(models),
               "options": some(_options(r))}  # fmt: skip
    if r.random() < 0.1:
        content[part(r)] = value(r)
    return content


def check_study(given: dict[str, Any]) -> None:
    """A study whose models have folders of their own, inside its folder."""
    study = study_of(given, "study.toml")
    for model in study.models:
        assert "/" not in model.name and "\x00" not in model.name
        assert model.name not in ("", ".", "..", "figures")
        study.config(model)


def check_toml(given: bytes) -> None:
    FILE.write_bytes(given)
    read_study(FILE)


def _toml(r: Random) -> bytes:
    deep = r.choice((3, 100, 3000))
    lines = (
        f"data = {json.dumps([part(r), text(r)])}", "[[models]]", f"model = {json.dumps(part(r))}",
        f"x = {'[' * deep}{']' * deep}", f"{part(r)} = {part(r)}", "limit = 1e400", "[options]",
        f"seed = {'9' * r.choice((3, 5000))}", "shots = nan", "x.y.z = 1979-05-27", "a = {" * 9,
    )  # fmt: skip
    data = "\n".join(r.sample(lines, r.randint(1, 6))).encode()
    return data if r.random() < 0.8 else data + bytes([r.randint(0, 255)])


def check_value(given: str) -> None:
    """The value of an option on the command line; read_options takes or refuses it."""
    name, _, written = given.partition("=")
    Config(**read_options({name: value_of(written)}), model="m", data=("atlas",))


def _written(r: Random) -> str:
    return f"{r.choice(NAMES)}={r.choice((part(r), json.dumps(part(r)), str(r.randint(-9, 9))))}"


TARGETS = (
    Target(name="options", inputs=seeded(_options), check=check_config, share=10),
    Target(name="options, typed", inputs=seeded(_written), check=check_value, share=6),
    Target(name="studies", inputs=seeded(_study), check=check_study, share=8),
    Target(name="study files", inputs=seeded(_toml), check=check_toml, share=4),
)
