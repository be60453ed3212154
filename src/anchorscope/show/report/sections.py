"""The report's tables: answers, controls, predicted classes, finders, how to repeat the run."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.curves import intervention_names
from anchorscope.show.report.headline import Headline
from anchorscope.show.report.markup import Safe, join, table, tag
from anchorscope.show.report.words import number, percent

KINDS = ("right", "wrong", "abstain", "unusable")
# Folders with a file per shard or layer: counted, not listed.
_COUNTED = ("states", "probes", "robust")


def kinds(samples: pd.DataFrame) -> pd.Series:
    """What became of each sample; `unusable` was judged, but a span was not found."""
    found = values(samples, "exact_question").map(len) * values(samples, "exact_answer").map(len)
    verdict = values(samples, "verdict").astype(str)
    return verdict.where((verdict == "abstain") | (found > 0), "unusable")


def answers(run: RunView) -> Safe:
    """Counts per dataset with a bar, then what was left out and which finder marked spans."""
    rows, notes = [], []
    dropped = {str(d["name"]): d.get("dropped") or {} for d in run.info["datasets"]}
    for name, title in run.titles.items():
        samples = where(run.samples, dataset=name)
        counts = Counter(kinds(samples))
        right = len(where(samples, verdict="right"))
        accuracy = percent(right / len(samples)) if len(samples) else "no number"
        each = [counts[kind] for kind in KINDS]
        rows.append([title, len(samples), accuracy, *each, _bar(each)])
        notes.append(tag("li", tag("b", title), ": ", _notes(samples, dropped.get(name, {}))))
    head = ["Dataset", "Questions", "Accuracy", "Right", "Wrong", "Abstained", "Unusable", ""]
    said = (
        "Accuracy is the share of all questions answered right; abstentions count as not right. "
        "Unusable answers were judged, but no exact question or answer tokens were found in them. "
        "Probes see only the right and wrong ones."
    )
    return join([table(head, rows), tag("p", said, class_="quiet"), tag("ul", *notes)])


def _bar(counts: list[int]) -> Safe:
    total = sum(counts) or 1
    parts = [
        tag("i", class_=kind, style=f"width:{100 * count / total:.2f}%", title=f"{kind}: {count}")
        for kind, count in zip(KINDS, counts, strict=True)
    ]
    return tag("span", *parts, class_="stack")


def _notes(samples: pd.DataFrame, dropped: dict) -> str:
    left = ", ".join(f"{count} ({reason})" for reason, count in dropped.items()) or "none"
    finders = Counter(values(samples, "finder")).most_common()
    used = ", ".join(f"{name} ({count})" for name, count in finders) or "none"
    return f"left out before asking: {left}; exact question tokens found by: {used}."


def controls(run: RunView, heads: list[Headline]) -> Safe:
    """Every intervention at each dataset's headline layer."""
    rows = []
    for head in heads:
        found = where(run.controls, dataset=head.dataset, layer=head.layer)
        for name, (label, _) in intervention_names(run.controls).items():
            for row in records(where(found, intervention=name)):
                rows.append([head.title, label, head.layer, *_flips(row)])
    head_row = ["Dataset", "Intervention", "Layer", "Flips", "95 % interval", "ΔP, all", "n"]
    if not rows:
        return tag("p", "No control has numbers at a layer with both groups.", class_="quiet")
    return table(head_row, rows, text_columns=2)


def _flips(row: Mapping[str, Any]) -> list[object]:
    low, high = percent(float(row["flip_rate_low"])), percent(float(row["flip_rate_high"]))
    count = 0 if pd.isna(row["n"]) else int(row["n"])
    delta = number(float(row["delta_p"]))
    return [percent(float(row["flip_rate"])), f"{low} to {high}", delta, count]


def predicted_classes(heads: list[Headline]) -> Safe:
    """Who flips, within each class the probe predicted before the knockout."""
    rows = []
    for head in heads:
        if head.layer is not None and head.collapse is not None:
            found = head.collapse
            rows.append([head.title, head.layer, percent(found.right), found.n_right])
            rows[-1] += [percent(found.wrong), found.n_wrong]
    said = (
        "If nearly all samples of one predicted class flip and nearly none of the other, the "
        "knockout pushes everything to one prediction, and the pathway is the predicted class "
        "under another name. Paper mode, at the layer named."
    )
    columns = ["Dataset", "Layer", "Predicted right: flip", "n", "Predicted wrong: flip", "n"]
    return join([table(columns, rows), tag("p", said, class_="quiet")]) if rows else Safe("")


def finders(run: RunView) -> Safe:
    """How far two finders of exact question tokens mark the same tokens."""
    rows = [
        [
            run.titles.get(str(row["dataset"]), str(row["dataset"])),
            f"{row['finder_a']} and {row['finder_b']}",
            number(float(row["jaccard"]), 2),
            percent(float(row["identical"])),
            int(row["n"]),
        ]
        for row in records(run.spans)
    ]
    if not rows:
        return tag("p", "Only one finder could be used, so there is nothing to compare.")
    columns = ["Dataset", "Finders", "Overlap (Jaccard)", "Identical", "n"]
    return table(columns, rows, text_columns=2)


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
    rows, columns = [], ["Stage", "Seconds", "Tokens", "Tokens per second"]
    overlap = any("beside" in stage for stage in stages.values())
    for name, stage in stages.items():
        seconds, tokens = stage.get("seconds"), stage.get("tokens")
        rate = f"{tokens / seconds:,.0f}" if tokens and seconds else ""
        said = "" if seconds is None else f"{seconds:,.1f}"
        beside = [f"{stage['beside']:,.1f}" if "beside" in stage else ""] if overlap else []
        rows.append([name, said, "" if tokens is None else f"{tokens:,}", rate, *beside])
    return table([*columns, *(["Seconds while the model read"] if overlap else [])], rows)


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
