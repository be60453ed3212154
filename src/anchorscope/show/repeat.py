"""The report's last part: what it takes to make the run again."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anchorscope.show.load import RunView
from anchorscope.show.markup import Safe, join, table, tag

# Folders with a file per shard or layer: counted, not listed.
_COUNTED = ("states", "probes")


def repeat(run: RunView) -> Safe:
    """Command, settings, model, versions, seconds per stage, files."""
    info = run.info
    command = info.get("command") or "not recorded"
    config = json.dumps(info.get("config") or {}, indent=2, ensure_ascii=False)
    return join(
        [
            tag("pre", tag("code", command)),
            _details("Settings", tag("pre", tag("code", config))),
            _details("Model", _pairs(info.get("model") or {})),
            _details("Versions", _pairs(_versions(info))),
            _details("Time and tokens per stage", _stages(info.get("stages") or {})),
            _details("Files in this folder", _files(run.path)),
        ]
    )


def _details(summary: str, inside: Safe) -> Safe:
    return tag("details", tag("summary", summary), inside)


def _versions(info: Mapping[str, Any]) -> dict[str, Any]:
    revision = info.get("git") or "not recorded"
    return {**(info.get("versions") or {}), "git revision": revision}


def _pairs(values: Mapping[str, Any]) -> Safe:
    return table(["", ""], [[key, value] for key, value in values.items()], text_columns=2)


def _stages(stages: Mapping[str, Any]) -> Safe:
    rows = []
    for name, stage in stages.items():
        seconds, tokens = stage.get("seconds"), stage.get("tokens")
        rate = f"{tokens / seconds:,.0f}" if tokens and seconds else ""
        said = "" if seconds is None else f"{seconds:,.1f}"
        rows.append([name, said, "" if tokens is None else f"{tokens:,}", rate])
    return table(["Stage", "Seconds", "Tokens", "Tokens per second"], rows)


def _files(folder: Path) -> Safe:
    """Each file with its size; folders of many parts as one row."""
    rows: list[list[str]] = []
    counted: dict[str, list[int]] = defaultdict(list)
    for file in sorted(path for path in folder.rglob("[!.]*") if path.is_file()):
        name = file.relative_to(folder)
        size = file.stat().st_size
        if name.parts[0] in _COUNTED:
            counted[f"{name.parent.as_posix()}/"].append(size)
        elif name.as_posix() != "report.html":  # its own size is not known yet
            rows.append([name.as_posix(), _size(size)])
    rows += [[f"{name} ({len(sizes)} files)", _size(sum(sizes))] for name, sizes in counted.items()]
    return table(["File", "Size"], rows)


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
