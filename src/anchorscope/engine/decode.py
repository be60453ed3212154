"""Batched decoding: the shared prefix, the prompts' trunk, then answers token by token.

The tokens that begin every prompt are read once a run (`Prefix`), the rest of each prompt once a
batch (`Trunk`). From there `write_answers` feeds the likeliest token of every row, or a drawn one,
until all rows have ended, and keeps the state of each token as it is fed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorscope.engine.layout import PAD, GrowingCache, Layout, Pair, Stretch, distinct_tokens
from anchorscope.engine.lease import Lease, Read
from anchorscope.engine.transfer import to_device
from anchorscope.engine_vllm import Readings, ReadRequest, WrittenAnswer
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.records import DecodedAnswer

# Rows are taken out of the batch when this share of them has finished: a copy of the memory for
# every row that ends would cost more than it saves.
_COMPACT_AT = 0.25


@dataclass(frozen=True)
class Step:
    """One step of decoding: the next token of every unfinished answer, and its states."""

    number: int  # of the token in its answer, from 0
    rows: tuple[int, ...]  # the row of each token
    tokens: tuple[int, ...]
    states: Tensor  # [row, layer, width]


OnToken = Callable[[Step], None]


# --- Prefix and trunk: the clean part that everything shares ---


@dataclass(frozen=True)
class Prefix:
    """Keys and values of the tokens that begin every prompt of a run."""

    ids: tuple[int, ...]
    pairs: tuple[Pair, ...] | None  # one a block, [1, key head, prefix, head width]

    def __len__(self) -> int:
        return len(self.ids)

    def rows_within(
        self, memory: int | None, *, room: int, beside: int = 0, segmented: bool = False
    ) -> int | None:
        """How many rows with `room` positions of their own fit into `memory` bytes; None: any.

        `beside` is the bytes of a row besides keys and values. The prefix is in the buffer of every
        row, except where a kernel reads it in place (`segmented`): there it is held once.
        """
        pairs = self.pairs or ()
        whole = sum(key.nbytes + value.nbytes for key, value in pairs)
        position = whole // max(1, len(self))
        row = position * (room if segmented else len(self) + room) + beside
        if memory is None or row == 0:
            return None
        return max(1, (memory - (whole if segmented else 0)) // row)


@dataclass(frozen=True)
class Trunk:
    """The clean keys and values of a batch of prompts after the prefix, padded on the left."""

    prefix: Prefix
    turns: tuple[tuple[int, ...], ...]  # each row's tokens
    at: Tensor  # their positions [row, column], PAD for padding
    pairs: tuple[Pair, ...]  # one a block, [row, key head, column, head width]


@dataclass(frozen=True)
class GrownTrunk:
    """A trunk, the cache that decoding continues with, and the states at the last tokens."""

    trunk: Trunk
    memory: GrowingCache
    last: Read


def shared_prefix(prompts: Sequence[Sequence[int]], stop: int) -> tuple[int, ...]:
    """The longest common prefix of prompts, `stop` tokens at most; each keeps at least one."""
    stop = min([stop, *(len(prompt) - 1 for prompt in prompts)])
    first = tuple(prompts[0][:stop])
    for prompt in prompts:
        if tuple(prompt[: len(first)]) == first:
            continue
        same = (i for i, (a, b) in enumerate(zip(first, prompt, strict=False)) if a != b)
        first = first[: next(same, len(first))]
    return first


def read_prefix(lease: Lease, ids: Sequence[int]) -> Prefix:
    """Compute the keys and values of a prefix."""
    if not ids or lease.server is not None:
        return Prefix(tuple(ids), None)
    at = torch.arange(len(ids), device=lease.model.device)[None]
    memory = GrowingCache(lease.model.blocks, len(ids), segmented=lease.fused)
    tokens = torch.tensor([list(ids)], device=lease.model.device)
    lease.run(tokens, Layout(at, at, prefix_length=0), memory)
    # Copies, which later passes may take gradients through.
    return Prefix(tuple(ids), memory.own(len(ids)))


def grow_trunk(
    lease: Lease,
    prefix: Prefix,
    prompts: Sequence[Sequence[int]],
    *,
    room: int = 0,
    head: bool = False,
    extra_position: Sequence[int] | None = None,
) -> GrownTrunk:
    """Run prompts after their prefix: their trunk, and a cache with `room` for more tokens.

    States are kept at each prompt's last token, and at its `extra_position`, if given.
    """
    turns = tuple(tuple(prompt[len(prefix) :]) for prompt in prompts)
    at = pad_left([range(len(prefix), len(p)) for p in prompts], PAD, lease.model.device)
    if lease.server is not None:  # which reads whole rows: a trunk there is its tokens alone
        none = torch.empty(0)
        pairs = ((none, none),) * lease.model.blocks
        return GrownTrunk(Trunk(prefix, turns, at, pairs), GrowingCache(0, 0), Read(none, None))
    tokens = pad_left(turns, 0, lease.model.device)
    memory = GrowingCache(
        lease.model.blocks, at.shape[1] + room, prefix.pairs, segmented=lease.fused
    )
    sizes = [len(turn) for turn in turns]
    # Turns may begin alike. Our kernels for a GPU take the tokens of a row one after the other.
    stretches = (Stretch(turn, range(len(turn))) for turn in turns)
    distinct = None if lease.fused else distinct_tokens(stretches)
    layout = Layout(at, at, prefix_length=len(prefix), sizes=sizes, distinct=distinct)
    more = None
    if extra_position is not None:
        more = layout.token_at(to_device(extra_position, lease.model.device))
    last = lease.run(tokens, layout, memory, head=head, states_at=more)
    # Copies, small beside the prefix in every row of the memory, which can then be freed.
    return GrownTrunk(Trunk(prefix, turns, at, memory.own(at.shape[1])), memory, last)


def pad_left(rows: Sequence[Sequence[int]], fill: int, device: torch.device) -> Tensor:
    """Pad rows on the left to one tensor [row, column]."""
    sizes = np.array([len(row) for row in rows])
    width = int(sizes.max())
    table = np.full((len(rows), width), fill, dtype=np.int64)
    # In row order, as the mask is: torch takes five times as long over lists of lists.
    numbers = np.fromiter(chain.from_iterable(rows), np.int64, int(sizes.sum()))
    table[np.arange(width) >= (width - sizes)[:, None]] = numbers
    return to_device(table, device)


# --- Answers ---


@dataclass(frozen=True)
class DecodedBatch:
    """A batch of answers, the states of all layers at their tokens, and their trunk."""

    answers: tuple[DecodedAnswer, ...]
    states: Tensor | ServedStates  # [row, token, layer, width]; drawn answers: none
    trunk: Trunk
    extra: Tensor | None  # [row, layer, width] at the extra position of the prompts, if given


@dataclass(frozen=True)
class Sampling:
    """Draw tokens at a temperature instead of taking the likeliest.

    A row's numbers are its own, so what is drawn does not depend on the rows beside it.
    """

    temperature: float
    uniforms: Tensor  # [prompt, answer, step] in [0, 1): one number decides one token


def states_bytes(model: Model, tokens: int) -> int:
    """Bytes of the states of one answer of `tokens` tokens while it is decoded."""
    return tokens * model.blocks * model.parts.width * model.dtype.itemsize


def write_answers(
    lease: Lease,
    prefix: Prefix,
    prompts: Sequence[Sequence[int]],
    *,
    stop_ids: Tensor,
    limit: int,
    sampling: Sampling | None = None,
    extra_position: Sequence[int] | None = None,
    on_token: OnToken | None = None,
) -> DecodedBatch:
    """Decode answers token by token, up to a stop token (left out) or the limit.

    With `sampling` several answers are drawn for each prompt, which is read once for all of them:
    its rows follow one another. Otherwise each prompt has its greedy answer, and the state of each
    token is kept. `extra_position` is one more position of each prompt whose states are kept.
    `on_token` is called with each step; drawn answers are not fed their last allowed token.
    """
    model, device = lease.model, lease.model.device
    if lease.server is not None:
        if sampling is not None or on_token is not None:
            raise UserError(
                "Drawn answers and streaming are not offered with --engine vllm. Accepted there: "
                "greedy answers; or --engine transformers."
            )
        written = lease.server.write(prompts, stop_ids=stop_ids.tolist(), limit=limit)
        read = read_served(lease, prefix, prompts, written, extra_position=extra_position)
        own = (replace(answer, off_greedy=0) for answer in read.answers)  # but for rounding
        return replace(read, answers=tuple(own))
    grown = grow_trunk(lease, prefix, prompts, room=limit, head=True, extra_position=extra_position)
    memory, logits, at = grown.memory, grown.last.logits, grown.trunk.at
    choose = likeliest
    if lease.fused:
        from anchorscope.engine.kernels import likeliest as choose  # needs Triton
    if sampling is not None:
        assert logits is not None
        copies = torch.arange(len(prompts), device=device)
        copies = copies.repeat_interleave(sampling.uniforms.shape[1])
        memory.keep(copies)
        logits, at = logits[copies], at[copies]
    count, fed = len(at), limit if sampling is None else 0
    states = torch.empty(
        count, fed, model.blocks, model.parts.width, dtype=model.dtype, device=device
    )
    tokens = torch.zeros(count, limit, dtype=torch.long, device=device)
    log_probs, entropies = torch.zeros(2, count, limit, device=device)
    length = torch.full((count,), -1, device=device)  # -1: still being written
    rows = torch.arange(count, device=device)  # those in the batch
    next_at = at[:, -1] + 1  # the position of the token that is fed next [row]
    for step in range(limit):
        assert logits is not None
        if sampling is None:
            chosen, own, entropy = choose(logits)
        else:
            uniforms = sampling.uniforms.flatten(0, 1)[rows.cpu(), step]
            spread = torch.log_softmax(logits.float(), dim=-1)
            chosen = draw_tokens(spread, uniforms, sampling.temperature)
            own = spread.gather(1, chosen[:, None])[:, 0]
            entropy = -(spread.exp() * spread).nan_to_num(0.0).sum(dim=-1)
        tokens[rows, step], log_probs[rows, step], entropies[rows, step] = chosen, own, entropy
        stopped = torch.isin(chosen, stop_ids) & (length[rows] < 0)
        length[rows] = torch.where(stopped, step, length[rows])
        # A finished row may stay a while; its tokens are not counted. Only here does a step wait
        # for the GPU: between steps Python runs ahead of it.
        ended = (length[rows] >= 0).cpu().numpy()
        if ended.sum() >= max(1, _COMPACT_AT * len(ended)):
            going = to_device((~ended).nonzero()[0], device)
            memory.keep(going)
            rows, at, next_at, chosen = rows[going], at[going], next_at[going], chosen[going]
        last = step + 1 == limit  # which is fed for its state alone, without the head
        if not rows.numel() or (last and sampling is not None):
            break
        at = torch.cat([at, next_at[:, None]], dim=1)
        sizes = [1] * len(rows)
        layout = Layout(next_at[:, None], at, prefix_length=len(prefix), sizes=sizes)
        next_at = next_at + 1
        read = lease.run(chosen[:, None], layout, memory, head=not last)
        logits = read.logits
        if sampling is None:
            states[rows, step] = read.states
        if on_token is not None:
            open = (length[rows] < 0).nonzero()[:, 0]
            numbers, ids = tuple(rows[open].tolist()), tuple(chosen[open].tolist())
            on_token(Step(step, numbers, ids, read.states[open]))
    written = torch.where(length < 0, limit, length).tolist()
    parts = zip(tokens.tolist(), log_probs.tolist(), entropies.tolist(), written, strict=True)
    answers = tuple(
        DecodedAnswer(
            token_ids=tuple(ids[:n]),
            log_probs=tuple(own[:n]),
            first_entropy=spread[0],
            finished=done,
            entropies=tuple(spread[:n]),
        )
        for (ids, own, spread, n), done in zip(parts, (length >= 0).tolist(), strict=True)
    )
    return DecodedBatch(answers, states, grown.trunk, grown.last.extra)


@dataclass(frozen=True)
class ServedStates:
    """States of answer tokens [row, token, layer, width] that stay with vLLM until chosen."""

    readings: Readings
    answer_at: tuple[int, ...]  # the position of each row's first answer token
    device: torch.device = torch.device("cpu")

    def __getitem__(self, at: Any) -> Tensor:
        """States [place, layer, width] at rows and tokens, [place] each."""
        rows, tokens = (index.tolist() for index in at)
        places = [self.answer_at[row] + token for row, token in zip(rows, tokens, strict=True)]
        return self.readings.states(rows, places)


def read_served(
    lease: Lease,
    prefix: Prefix,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[WrittenAnswer],
    *,
    extra_position: Sequence[int] | None = None,
) -> DecodedBatch:
    """Read answers behind their prompts by vLLM: a row each, whatever wrote the answer."""
    assert lease.server is not None
    starts, requests = tuple(len(prompt) for prompt in prompts), []
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        ids = (*prompt, *answer.token_ids)
        more = () if extra_position is None else (extra_position[row],)
        places = (*more, *range(len(prompt), len(ids)))
        scored = len(answer.token_ids)
        requests.append(ReadRequest(ids=ids, positions=places, scored=scored))
    readings = lease.server.read(requests)
    extra = None
    if extra_position is not None:
        extra = readings.states(range(len(prompts)), extra_position)
    decoded = []
    for answer, scores in zip(answers, readings.scores, strict=True):
        log_probs, _, entropies, likeliest = scores.T.tolist()
        decoded.append(
            DecodedAnswer(
                token_ids=answer.token_ids,
                log_probs=tuple(log_probs),
                first_entropy=entropies[0] if entropies else np.nan,
                finished=answer.finished,
                entropies=tuple(entropies),
                off_greedy=likeliest.count(0.0),
            )
        )
    trunk = grow_trunk(lease, prefix, prompts).trunk
    return DecodedBatch(tuple(decoded), ServedStates(readings, starts), trunk, extra)


_FAR = -1e4  # the exponential of anything below is 0


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest tokens, their log-probabilities and the entropies, [row] each."""
    logits = logits.float()
    top, chosen = logits.max(dim=-1)
    below = logits - top[:, None]
    share = below.exp()  # once: on a CPU it costs a tenth of a decoding step
    total = share.sum(dim=-1)
    # A token that cannot be chosen has -inf and adds nothing.
    mean = torch.linalg.vecdot(share, below.clamp_(min=_FAR)) / total
    return chosen, -total.log(), total.log() - mean


def draw_tokens(log_probs: Tensor, uniforms: Tensor, temperature: float) -> Tensor:
    """Sample a token for each row by inverse transform of `uniforms` [row] in [0, 1), [row].

    In double precision where the device has it: sums in single precision over a large vocabulary
    are off by more than many tokens' probability.
    """
    exact = torch.float32 if log_probs.device.type == "mps" else torch.float64
    chances = torch.softmax(log_probs.to(exact) / temperature, dim=-1)
    heights = chances.cumsum(dim=-1)
    target = uniforms.to(heights)[:, None] * heights[:, -1:]
    return torch.searchsorted(heights, target, right=True)[:, 0].clamp(max=log_probs.shape[1] - 1)
