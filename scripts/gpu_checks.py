"""Check on a GPU: a model split between GPU and CPU, and the bounds on memory.

PYTHONPATH=src python scripts/gpu_checks.py [--cpu]

One line a check, and exit code 1 where one fails. Nothing is downloaded: the model has the size of
Llama-3.2-1B and random weights. `--cpu` is a dry run with a tiny model split between memory and
disk, for machines without a GPU.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]  # the kit that the tests share

import torch
import transformers
from kit.engine_samples import PREFIX, SAMPLES, engine_states
from kit.tiny import tiny_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig

from anchorscope.engine import HALVED
from anchorscope.engine.batches import Budget
from anchorscope.engine.check import check_model
from anchorscope.engine.decode import grow_trunk, read_prefix
from anchorscope.engine.interventions import Intervention, TokenPositions
from anchorscope.engine.lease import Lease, distance
from anchorscope.engine.read import read_rows, row_for
from anchorscope.models import Model, load_model

GIB = 1 << 30
ONE_BILLION = LlamaConfig(
    num_hidden_layers=16, hidden_size=2048, num_attention_heads=32, num_key_value_heads=8,
    head_dim=64, intermediate_size=8192, vocab_size=128256, tie_word_embeddings=True,
    initializer_range=0.03,
)  # fmt: skip
TINY = LlamaConfig(
    num_hidden_layers=4, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
    intermediate_size=64, vocab_size=300, initializer_range=0.2, max_position_embeddings=4096,
)  # fmt: skip
CUTS = {
    "clean": {"heads": ()},
    "knockout": {},
    "neutral": {"keys": "neutral"},
    "window": {"layers": "window:2"},
    "head": {"heads": ((1, 2), (2, 0), (3, 3))},
    "post": {"where": "post"},
}
ROUNDING = 1e-4
failures: list[str] = []


def check(name: str, ok: bool, seen: str) -> None:
    """Print the line of a check, and record a failure."""
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {seen}", flush=True)
    if not ok:
        failures.append(name)


def built(config: LlamaConfig, device: str, dtype: torch.dtype) -> Any:
    """Build a random model, the same at every call."""
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return lm.to(dtype).to(device).eval()


def split(lm: Any, *, gpu: bool) -> Any:
    """Split a model as --device balanced does: about half on the GPU, the rest in main memory."""
    from anchorscope.models.load import spread_out

    size = sum(p.numel() * p.element_size() for p in lm.parameters())
    half = size * 6 // 10
    return spread_out(lm, memory={0: half, "cpu": 4 * size} if gpu else {"cpu": half})


def split_checks(config: LlamaConfig, dtype: torch.dtype, *, gpu: bool) -> None:
    """Compare the split model with the whole one, and run `doctor`'s checks on it.

    In half precision, the split model must be as close to full precision as the whole one.
    """
    device, full = "cuda" if gpu else "cpu", torch.float32
    whole = load_model(built(config, device, dtype), tokenizer=tiny_tokenizer())
    truth = whole
    if dtype != full:  # the same rounded weights, calculated with in full precision
        truth = load_model(built(config, device, dtype).to(full), tokenizer=tiny_tokenizer())
    parted = load_model(split(built(config, "cpu", dtype), gpu=gpu), tokenizer=tiny_tokenizer())
    spread: Any = parted.lm
    places = [str(p) for p in spread.hf_device_map.values()]
    count = {place: places.count(place) for place in sorted(set(places))}
    label = str(dtype).removeprefix("torch.")
    check(f"split, {label}", len(count) > 1, f"{count}; takes tokens on {parted.device}")
    clean = engine_states(truth, SAMPLES, Intervention(name="clean", heads=()))
    for name, options in CUTS.items():
        cut = Intervention(name=name, **options)
        began = time.monotonic()
        exact, one, two = (engine_states(m, SAMPLES, cut) for m in (truth, whole, parted))
        allowed = ROUNDING if dtype == full else 1.5 * distance(one, exact)
        far, moved = distance(two, exact), distance(exact, clean)
        seen = f"largest difference {far:.1e}, rounding allows {allowed:.1e}; the cut moves states "
        seen += f"by {moved:.1e}; {time.monotonic() - began:.1f} s"
        check(f"split equals whole, {label}, {name}", far < allowed, seen)
    checks = list(check_model(parted))
    failed = [f"{c.name} ({c.seen})" for c in checks if not c.ok]
    seen = "; ".join(failed) or f"understood, {len(checks)} checks"
    check(f"doctor on the split model, {label}", not failed, seen)


def memory_checks(config: LlamaConfig, *, gpu: bool) -> None:
    """Check the peak memory of full packs, with a free GPU and with most of its memory taken."""
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    model = load_model(built(config, device, dtype), tokenizer=tiny_tokenizer())
    for spare in (None, 24 * GIB, 6 * GIB) if gpu else (None,):
        others = _take_all_but(spare)
        free = torch.cuda.mem_get_info()[0] if gpu else GIB
        failed = [c.name for c in check_model(model) if not c.ok]
        check(f"doctor, {free / GIB:.0f} GiB free", not failed, ", ".join(failed) or "understood")
        before = torch.cuda.memory_allocated() if gpu else 0
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        _fill(model)
        peak = torch.cuda.max_memory_allocated() - before if gpu else 0
        seen = f"peak {peak / GIB:.2f} GiB of {free / GIB:.2f} free, packs of {Budget.of(model)}"
        check(f"a full shard, {free / GIB:.0f} GiB free", peak < 0.75 * free, seen)
        del others
        if gpu:
            torch.cuda.empty_cache()


def _take_all_but(spare: int | None) -> torch.Tensor | None:
    """Hold GPU memory as another program would, so that only `spare` bytes are left."""
    if spare is None or spare >= (free := torch.cuda.mem_get_info()[0]):
        return None
    return torch.empty(free - spare, dtype=torch.uint8, device="cuda")


def _fill(model: Model) -> None:
    """Read rows of every costly kind behind a long prefix, as many as a run reads at once.

    A run halves a batch that does not fit; here that is a failure.
    """
    front = PREFIX * 80  # 960 tokens
    samples = [_behind(front, sample, n) for n, sample in enumerate(SAMPLES * 200)]
    budget = Budget.of(model)
    cuts = (
        Intervention(name="knockout"),
        Intervention(name="post", where="post"),
        Intervention(name="heads", heads=tuple((b, 0) for b in range(1, model.blocks + 1))),
    )
    with Lease(model) as lease:
        prefix = read_prefix(lease, front)
        rows_at_once = prefix.rows_within(budget.trunk, room=40) or len(samples)
        here = samples[:rows_at_once]
        prompts = [s.ids[: s.answer_at] for s in here]
        trunk = grow_trunk(lease, prefix, prompts).trunk
        rows = [row_for(trunk, s, n, cut) for cut in cuts for n, s in enumerate(here)]
        often = -(-6 * budget.tokens // sum(len(row.ids) for row in rows))  # full packs of each
        HALVED.clear()
        for _ in read_rows(lease, trunk, rows * often, budget=budget):
            pass
    if HALVED:
        raise RuntimeError(f"packs ran out of memory: {HALVED} tokens")


def _behind(front: tuple[int, ...], sample: TokenPositions, number: int) -> TokenPositions:
    """Put a longer prefix in front of a sample's question."""
    more = len(front) - len(PREFIX)
    return TokenPositions(
        id=f"{sample.id}:{number}",
        ids=front + sample.ids[len(PREFIX) :],
        answer_at=sample.answer_at + more,
        question_tokens=tuple(p + more for p in sample.question_tokens),
        exact_question=tuple(p + more for p in sample.exact_question),
        mass=(0.0,) * (len(sample.ids) + more),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", action="store_true", help="a dry run with a tiny model")
    gpu = not parser.parse_args().cpu
    if gpu and not torch.cuda.is_available():
        raise SystemExit("no GPU is there; --cpu makes a dry run")
    where = torch.cuda.get_device_name() if gpu else "CPU, dry run"
    print(f"{where}; torch {torch.__version__}, transformers {transformers.__version__}")
    torch.backends.cuda.matmul.allow_tf32 = False
    config = ONE_BILLION if gpu else TINY
    parts: list[tuple[str, Callable[[], None]]] = [
        ("memory", lambda: memory_checks(config, gpu=gpu))
    ]
    if importlib.util.find_spec("accelerate") is None:
        check("accelerate", False, "is not installed: no split model could be made")
    else:
        for dtype in (torch.float32, torch.bfloat16) if gpu else (torch.float32,):
            parts.append((f"split {dtype}", lambda d=dtype: split_checks(config, d, gpu=gpu)))
    for name, part in parts:
        try:
            part()
        except Exception as error:
            check(name, False, f"{type(error).__name__}: {error}")
        if gpu:
            torch.cuda.empty_cache()
    print(f"{len(failures)} failed: {', '.join(failures)}" if failures else "all ok")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
