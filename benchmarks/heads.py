"""What a head sweep saves by beginning rows at the block in which they are cut.

    python benchmarks/heads.py [--model bundled] [--questions 8] [--layer 20] [--blocks 10,14,18]

Every head of the named blocks is knocked out alone, then each block's heads together, on token
sequences of a question's length, and layer k is read. Both ways run in turn in the same process;
the ratio is that of their medians. The floor counts blocks: k - b + 1 of k where block b is cut.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from anchorscope.engine.batches import Budget
from anchorscope.engine.interventions import Intervention, TokenPositions
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN
from anchorscope.engine.read import read_from_clean, read_rows
from anchorscope.engine.rows import Row, row_for
from anchorscope.engine.trunk import Trunk, grow_trunk, read_prefix
from anchorscope.models import load_model

PREFIX, TURN, ANSWER, EXACT = 120, 16, 3, range(5, 8)  # tokens; E_Q counts from the turn's start
WAYS = {"whole passes": read_rows, "begun at the cut": read_from_clean}


def main() -> None:
    """Prints seconds, ratio and floor."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--layer", type=int, default=20)
    parser.add_argument("--blocks", default="10,14,18")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    blocks = [int(block) for block in args.blocks.split(",")]
    with Lease(load_model(args.model, device=args.device, dtype=args.dtype)) as lease:
        trunk, rows = work(lease, args.questions, blocks)
        seconds: dict[str, list[float]] = {name: [] for name in WAYS}
        states = {}
        for _ in range(args.repeats):
            for name, read in WAYS.items():
                seconds[name].append(clocked(lambda read=read: read_all(
                    lease, trunk, rows, read, args.layer, states)))  # fmt: skip
    print(
        f"{lease.model.name}, {len(rows)} rows, heads of blocks {args.blocks}, layer {args.layer}"
    )
    medians = [statistics.median(seconds[name]) for name in WAYS]
    for name, median in zip(WAYS, medians, strict=True):
        print(f"{name}: {median:.2f} s (of {', '.join(f'{s:.2f}' for s in seconds[name])})")
    share = [(args.layer - first + 1) / args.layer for first in map(first_block, rows)]
    print(f"ratio {medians[1] / medians[0]:.2f}, floor {statistics.mean(share):.2f}")
    far = max(float((a - b).abs().max() / b.abs().max()) for a, b in states.values())
    print(f"largest difference of a state, as a share of its largest value: {far:.1e}")


def work(lease: Lease, questions: int, blocks: Sequence[int]) -> tuple[Trunk, list[Row]]:
    """The trunk of made-up questions, and a row for each of them and each set of heads."""
    heads = lease.model.lm.config.get_text_config().num_attention_heads
    cuts = [((block, head),) for block in blocks for head in range(heads)]
    cuts += [tuple((block, head) for head in range(heads)) for block in blocks]
    named = [Intervention(name=str(number), heads=cut) for number, cut in enumerate(cuts)]
    samples = [made_up(number) for number in range(questions)]
    prefix = read_prefix(lease, samples[0].ids[:PREFIX])
    prompts = [sample.ids[: sample.answer_at] for sample in samples]
    trunk = grow_trunk(lease, prefix, prompts, room=0, head=False).trunk
    how = {"blocks": lease.model.blocks, "turn_at": PREFIX, "seed": 0}
    rows = [row_for(s, n, cut, **how) for n, s in enumerate(samples) for cut in (CLEAN, *named)]
    return trunk, rows


def made_up(number: int) -> TokenPositions:
    """A sample of random tokens; the prefix is the same for all."""
    front = torch.randint(100, 900, (PREFIX,), generator=torch.Generator().manual_seed(0))
    drawn = torch.Generator().manual_seed(1 + number)
    own = torch.randint(100, 900, (TURN + ANSWER,), generator=drawn)
    return TokenPositions(
        id=f"made:up:{number}",
        ids=(*front.tolist(), *own.tolist()),
        answer_at=PREFIX + TURN,
        question_tokens=tuple(range(PREFIX + 1, PREFIX + TURN - 1)),
        exact_question=tuple(PREFIX + place for place in EXACT),
    )


def read_all(
    lease: Lease, trunk: Trunk, rows: Sequence[Row], read: Callable, layer: int, states: dict
) -> None:
    """Reads all rows; `states` gets each row's at the layer, the newer one first."""
    budget = Budget.of(lease.model)
    for batch, found in read(lease, trunk, rows, budget=budget, depth=layer):
        for row, state in zip(batch, found[:, -1].float().cpu(), strict=True):
            key = (row.number, row.intervention.name)
            states[key] = (state, *states.get(key, (state,))[:1])


def first_block(row: Row) -> int:
    """The first block (from 1) that a row must compute anew."""
    return min((block for block, _ in row.intervention.heads or ()), default=1)


def clocked(job: Callable[[], object]) -> float:
    """Seconds that a job takes: the process's own on a CPU, which others may use as well."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    begun = clock()
    job()
    return clock() - begun


if __name__ == "__main__":
    main()
