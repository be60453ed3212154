"""What the checks try: three made-up questions under every kind of change."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anchorscope.engine.batches import Budget
from anchorscope.engine.decode import Written, write_answers
from anchorscope.engine.interventions import Intervention, TokenPositions
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.engine.read import read_rows
from anchorscope.engine.rows import read_batch, row_for
from anchorscope.engine.trunk import Prefix, Trunk
from anchorscope.models import Model

PREFIX, TURNS, ANSWER = 6, (9, 9, 12), 3
_ALIKE = 4  # tokens with which the first and the last turn begin
_GAP = 3  # the token of a turn that E_Q leaves out: a row then begins there, with E_Q's rest behind
_BETA = 2.0


@dataclass(frozen=True)
class Trial:
    """Three answered questions, as the engine wrote them."""

    samples: tuple[TokenPositions, ...]
    written: Written


def prompts_for(model: Model) -> list[tuple[int, ...]]:
    """Arbitrary tokens: the checks are about arithmetic, not meaning.

    Not all of them are distinct, clean or cut: the second turn differs from the first in E_Q alone,
    and the third begins like it.
    """
    generator = torch.Generator().manual_seed(0)
    low, size = _vocabulary(model)
    prefix, first, other, more = (
        tuple(torch.randint(low, size, (n,), generator=generator).tolist())
        for n in (PREFIX, *TURNS)
    )
    gap = slice(_GAP, _GAP + 1)
    second = first[:1] + other[1:_GAP] + first[gap] + other[_GAP + 1 : -2] + first[-2:]
    turns = (first, second, first[:_ALIKE] + more[_ALIKE:])
    return [prefix + turn for turn in turns]


def distinct_prompts(model: Model, tokens: int) -> list[tuple[int, ...]]:
    """Prompts that share nothing but the prefix and a first token, of so many tokens at least."""
    like, (low, size) = prompts_for(model), _vocabulary(model)
    count = len(like) * -(-tokens // (sum(TURNS) - len(TURNS)))
    return [_renamed(like[n % len(like)], n, low, size - low) for n in range(count)]


def _renamed(prompt: tuple[int, ...], number: int, low: int, words: int) -> tuple[int, ...]:
    """The prompt with its number, in words, in the place of its turn's first two tokens."""
    name = (low + number % words, low + number // words % words)
    return prompt[:PREFIX] + name + prompt[PREFIX + len(name) :]


def _vocabulary(model: Model) -> tuple[int, int]:
    """Where the tokens that the checks draw from begin and end; the first ones are special."""
    size = model.lm.config.get_text_config().vocab_size
    return size // 10, size


def answered(lease: Lease, prefix: Prefix, prompts: list[tuple[int, ...]]) -> Trial:
    """The three prompts with their greedy answers, decoded as a run decodes them."""
    never = torch.tensor([-1], device=lease.model.device)
    written = write_answers(lease, prefix, prompts, stop_ids=never, limit=ANSWER)
    samples = tuple(
        positions(prompt, line.token_ids, number)
        for number, (prompt, line) in enumerate(zip(prompts, written.lines, strict=True))
    )
    return Trial(samples, written)


def positions(
    prompt: tuple[int, ...], answer: tuple[int, ...], number: int, *, start: int = PREFIX
) -> TokenPositions:
    """E_Q is the middle of the turn but for one token: the longer it is, the more a cut must move.

    The gap in it is there for rows that leave out the keys behind it.
    """
    turn = range(start, len(prompt))
    return TokenPositions(
        id=f"check:{number}",
        ids=prompt + answer,
        answer_at=len(prompt),
        question_tokens=tuple(turn),
        exact_question=(*turn[1:_GAP], *turn[_GAP + 1 : -2]),
        exact_answer=tuple(range(len(prompt), len(prompt) + len(answer))),
    )


def interventions(model: Model) -> tuple[Intervention, ...]:
    """One of every kind that a run can ask for."""
    heads = model.lm.config.get_text_config().num_attention_heads
    # The first half of the heads: one head of a large model moves less than rounding does.
    half = tuple((b, h) for b in range(1, model.blocks + 1) for h in range(max(1, heads // 2)))
    return (
        KNOCKOUT,
        replace(KNOCKOUT, name="single", layers="single"),
        replace(KNOCKOUT, name="window", layers=f"window:{max(2, min(6, model.blocks // 2))}"),
        replace(KNOCKOUT, name="heads", heads=half),
        replace(KNOCKOUT, name="post", where="post"),
        Intervention(name="boost", boost=_BETA),
    )


def ours(
    lease: Lease, trunk: Trunk, samples: tuple[TokenPositions, ...], kinds: tuple[Intervention, ...]
) -> dict[str, Tensor]:
    """States [sample, layer, width] by intervention, all through the engine in its own batches."""
    how = {"blocks": lease.model.blocks, "turn_at": len(trunk.prefix), "seed": 0}
    rows = [row_for(s, n, kind, **how) for kind in kinds for n, s in enumerate(samples)]
    states: dict[str, list[Tensor]] = {kind.name: [torch.empty(0)] * len(samples) for kind in kinds}
    for batch, read in read_rows(lease, trunk, rows, budget=Budget.of(lease.model)):
        for row, state in zip(batch, read, strict=True):
            states[row.intervention.name][row.number] = state
    return {name: torch.stack(rows) for name, rows in states.items()}


def empty_pair(lease: Lease, trunk: Trunk, sample: TokenPositions) -> tuple[Tensor, Tensor]:
    """States with no keys to cut and with no head to cut, of rows that start alike."""
    how = {"blocks": lease.model.blocks, "turn_at": len(trunk.prefix), "seed": 0}
    start = row_for(sample, 0, KNOCKOUT, **how).at[0]
    whole = {"ids": sample.ids[start:], "at": tuple(range(start, len(sample.ids)))}
    bare = replace(sample, exact_question=())
    first, second = (
        read_batch(lease, trunk, [replace(row_for(s, 0, c, **how), **whole)])
        for s, c in ((bare, KNOCKOUT), (sample, CLEAN))
    )
    return first, second
