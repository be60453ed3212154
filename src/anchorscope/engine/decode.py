"""Decoding from top to bottom: the shared prefix, the prompts' trunk, then token after token.

The tokens that begin every prompt are read once a run (`Prefix`), the rest of each prompt once a
batch (`Trunk`). From there `write_answers` feeds the likeliest token of every row until all rows
have ended, and keeps the state of each token as it is fed; `write_samples` draws tokens instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from anchorscope.engine.kv_cache import GrowingCache, Pair
from anchorscope.engine.layout import PAD, Layout, Stretch, distinct_tokens
from anchorscope.engine.lease import Lease, Read
from anchorscope.engine.transfer import to_device
from anchorscope.models import Model

# Rows are taken out of the batch when this share of them has finished: a copy of the memory for
# every row that ends would cost more than it saves.
_COMPACT_AT = 0.25


@dataclass(frozen=True)
class Step:
    """The next token of every answer that is still being written, as it is fed."""

    number: int  # of the token in its answer, from 0
    rows: tuple[int, ...]  # whose token it is
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

        `beside` are the bytes of a row that are no keys and values. The prefix is in the buffer of
        every row, but where a kernel reads it in place (`segmented`): there it is held once.
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
    """A trunk, the cache that decoding goes on with, and what the last tokens gave."""

    trunk: Trunk
    memory: GrowingCache
    last: Read


def shared_prefix(prompts: Sequence[Sequence[int]], stop: int) -> tuple[int, ...]:
    """The tokens that begin every prompt, `stop` at most; one is left to each prompt."""
    stop = min([stop, *(len(prompt) - 1 for prompt in prompts)])
    first = tuple(prompts[0][:stop])
    for prompt in prompts:
        if tuple(prompt[: len(first)]) == first:
            continue
        same = (i for i, (a, b) in enumerate(zip(first, prompt, strict=False)) if a != b)
        first = first[: next(same, len(first))]
    return first


def read_prefix(lease: Lease, ids: Sequence[int]) -> Prefix:
    """The prefix with its keys and values, computed once."""
    if not ids:
        return Prefix((), None)
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
    room: int,
    head: bool,
    extra_position: Sequence[int] | None = None,
) -> GrownTrunk:
    """The trunk of these prompts, with `room` for as many tokens more in its memory.

    States are kept at each prompt's last token, and at one more position of each, if given.
    """
    turns = tuple(tuple(prompt[len(prefix) :]) for prompt in prompts)
    tokens = pad_left(turns, 0, lease.model.device)
    at = pad_left([range(len(prefix), len(p)) for p in prompts], PAD, lease.model.device)
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
    # Copies, small beside the prefix in every row of the memory, which can then be let go.
    return GrownTrunk(Trunk(prefix, turns, at, memory.own(at.shape[1])), memory, last)


def pad_left(rows: Sequence[Sequence[int]], fill: int, device: torch.device) -> Tensor:
    """The rows as one tensor [row, column], each ending at the last column."""
    sizes = np.array([len(row) for row in rows])
    width = int(sizes.max())
    table = np.full((len(rows), width), fill, dtype=np.int64)
    # In row order, as the mask is: torch takes five times as long over lists of lists.
    numbers = np.fromiter(chain.from_iterable(rows), np.int64, int(sizes.sum()))
    table[np.arange(width) >= (width - sizes)[:, None]] = numbers
    return to_device(table, device)


# --- Answers ---


@dataclass(frozen=True)
class DecodedAnswer:
    """One answer: its tokens and how sure each was, at temperature 1."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    entropies: tuple[float, ...]  # of the distribution that each token was chosen from
    first_entropy: float  # there is one where the answer has no token
    finished: bool


@dataclass(frozen=True)
class DecodedBatch:
    """A batch of greedy answers, the states of all layers at their tokens, and their trunk."""

    answers: tuple[DecodedAnswer, ...]
    states: Tensor  # [row, token, layer, width], on the model's device
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
    """The bytes that the states of one answer of so many tokens take while it is written."""
    return tokens * model.blocks * model.parts.width * model.dtype.itemsize


def write_answers(
    lease: Lease,
    prefix: Prefix,
    prompts: Sequence[Sequence[int]],
    *,
    stop_ids: Tensor,
    limit: int,
    extra_position: Sequence[int] | None = None,
    on_token: OnToken | None = None,
) -> DecodedBatch:
    """Each prompt's greedy answer up to a stop token (left out) or the limit.

    `extra_position` is one more position of each prompt whose states are kept. `on_token` is called
    with each step of the answers.
    """
    grown = grow_trunk(lease, prefix, prompts, room=limit, head=True, extra_position=extra_position)
    decoder = _Decoder(lease, prefix, grown, limit)
    decoder.states = torch.empty(
        (len(prompts), limit, lease.model.blocks, lease.model.parts.width),
        dtype=lease.model.dtype,
        device=lease.model.device,
    )
    decoder.on_token = on_token
    decoder.run(grown.last.logits, stop_ids)
    return DecodedBatch(decoder.answers(), decoder.states, grown.trunk, grown.last.extra)


def write_samples(
    lease: Lease,
    prefix: Prefix,
    prompts: Sequence[Sequence[int]],
    *,
    stop_ids: Tensor,
    limit: int,
    sampling: Sampling,
    on_token: OnToken | None = None,
) -> list[tuple[DecodedAnswer, ...]]:
    """Several drawn answers to each prompt, which is read once for all of them.

    `on_token` is called with each step but the last one allowed, whose tokens are not fed.
    """
    each = sampling.uniforms.shape[1]
    grown = grow_trunk(lease, prefix, prompts, room=limit, head=True)
    assert grown.last.logits is not None
    index = torch.arange(len(prompts), device=lease.model.device).repeat_interleave(each)
    grown.memory.keep(index)
    decoder = _Decoder(lease, prefix, grown, limit, at=grown.trunk.at[index])
    decoder.sampling, decoder.on_token = sampling, on_token
    decoder.run(grown.last.logits[index], stop_ids)
    answers = decoder.answers()
    return [answers[start : start + each] for start in range(0, len(answers), each)]


class _Decoder:
    """A batch of answers under way: the rows still being written, and what is written so far."""

    states: Tensor | None = None  # [row, token, layer, width]; None: nothing reads them
    sampling: Sampling | None = None
    on_token: OnToken | None = None

    def __init__(
        self,
        lease: Lease,
        prefix: Prefix,
        grown: GrownTrunk,
        limit: int,
        *,
        at: Tensor | None = None,
    ) -> None:
        self.lease, self.prefix, self.limit = lease, prefix, limit
        self.memory = grown.memory
        self.at = grown.trunk.at if at is None else at  # key positions [row, column]
        self.next_at = self.at[:, -1] + 1  # position of the token fed next [row]
        count, device = len(self.at), lease.model.device
        self.rows = torch.arange(count, device=device)  # those still being written
        self.tokens = torch.zeros(count, limit, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(count, limit, device=device)
        self.entropy = torch.zeros(count, limit, device=device)
        self.length = torch.full((count,), -1, device=device)  # -1: still being written
        self.likeliest = likeliest
        if lease.fused:
            from anchorscope.engine import kernels  # needs Triton

            self.likeliest = kernels.likeliest

    def run(self, logits: Tensor | None, stop_ids: Tensor) -> None:
        """Write token after token until every row has ended."""
        for step in range(self.limit):
            assert logits is not None
            chosen = self._choose(logits, step)
            length = self.length[self.rows]
            stopped = torch.isin(chosen, stop_ids) & (length < 0)
            self.length[self.rows] = torch.where(stopped, step, length)
            chosen = self._drop_finished(chosen)
            if not self.rows.numel():
                break
            # The last token allowed is fed too, for its state, without the head.
            # The states of a drawn answer are not kept, and its last token is not fed.
            last = step + 1 == self.limit
            if last and self.states is None:
                break
            logits = self._feed(chosen, step, head=not last)

    def _choose(self, logits: Tensor, step: int) -> Tensor:
        """The likeliest or the drawn token of each row, stored with its log-probability."""
        if self.sampling is None:
            chosen, own, entropy = self.likeliest(logits)
        else:
            log_probs = torch.log_softmax(logits.float(), dim=-1)
            at_step = self.sampling.uniforms.flatten(0, 1)[self.rows.cpu(), step]
            chosen = draw_tokens(log_probs, at_step, self.sampling.temperature)
            own = log_probs.gather(1, chosen[:, None])[:, 0]
            entropy = -(log_probs.exp() * log_probs).nan_to_num(0.0).sum(dim=-1)
        self.tokens[self.rows, step], self.log_probs[self.rows, step] = chosen, own
        self.entropy[self.rows, step] = entropy
        return chosen

    def _drop_finished(self, chosen: Tensor) -> Tensor:
        """The tokens of the rows to go on with.

        A finished row may stay a while; what it writes is not counted.
        """
        # The one question of a step that a GPU ends its work for: between steps Python gets ahead.
        ended = (self.length[self.rows] >= 0).cpu().numpy()
        if ended.sum() < max(1, _COMPACT_AT * len(ended)):
            return chosen
        index = to_device((~ended).nonzero()[0], self.rows.device)
        self.memory.keep(index)
        self.rows, self.at, self.next_at = self.rows[index], self.at[index], self.next_at[index]
        return chosen[index]

    def _feed(self, chosen: Tensor, step: int, *, head: bool) -> Tensor | None:
        """The logits after the chosen tokens [row]; their states are kept."""
        query_at = self.next_at[:, None]
        self.at = torch.cat([self.at, query_at], dim=1)
        self.next_at = self.next_at + 1
        sizes = [1] * len(query_at)
        layout = Layout(query_at, self.at, prefix_length=len(self.prefix), sizes=sizes)
        read = self.lease.run(chosen[:, None], layout, self.memory, head=head)
        if self.states is not None:
            self.states[self.rows, step] = read.states
        if self.on_token is not None:
            self.on_token(self._step(chosen, step, read.states))
        return read.logits

    def _step(self, chosen: Tensor, step: int, states: Tensor) -> Step:
        """The tokens fed, of the rows that have not ended."""
        going = (self.length[self.rows] < 0).nonzero()[:, 0]
        rows, tokens = self.rows[going].tolist(), chosen[going].tolist()
        return Step(step, tuple(rows), tuple(tokens), states[going])

    def answers(self) -> tuple[DecodedAnswer, ...]:
        """The answers in the order of the prompts."""
        length = torch.where(self.length < 0, self.limit, self.length).tolist()
        finished = (self.length >= 0).tolist()
        tokens, log_probs = self.tokens.tolist(), self.log_probs.tolist()
        entropy = self.entropy.tolist()
        return tuple(
            DecodedAnswer(
                token_ids=tuple(tokens[row][:n]),
                log_probs=tuple(log_probs[row][:n]),
                entropies=tuple(entropy[row][:n]),
                first_entropy=entropy[row][0],
                finished=finished[row],
            )
            for row, n in enumerate(length)
        )


_FAR = -1e4  # the exponential of anything below is 0


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest tokens, their log-probabilities and the entropies, [row] each."""
    logits = logits.float()
    top, chosen = logits.max(dim=-1)
    below = logits - top[:, None]
    share = below.exp()  # once: on a CPU it costs a tenth of a decoding step
    total = share.sum(dim=-1)
    # What cannot be chosen has -inf, and adds nothing.
    mean = torch.linalg.vecdot(share, below.clamp_(min=_FAR)) / total
    return chosen, -total.log(), total.log() - mean


def draw_tokens(log_probs: Tensor, uniforms: Tensor, temperature: float) -> Tensor:
    """The token of each row at which the cumulative probability passes its number, [row].

    `uniforms` [row] are in [0, 1). In double precision where the device has it: single sums over
    a large vocabulary are off by more than many tokens' probability.
    """
    exact = torch.float32 if log_probs.device.type == "mps" else torch.float64
    chances = torch.softmax(log_probs.to(exact) / temperature, dim=-1)
    heights = chances.cumsum(dim=-1)
    target = uniforms.to(heights)[:, None] * heights[:, -1:]
    return torch.searchsorted(heights, target, right=True)[:, 0].clamp(max=log_probs.shape[1] - 1)
