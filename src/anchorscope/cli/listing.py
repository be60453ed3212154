"""Commands that list what there is by name: datasets and models."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from anchorscope.cli.terminal import Terminal
from anchorscope.datasets import DATASETS
from anchorscope.models.locate import WEIGHTS


def datasets() -> None:
    """List the question sets that --data takes by name, and what else it takes.

    Example: `anchorscope run --data atlas,popqa --limit 500 --out runs/two`
    """
    table = _table("name", "from")
    for source in DATASETS.values():
        hub = source.hub
        parts = [hub.path, hub.config, hub.split] if hub else []
        place = f"hub:{':'.join(filter(None, parts))}" if parts else "this package, no network"
        table.add_row(source.name, place)
    console = Terminal()
    console.print(table)
    console.print(
        "Or hub:ORG/NAME[:CONFIG][:SPLIT], or a .jsonl, .json, .csv, .tsv or .parquet file with "
        "the columns question and answers; --columns names other columns.",
        markup=False,
    )


def models() -> None:
    """List the models that --model takes by name, and what else it takes.

    Example: `anchorscope get qwen2.5-0.5b`, then `anchorscope run --model qwen2.5-0.5b`
    """
    table = _table("name", "model", "size", "licence", "here")
    for weights in WEIGHTS.values():
        here = "yes" if weights.local() else "no"
        megabytes = f"{weights.place.size / 1e6:.0f} MB"
        table.add_row(weights.name, weights.title, megabytes, weights.licence, here)
    console = Terminal()
    console.print(table)
    console.print(
        "`anchorscope get NAME` fetches one. Or a hub id such as Qwen/Qwen3-8B, a folder written "
        "by save_pretrained, or a .gguf file; `anchorscope doctor --model MODEL` says whether it "
        "can be run.",
        markup=False,
    )


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column)
    return table
