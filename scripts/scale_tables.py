"""The tables of docs/scale.md, worked out by the plan of `anchorscope study`.

python scripts/scale_tables.py            # writes the tables into docs/scale.md
python scripts/scale_tables.py --check    # exit code 1 where the page has other ones
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from anchorscope.config import Config
from anchorscope.pipeline.study.hardware import hardware
from anchorscope.pipeline.study.known import known_config
from anchorscope.pipeline.study.plan import Forecast, estimate
from anchorscope.pipeline.study.sizes import size_from
from anchorscope.pipeline.study.tokens import TokenCount
from anchorscope.pipeline.study.told import as_markdown, gb, hours, seconds, short

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scale.md"
MARK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
# A question set of 2,000 questions as PopQA, TriviaQA, HotpotQA and NQ have them on average.
SET = TokenCount(dataset="a set", questions=2000, prefix=80, question=20.0, counted=False)
SEEDS = ("Llama-3.2-1B", "Llama-3.2-3B", "Qwen3-8B", "Qwen3-32B")
ZOO = {"Llama-3.2-1B": 400, "Llama-3.2-3B": 300, "Qwen3-8B": 250, "Qwen3-32B": 40,
       "Meta-Llama-3-70B": 10}  # fmt: skip
SHARD = 128  # questions: enough shards for 64 GPUs
CONFIG = Config(shard=SHARD)


def forecast(model: str, gpus: int = 1, *, sets: int = 4, cores: int | None = None) -> Forecast:
    size = size_from(known_config(model))
    on = hardware("h200", gpus)
    return estimate(CONFIG, [SET] * sets, on, size=size, analysis_cores=cores)


def seeds() -> str:
    """The shipped study on one H200."""
    head = ["model", "tokens", "FLOPs", "disk", "loading", "states", "analysis", "hours"]
    rows = []
    for name in SEEDS:
        f = forecast(name)
        spent = [seconds(f.seconds[s]) for s in ("model", "answers and states", "analysis")]
        rows.append([name, short(f.tokens), short(f.flops), gb(f.disk), *spent, hours(f.hours)])
    return as_markdown(head, rows)


def gpus() -> str:
    """One model on 1 to 64 GPUs: its analysis on one machine, or spread with the GPUs."""
    head = ["GPUs", "loading", "states", "analysis, one machine", "whole", "times as fast",
            "analysis, spread", "whole", "times as fast"]  # fmt: skip
    rows = [[str(count), *_spread(count)] for count in (1, 2, 4, 8, 16, 32, 64)]
    return as_markdown(head, rows)


def _spread(count: int, model: str = "Qwen3-8B") -> Iterator[str]:
    """The seconds of a model on so many GPUs, and how much faster that is than on one."""
    one = forecast(model)
    here, spread = forecast(model, count), forecast(model, count, cores=16 * count)
    yield from (seconds(here.seconds[stage]) for stage in ("model", "answers and states"))
    for f in (here, spread):
        yield from (seconds(f.seconds["analysis"]), seconds(3600 * f.hours))
        yield f"{one.hours / f.hours:.1f}"


def zoo() -> str:
    """1,000 models on 10 datasets, a model to a worker of as many H200 as it needs."""
    head = ["size", "models", "GPUs a model", "FLOPs", "disk", "hours each", "GPU-hours"]
    rows, total = [], [0.0, 0.0, 0.0]
    for name, count in ZOO.items():
        f = forecast(name, gpus=forecast(name, sets=10).devices, sets=10)
        sums = [count * value for value in (f.flops, f.disk, f.gpu_hours)]
        total = [a + b for a, b in zip(total, sums, strict=True)]
        rows.append([f"as {name}", str(count), str(f.gpus), short(sums[0]), gb(sums[1]),
                     hours(f.hours), hours(sums[2])])  # fmt: skip
    rows.append(["all", str(sum(ZOO.values())), "", short(total[0]), gb(total[1]), "",
                 hours(total[2])])  # fmt: skip
    whole = total[2] / 64
    return f"{as_markdown(head, rows)}\n\nOn 64 GPUs, models side by side: {whole:.1f} hours."


TABLES = {"seeds": seeds, "gpus": gpus, "zoo": zoo}


def page() -> str:
    """docs/scale.md with its tables worked out again."""
    text = PAGE.read_text(encoding="utf-8")
    return MARK.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}\n{m[3]}", text)


def main(words: Sequence[str]) -> int:
    if "--check" in words:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
