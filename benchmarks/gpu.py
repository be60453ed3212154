"""Measure speed and GPU memory on full-size architectures with random weights.

    python benchmarks/gpu.py [--models Llama-3.2-1B,Qwen3-8B] [--questions 2048] [--json FILE]
    python benchmarks/gpu.py --engine vllm [--answer 6]  # beside our engine, in the same run

The job: answer the questions greedily (prefix 96, question 24, answer 6 tokens) and bring the
states of all layers at the last answer token to the host, clean and under the cumulative
knockout. Model FLOP utilisation is measured against a matrix product in the same run.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from peers_clock import Clock
from transformers import AutoConfig, AutoModelForCausalLM

from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import DecodedBatch, read_prefix, write_answers
from anchorscope.engine.interventions import KNOCKOUT, TokenPositions
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import read_rows, row_for
from anchorscope.engine.transfer import to_host
from anchorscope.engine_vllm import VllmServer
from anchorscope.models import Model, load_model
from anchorscope.models.parts import find_parts

PREFIX, QUESTION, ANSWER = 96, 24, 6
EXACT = (8, 12)  # the subject's tokens within the question
BUDGET = 65536

_QWEN = {"model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
_LLAMA = {"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256,
          "intermediate_size": 8192, "tie_word_embeddings": True}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": _LLAMA | {"num_hidden_layers": 16, "hidden_size": 2048,
                              "num_attention_heads": 32, "head_dim": 64},
    "Llama-3.2-3B": _LLAMA | {"num_hidden_layers": 28, "hidden_size": 3072,
                              "num_attention_heads": 24, "head_dim": 128},
    "Qwen3-8B": _QWEN | {"num_hidden_layers": 36, "hidden_size": 4096,
                         "num_attention_heads": 32, "intermediate_size": 12288},
    "Qwen3-32B": _QWEN | {"num_hidden_layers": 64, "hidden_size": 5120,
                          "num_attention_heads": 64, "intermediate_size": 25600},
}  # fmt: skip


class NoTokenizer:
    """A placeholder tokenizer: the benchmark works on token ids."""

    is_fast = True


def build(name: str) -> Model:
    """Build a model of a real architecture with random weights on the device."""
    config = AutoConfig.for_model(**SIZES[name])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    finally:
        torch.set_default_dtype(before)
    lm.config.name_or_path = name
    return load_model(lm.eval(), tokenizer=NoTokenizer())


def build_served(name: str) -> Model:
    """Build the same architecture inside vLLM, with random weights of its own."""
    config = AutoConfig.for_model(**SIZES[name])
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    config.architectures, folder = [type(lm).__name__], mkdtemp()
    config.save_pretrained(folder)
    server = VllmServer(folder, load_format="dummy")
    return Model(
        name=name, source=folder, revision=None, lm=lm.eval(), tokenizer=NoTokenizer(),
        parts=find_parts(lm), why="random weights in vLLM", server=server,
    )  # fmt: skip


def make_prompts(model: Model, count: int) -> list[tuple[int, ...]]:
    """Make prompts of random tokens: a shared prefix, and a question each."""
    size = model.lm.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    prefix = torch.randint(size, (PREFIX,), generator=generator).tolist()
    turns = torch.randint(size, (count, QUESTION), generator=generator).tolist()
    return [tuple(prefix + turn) for turn in turns]


def mark(prompt: tuple[int, ...], answer: tuple[int, ...], number: int) -> TokenPositions:
    return TokenPositions(
        id=str(number),
        ids=prompt + answer,
        answer_at=len(prompt),
        question_tokens=tuple(range(PREFIX, len(prompt))),
        exact_question=tuple(range(PREFIX + EXACT[0], PREFIX + EXACT[1])),
    )


def job(
    model: Model, prompts: list[tuple[int, ...]], budget: Budget, limit: int
) -> dict[str, float]:
    """Run the job once; return the seconds of each part and the number of knockout tokens."""
    clock, tokens = Clock(), 0
    with Lease(model) as lease:
        prefix = read_prefix(lease, prompts[0][:PREFIX])
        none = torch.tensor([-1], device=model.device)

        def answer(batch: list[tuple[int, ...]]) -> DecodedBatch:
            with clock.of("generate"):
                return write_answers(lease, prefix, batch, stop_ids=none, limit=limit)

        for batch, written in in_batches(
            prompts, answer, length=lambda p: QUESTION, then=lambda p: p, budget=budget
        ):
            with clock.of("clean"):
                at = torch.arange(len(batch), device=written.states.device)
                to_host(written.states[at, torch.full_like(at, limit - 1)])
            lines = zip(batch, written.answers, strict=True)
            marked = [mark(p, line.token_ids, n) for n, (p, line) in enumerate(lines)]
            rows = [row_for(written.trunk, m, n, KNOCKOUT) for n, m in enumerate(marked)]
            tokens += sum(len(row.ids) for row in rows)
            reader = read_rows(lease, written.trunk, rows, budget=budget)
            while True:
                with clock.of("knockout"):
                    read = next(reader, None)
                if read is None:
                    break
                with clock.of("copy"):
                    to_host(read[1])
    return {**clock.wall, "total": sum(clock.wall.values()), "knockout_tokens": tokens}


def product_rate() -> float:
    """Measure the FLOP/s of a large bfloat16 matrix product."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return 2 * 8192**3 / best_of(lambda: a @ a, 12)


def best_of(work: Callable[[], object], times: int) -> float:
    clocks = []
    for _ in range(times):
        clock = Clock()
        with clock.of("x"):
            work()
        clocks.append(clock.wall["x"])
    return sorted(clocks)[len(clocks) // 2]


def measure(model: Model, questions: int, repeats: int, limit: int) -> dict[str, float]:
    """Measure a model: the median of `repeats` runs, after one to warm up."""
    prompts = make_prompts(model, questions)
    budget = Budget(BUDGET)
    job(model, prompts, budget, limit)  # warms up, and finds the batch size that fits
    torch.cuda.reset_peak_memory_stats()
    runs = [job(model, prompts, budget, limit) for _ in range(repeats)]
    runs.sort(key=lambda run: run["total"])
    found = runs[len(runs) // 2]
    inner = sum(p.numel() for p in model.parts.blocks[0].parameters()) * model.blocks
    rate = product_rate()
    tokens = questions * (QUESTION + limit) + found["knockout_tokens"]
    found |= {
        "questions": questions,
        "tokens_per_second": tokens / found["total"],
        "product_tflops": rate / 1e12,
        "knockout_mfu": 2 * inner * found["knockout_tokens"] / found["knockout"] / rate,
        "whole_mfu": 2 * inner * tokens / found["total"] / rate,
        "floor_seconds": 2 * inner * tokens / rate,
        "batch_tokens": budget.tokens,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--questions", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--answer", type=int, default=ANSWER, help="tokens of each answer")
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    builders = {"": build} | ({" in vLLM": build_served} if given.engine == "vllm" else {})
    found = {}
    for name in [f"{name}{where}" for name in given.models.split(",") for where in builders]:
        model = builders[" in vLLM" if name.endswith(" in vLLM") else ""](name.split()[0])
        found[name] = measure(model, given.questions, given.repeats, given.answer)
        del model
        gc.collect()
        torch.cuda.empty_cache()
        print(name, {key: round(value, 3) for key, value in found[name].items()}, flush=True)
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
