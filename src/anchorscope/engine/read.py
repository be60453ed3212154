"""Read states of questions under interventions: build rows, batch them, run them.

A knockout changes nothing before the first position outside its keys that comes after one of
them, so a row starts there, on the clean keys and values of its trunk. Later keys that no token
outside them sees are left out of the row. Many questions and interventions are rows of one batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anchorscope.engine.attention import WeightObserver, WindowSlots
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import Prefix, Trunk, grow_trunk, likeliest, pad_left, read_served
from anchorscope.engine.interventions import CLEAN, Intervention, TokenPositions, keys_of, window_of
from anchorscope.engine.layout import PAD, Edges, ForkedCache, Layout, Stretch, distinct_tokens
from anchorscope.engine.lease import Lease
from anchorscope.engine.transfer import HostCopy, to_device
from anchorscope.engine_vllm import ReadRequest, WrittenAnswer
from anchorscope.errors import UserError
from anchorscope.records import DecodedAnswer

# --- Rows ---


@dataclass(frozen=True)
class Row:
    """One question under one intervention, cut in the blocks `blocks`."""

    number: int  # of the question in its trunk
    intervention: Intervention
    keys: tuple[int, ...]
    ids: tuple[int, ...]  # the tokens computed in this row
    at: tuple[int, ...]  # their positions, which may leave some out
    blocks: range  # from 0
    queries: tuple[int, ...] | None = None  # the queries cut from the keys; None: all later ones
    answer: int = 0  # how many of its last tokens are the answer's; 0 with a boost


def row_for(
    trunk: Trunk,
    positions: TokenPositions,
    number: int,
    intervention: Intervention,
    *,
    seed: int = 0,
) -> Row:
    """Build the row of one question under one intervention, cut in all blocks.

    Layer k depends on the blocks 1..k alone, so a pass with the cut in all of them holds the
    cumulative result for every k.
    """
    answer, blocks = len(positions.ids) - positions.answer_at, range(len(trunk.pairs))
    if intervention.answer_only:
        # The prompt's first token stays in front: it is the sink the model has always had there.
        ids = (positions.ids[0], *positions.ids[positions.answer_at :])
        at = tuple(range(len(ids)))
        return Row(number, intervention, (), ids, at, range(0), answer=answer)
    keys = keys_of(positions, intervention.keys, seed=seed)
    if intervention.boost is not None:
        # Only E_A's edges change, so the trunk holds the whole prompt.
        assert positions.exact_answer, "a boost needs the exact answer tokens positions"
        at = tuple(range(positions.answer_at, len(positions.ids)))
        ids = positions.ids[positions.answer_at :]
        return Row(number, intervention, keys, ids, at, blocks, positions.exact_answer)
    start = first_changed(positions, keys, len(trunk.prefix))
    # The last token of the prompt always stays: it predicts the first word of the answer.
    unseen = frozenset(keys if intervention.hides_keys else ()) - {positions.answer_at - 1}
    at = tuple(i for i in range(start, len(positions.ids)) if i not in unseen)
    ids = tuple(positions.ids[i] for i in at)
    return Row(number, intervention, keys, ids, at, blocks, answer=answer)


def unchanged_row(
    positions: TokenPositions, number: int, intervention: Intervention = CLEAN, *, before: int = 1
) -> Row:
    """Build a row with nothing cut: the answer and `before` tokens in front of it."""
    start = positions.answer_at - before
    at = tuple(range(start, len(positions.ids)))
    answer = len(positions.ids) - positions.answer_at
    return Row(number, intervention, (), positions.ids[start:], at, range(0), answer=answer)


def first_changed(positions: TokenPositions, keys: Sequence[int], turn_at: int) -> int:
    """The first position of the question's own turn that a cut of `keys` can change.

    Keys inside the shared prefix are cut for the question's own turn, not for the prefix itself.
    Where the prompt does not change, it is the prompt's last: the trunk holds the prompt alone, the
    answer's tokens must be read up to the probe position, and the model's output begins there.
    """
    cut, end = set(keys), positions.answer_at - 1
    begin = max(min(cut, default=end), turn_at)
    return next((i for i in range(begin, end) if i not in cut and i > min(cut)), end)


# --- Batches of rows ---


def read_rows(
    lease: Lease, trunk: Trunk, rows: Sequence[Row], *, budget: Budget, depth: int | None = None
) -> Iterator[tuple[list[Row], Tensor]]:
    """Yield batches of rows with their states [row, layer, width], up to layer `depth` or all."""
    for batch, states, _ in read_rows_with_output(
        lease, trunk, rows, budget=budget, depth=depth, output=False
    ):
        yield batch, states


def read_rows_with_output(
    lease: Lease,
    trunk: Trunk,
    rows: Sequence[Row],
    *,
    budget: Budget,
    depth: int | None = None,
    output: bool = True,
) -> Iterator[tuple[list[Row], Tensor, Tensor | None]]:
    """Yield batches of rows with their states and the model's output [row, 3], None if not read."""
    # How many tokens of the budget an answer token counts for, so that logits fit LOGIT_BYTES.
    vocabulary = lease.model.lm.config.get_text_config().vocab_size
    share = budget.tokens * vocabulary * lease.model.dtype.itemsize / LOGIT_BYTES

    def kind(row: Row) -> tuple[bool, int, str]:
        """Whether a row's output is skipped, the width of its window, and where it is cut.

        A cut after the softmax needs written-out attention, which is slower.
        """
        cut = row.intervention
        window = 0 if cut.answer_only else window_of(cut.layers) or 0
        return not (output and cut.has_output), window, cut.where

    def length(row: Row) -> int:
        bare, width, _ = kind(row)
        return max(len(row.ids) * (1 + width), 0 if bare else round(share * row.answer))

    def work(batch: list[Row]) -> tuple[Tensor, Tensor | None]:
        bare, width, _ = kind(batch[0])
        if width:
            return _read_windows(lease, trunk, batch, width)[:, :depth], None
        return _read(lease, trunk, batch, depth=depth, head=not bare)

    for _, group in groupby(sorted(rows, key=kind), key=kind):
        if lease.server is not None:
            yield from _read_served(lease, trunk, list(group), output=output)
            continue
        for batch, read in in_batches(
            group, work, length=length, then=lambda row: row.number, budget=budget
        ):
            yield batch, *read


_SERVED_ROWS = 4096  # whose states are fetched together


def _read_served(
    lease: Lease, trunk: Trunk, rows: Sequence[Row], *, output: bool
) -> Iterator[tuple[list[Row], Tensor, Tensor | None]]:
    """Read rows of one kind by vLLM, whole rows of tokens; yields as `read_rows_with_output`."""
    assert lease.server is not None
    cut, layers = rows[0].intervention, lease.model.blocks
    width = None if cut.answer_only else window_of(cut.layers)
    scored = output and cut.has_output
    for start in range(0, len(rows), size := max(1, _SERVED_ROWS // (layers if width else 1))):
        batch = list(rows[start : start + size])
        requests = [_request(trunk, row, scored=scored) for row in batch]
        if width is not None:  # a request for each layer, cut in the blocks that end there
            ends = range(1, layers + 1)
            requests = [
                replace(request, blocks=(max(0, end - width), end))
                for request in requests
                for end in ends
            ]
        readings = lease.server.read(requests)
        states = readings.states(range(len(requests)), [len(r.ids) - 1 for r in requests])
        if width is not None:
            each = states.view(len(batch), layers, layers, -1)
            states = each.diagonal(dim1=1, dim2=2).permute(0, 2, 1)
        if not scored:
            yield batch, states, None
            continue
        found = [(own[0, 0], own[:, 0].mean(), own[0, 1]) for own in readings.scores]
        yield batch, states, torch.tensor(np.array(found))


def _request(trunk: Trunk, row: Row, *, scored: bool) -> ReadRequest:
    """A row as a request to vLLM: the whole prompt with the answer's tokens."""
    cut = row.intervention
    if cut.where == "post" or (cut.heads and row.blocks):
        raise UserError(
            f"The pass {cut.name} cuts after the softmax or in some heads, which vLLM does not "
            "offer. Accepted with --engine vllm: cuts before the softmax, in all heads."
        )
    ids = row.ids
    if not cut.answer_only:
        prompt = trunk.prefix.ids + trunk.turns[row.number]
        pairs = zip(row.ids, row.at, strict=True)
        ids = prompt + tuple(id for id, at in pairs if at >= len(prompt))
    return ReadRequest(
        ids=ids,
        keys=row.keys if row.blocks and cut.heads is None else (),  # (): in no head
        begin=row.at[0],
        queries=row.queries,
        added=cut.boost,
        positions=(len(ids) - 1,),
        scored=row.answer if scored else 0,
    )


def read_batch(
    lease: Lease, trunk: Trunk, batch: Sequence[Row], *, watch: WeightObserver | None = None
) -> Tensor:
    """States [row, layer, width] at the probe position of each row."""
    return _read(lease, trunk, batch, watch=watch)[0]


def _read(
    lease: Lease,
    trunk: Trunk,
    batch: Sequence[Row],
    *,
    slots: WindowSlots | None = None,
    depth: int | None = None,
    head: bool = False,
    watch: WeightObserver | None = None,
) -> tuple[Tensor, Tensor | None]:
    """States [row, layer, width], and with `head` the output [row, 3] of `answer_output`."""
    # Slots are reset whole, and the GPU kernels take whole rows: both need every token packed.
    stretches = (_stretch(trunk, row, place) for place, row in enumerate(batch))
    distinct = None if slots or lease.fused else distinct_tokens(stretches)
    tokens, layout, memory = lay_out(lease, trunk, batch, distinct=distinct)
    answers = AnswerTokens.of(batch, layout) if head else None
    at = None if answers is None else answers.contexts
    read = lease.run(
        tokens, layout, memory, head=head, logits_at=at, slots=slots, depth=depth, watch=watch
    )
    if answers is None or read.logits is None:
        return read.states, None
    return read.states, answer_output(read.logits, answers, rows=len(batch))


def _read_windows(lease: Lease, trunk: Trunk, rows: Sequence[Row], width: int) -> Tensor:
    """States [row, layer, width]: layer k under the cut in the `width` blocks that end at k.

    A window that starts at block s leaves the layers below s as they are, so it can start from the
    clean states there. One clean row and w slots go through the blocks together. Before block s the
    slot s mod w is reset to the clean row: its window begins. After block s + w - 1 it holds the
    state of that layer under that window, and is free for the next. The first window also gives the
    layers 1..w-1, whose windows are cut short at block 1. So a sweep over all k costs w + 1 rows of
    suffix tokens instead of one pass for each k.
    """
    blocks = lease.model.blocks
    clean = [replace(row, blocks=range(0)) for row in rows]
    everywhere = [replace(row, blocks=range(blocks)) for row in rows]
    slots = WindowSlots(sum(len(row.ids) for row in rows), width)
    states, _ = _read(lease, trunk, [*clean, *everywhere * width], slots=slots)
    states = states.view(1 + width, len(rows), blocks, -1)
    # From 0: the window that ends at block k began at k - width + 1, or with the first block.
    ends = [1 + max(0, k - width + 1) % width for k in range(blocks)]
    return torch.stack([states[slot, :, k] for k, slot in enumerate(ends)], dim=1)


# --- The attention edges of a batch ---


def _stretch(trunk: Trunk, row: Row, place: int) -> Stretch:
    """Describe all that a row's token states depend on, so that rows can share equal states.

    A row cut in only a part of the model shares nothing, nor does a row cut after the softmax,
    where the cut keys have taken their share of the weights.
    """
    if row.intervention.answer_only:
        return Stretch(row.ids, row.at, front="answer alone")
    turn_at = len(trunk.prefix)
    if not row.intervention.hides_keys or len(row.blocks) not in (0, len(trunk.pairs)):
        return Stretch(row.ids, row.at, front=place)
    keys = row.keys if row.blocks else ()
    return Stretch(
        row.ids,
        row.at,
        front=tuple(key for key in keys if key < turn_at),
        turn=trunk.turns[row.number][: row.at[0] - turn_at],
        turn_at=turn_at,
        cut=frozenset(keys),
    )


def lay_out(
    lease: Lease, trunk: Trunk, batch: Sequence[Row], *, distinct: np.ndarray | None = None
) -> tuple[Tensor, Layout, ForkedCache]:
    """Lay out a batch: tokens [row, query], their `Layout`, and a cache forked from the trunk."""
    device = lease.model.device
    number = to_device([row.number for row in batch], device)
    query_at = pad_left([row.at for row in batch], PAD, device)
    tokens = pad_left([row.ids for row in batch], 0, device)
    starts = to_device([row.at[0] for row in batch], device)
    alone = to_device([row.intervention.answer_only for row in batch], device)
    # The trunk's keys from a row's start on are its clean ones: the row brings its own instead.
    trunk_at = trunk.at[number]
    trunk_at = trunk_at.masked_fill((trunk_at >= starts[:, None]) | alone[:, None], PAD)
    key_at = torch.cat([trunk_at, query_at], dim=1)
    layout = Layout(
        query_at,
        key_at,
        prefix_length=len(trunk.prefix),
        sees_prefix=~alone,
        edges=edges_of(lease, batch, query_at, key_at, len(trunk.prefix)),
        sizes=[len(row.at) for row in batch],
        distinct=distinct,
    )
    segmented = lease.fused
    return tokens, layout, ForkedCache(trunk.pairs, number, trunk.prefix.pairs, segmented=segmented)


def edges_of(
    lease: Lease, batch: Sequence[Row], query_at: Tensor, key_at: Tensor, prefix: int
) -> Edges:
    """The attention edges changed in each row: from the keys to later queries outside them."""
    device, blocks = query_at.device, lease.model.blocks
    size = max(prefix, *(row.at[-1] + 1 for row in batch)) + 1  # the last column is padding's
    is_key = to_device(_table([row.keys for row in batch], size), device)
    shared = torch.arange(prefix, device=device).expand(len(batch), -1)
    keys_cut = is_key.gather(1, torch.cat([shared, key_at], dim=1) % size)
    changed = ~is_key.gather(1, query_at % size)
    if any(row.queries is not None for row in batch):
        queries = [range(size) if row.queries is None else row.queries for row in batch]
        changed &= to_device(_table(queries, size), device).gather(1, query_at % size)
    heads = _heads(lease, batch)
    post = [row.intervention.where == "post" for row in batch]
    return Edges(
        blocked=keys_cut[:, None, :] & changed[:, :, None],
        blocks=to_device(_table([row.blocks for row in batch], blocks), device),
        heads=heads,
        post=to_device(post, device) if any(post) else None,
        alike=heads is None and all(len(row.blocks) in (0, blocks) for row in batch),
        added=_added(batch, device),
    )


def _added(batch: Sequence[Row], device: torch.device) -> Tensor | None:
    """The boost of each row's edges, -inf for a cut, [row]; None where every row cuts."""
    boosts = [row.intervention.boost for row in batch]
    if all(boost is None for boost in boosts):
        return None
    return torch.tensor([-torch.inf if b is None else b for b in boosts], device=device)


def _table(members: Sequence[Collection[int]], size: int) -> np.ndarray:
    """A membership table of the numbers below `size`, bool [row, number]."""
    table = np.zeros((len(members), size), dtype=bool)
    rows = np.repeat(np.arange(len(members)), [len(numbers) for numbers in members])
    table[rows, [number for numbers in members for number in numbers]] = True
    return table


def _heads(lease: Lease, batch: Sequence[Row]) -> Tensor | None:
    """The heads that are cut, bool [row, block, head]; None where every row cuts them all.

    Rows that are cut in no block are ignored.
    """
    if all(row.intervention.heads is None or not row.blocks for row in batch):
        return None
    blocks, count = lease.model.blocks, lease.model.lm.config.get_text_config().num_attention_heads
    cuts = {}
    for heads in {row.intervention.heads for row in batch}:  # many rows, few interventions
        places = range(blocks * count)
        if heads is not None:
            places = [(block - 1) * count + head for block, head in heads]
        cuts[heads] = _table([places], blocks * count).reshape(blocks, count)
    return to_device(np.stack([cuts[row.intervention.heads] for row in batch]), lease.model.device)


# --- The model's own output under a pass: log-probability and rank of the answer's tokens ---


# The columns of an answer's output, in this order.
COLUMNS = ("log_p_first", "log_p", "rank")
LOGIT_BYTES = 1 << 30  # of one pass at most: a vocabulary has up to 256,000 entries
_LOGITS = 1 << 26  # of given answers, held at once: at most 256 MiB of float32, or one answer's
_AT_ONCE = 256  # contexts whose logits are widened to float32 together


@dataclass(frozen=True)
class AnswerTokens:
    """The answer tokens of a batch of rows, and the packed tokens that each is predicted from."""

    row: Tensor  # [token]
    target: Tensor  # [token]: its id
    contexts: Tensor  # [context]: packed tokens, each once
    context: Tensor  # [token]: which of the contexts is the one before it
    first: Tensor  # [row]: the row's first answer token among all of them

    @classmethod
    def of(cls, batch: Sequence[Row], layout: Layout) -> AnswerTokens:
        device, counts = layout.query_at.device, [row.answer for row in batch]
        assert min(counts) > 0, "the token before the answer must be in the row"
        row = to_device(np.repeat(np.arange(len(batch)), counts), device)
        back = to_device(np.concatenate([np.arange(count, 0, -1) for count in counts]), device)
        target = to_device(
            [id for row in batch for id in row.ids[len(row.ids) - row.answer :]], device
        )
        first = to_device(np.cumsum([0, *counts[:-1]]), device)
        contexts = layout.token_back(row, back)
        context = torch.arange(len(contexts), device=device)
        if layout.distinct is not None:  # rows share tokens, and their logits
            contexts, context = contexts.unique(return_inverse=True)
        return cls(row, target, contexts, context, first)


def answer_output(logits: Tensor, answers: AnswerTokens, *, rows: int) -> Tensor:
    """Log-probabilities and rank of each row's answer, [row, 3], from logits [context, vocabulary].

    Columns: the log-probability of the answer's first token, the mean over all of its tokens up
    to the probe position, and the rank of the first token, 1 for the likeliest.
    """
    parts = [part.float().logsumexp(dim=-1) for part in logits.split(_AT_ONCE)]
    own = logits[answers.context, answers.target].float()
    log_p = own - torch.cat(parts)[answers.context]
    count = torch.zeros(rows, device=logits.device).index_add_(0, answers.row, torch.ones_like(own))
    mean = torch.zeros(rows, device=logits.device).index_add_(0, answers.row, log_p) / count
    context, chosen = answers.context[answers.first], own[answers.first]
    ranks = [
        (logits[some].float() > least[:, None]).sum(dim=-1) + 1
        for some, least in zip(context.split(_AT_ONCE), chosen.split(_AT_ONCE), strict=True)
    ]
    return torch.stack([log_p[answers.first], mean, torch.cat(ranks).float()], dim=1)


# --- Given answers, read in one pass ---


@dataclass(frozen=True)
class GivenBatch:
    """A batch of given answers as the model reads them, with chosen states and their trunk."""

    answers: tuple[DecodedAnswer, ...]
    states: tuple[Tensor, ...]  # of each answer [place, layer, width], on the model's device
    trunk: Trunk
    extra: Tensor | None  # [row, layer, width] at the extra position of the prompts, if given


def read_given(
    lease: Lease,
    prefix: Prefix,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    places: Sequence[Sequence[int]],
    *,
    head: bool = True,
    extra_position: Sequence[int] | None = None,
) -> GivenBatch:
    """Read given answers behind their prompts: each token is fed once, and nothing is decoded.

    States are kept at `places`, tokens counted from the first of their answer. Log-probabilities
    and entropies are NaN without `head`.
    """
    if lease.server is not None:
        given = [WrittenAnswer(tuple(ids), True) for ids in answers]
        batch = read_served(lease, prefix, prompts, given, extra_position=extra_position)
        places_of = (torch.tensor([*each], dtype=torch.int64) for each in places)
        chosen = [batch.states[torch.full_like(at, n), at] for n, at in enumerate(places_of)]
        return GivenBatch(batch.answers, tuple(chosen), batch.trunk, batch.extra)
    grown = grow_trunk(lease, prefix, prompts, head=head, extra_position=extra_position)
    # A prompt's last token gives the logits of the answer's first token.
    first = grown.last.logits
    limit = None if first is None else _LOGITS // first.shape[1]
    states = dict.fromkeys(range(len(answers)), grown.last.states[:0])
    scores = {n: np.full((len(ids), 3), np.nan) for n, ids in enumerate(answers)}
    for numbers in _within(limit, [len(ids) for ids in answers]):
        rows = []
        for n in numbers:
            at = tuple(range(len(prompts[n]), len(prompts[n]) + len(answers[n])))
            rows.append(Row(n, CLEAN, (), tuple(answers[n]), at, range(0)))
        tokens, layout, memory = lay_out(lease, grown.trunk, rows)
        back = [
            (row, len(answers[n]) - 1 - place)
            for row, n in enumerate(numbers)
            for place in places[n]
        ]
        at = torch.tensor(back, device=tokens.device, dtype=torch.int64).reshape(-1, 2)
        # A token's logits predict the token after it, so the last one of a row needs none.
        needed = torch.ones(len(layout.place), dtype=torch.bool, device=tokens.device)
        needed[layout.last()] = False
        before = needed.nonzero()[:, 0]
        read = lease.run(
            tokens, layout, memory, head=head and len(before) > 0, logits_at=before,
            states_at=layout.token_back(at[:, 0], at[:, 1]),
        )  # fmt: skip
        assert read.extra is not None
        counts = [len(places[n]) for n in numbers]
        states |= dict(zip(numbers, read.extra.split(counts), strict=True))
        if first is None:
            continue
        firsts = _scored(first[numbers], [answers[n][0] for n in numbers])
        later = np.empty((0, 3))
        if read.logits is not None:
            later = _scored(read.logits, [id for n in numbers for id in answers[n][1:]])
        ends = np.cumsum([len(answers[n]) - 1 for n in numbers])[:-1]
        for n, one, others in zip(numbers, firsts, np.split(later, ends), strict=True):
            scores[n] = np.vstack([one, others])
    found = tuple(_decoded(ids, scores[n]) for n, ids in enumerate(answers))
    return GivenBatch(found, tuple(states.values()), grown.trunk, grown.last.extra)


def _decoded(ids: Sequence[int], scores: np.ndarray) -> DecodedAnswer:
    """A given answer by the scores [token, 3] of its tokens, as if it had been decoded."""
    log_probs, entropies, greedy = scores.T.tolist()
    return DecodedAnswer(
        token_ids=tuple(ids),
        log_probs=tuple(log_probs),
        first_entropy=entropies[0] if entropies else np.nan,
        finished=True,
        entropies=tuple(entropies),
        off_greedy=greedy.count(0.0),
    )


def _scored(logits: Tensor, ids: Sequence[int]) -> np.ndarray:
    """Log-probability of each token, entropy, and whether it is the likeliest, [token, 3]."""
    chosen, log_p, entropy = likeliest(logits)
    target = to_device(ids, logits.device)
    own, top = (logits.gather(1, each[:, None])[:, 0].float() for each in (target, chosen))
    return torch.stack([log_p + own - top, entropy, chosen == target], dim=1).cpu().numpy()


def _within(limit: int | None, tokens: Sequence[int]) -> Iterator[list[int]]:
    """Group answers into batches of at most `limit` tokens, or one answer; skip empty answers."""
    batch: list[int] = []
    for number in (n for n, count in enumerate(tokens) if count):
        if batch and limit and sum(tokens[n] for n in batch) + tokens[number] > limit:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


# --- States and outputs by pass, copied from the device ---


class Block(NamedTuple):
    """States of a batch of questions under one pass, which a GPU may still be computing."""

    ids: list[str]
    states: HostCopy  # [question, layer, width]
    output: Tensor | None = None  # [question, 3], the model's own; None where the pass has none


Blocks = dict[str, list[Block]]  # of each pass, in the order they came


def by_pass(
    passes: Sequence[Intervention],
    ids: Sequence[str],
    batch: Sequence[Row],
    states: Tensor,
    output: Tensor | None,
) -> dict[str, Block]:
    """Split a batch's states [row, layer, width] and output [row, 3] by pass.

    `ids` are the ids of the trunk's questions. Blocks stay whole: single rows would have to be
    joined again to be written.
    """
    blocks = {}
    for cut in passes:
        own = [n for n, row in enumerate(batch) if row.intervention is cut]
        if own:
            named = [ids[batch[n].number] for n in own]
            at = to_device(own, states.device)
            own_output = None if output is None else output[at]
            blocks[cut.name] = Block(named, HostCopy(states[at]), own_output)
    return blocks


# --- Attention mass: how much the probe position attends to each position ---


def with_mass(
    lease: Lease, trunk: Trunk, marks: Sequence[TokenPositions | None], *, budget: Budget
) -> list[TokenPositions | None]:
    """Add to each mark the clean attention mass at its probe position, mean over heads and blocks.

    The answer's tokens are read once more on the clean trunk: which of them is the probe position
    is known only when the answer is whole.
    """
    if lease.server is not None:
        own = [mark for mark in marks if mark is not None]
        masses = iter(lease.server.read([ReadRequest(ids=m.ids, mass=True) for m in own]).mass)
        return [m and replace(m, mass=tuple(next(masses).tolist())) for m in marks]
    rows = [unchanged_row(mark, n, before=0) for n, mark in enumerate(marks) if mark is not None]
    there = trunk.at.cpu().numpy() >= 0  # once: a GPU waits for every copy
    front, columns = len(trunk.prefix), trunk.at.shape[1]

    def work(batch: list[Row]) -> np.ndarray:
        """The weights of each row's last query [row, key]."""
        by_block: list[Tensor] = []  # [row, head, query, key] -> [row, key]
        read_batch(
            lease, trunk, batch, watch=lambda w: by_block.append(w[:, :, -1].float().mean(dim=1))
        )
        total = sum((mass.to(by_block[0].device) for mass in by_block[1:]), start=by_block[0])
        return (total / lease.model.blocks).cpu().numpy()

    found = list(marks)
    for batch, masses in in_batches(
        rows, work, length=lambda row: len(row.ids), then=lambda row: row.number, budget=budget
    ):
        for row, mass in zip(batch, masses, strict=True):
            own = mass[front : front + columns][there[row.number]]
            by_position = [*mass[:front], *own, *mass[len(mass) - len(row.ids) :]]
            mark = marks[row.number]
            assert mark is not None
            found[row.number] = replace(mark, mass=tuple(map(float, by_position)))
    return found
