"""Given answers read token by token in one pass: the log-probability of each, and its states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from anchorscope.detect.deployed.located import LocatedAnswer
from anchorscope.engine.lease import Lease
from anchorscope.engine.memory import Forked
from anchorscope.engine.passes import CLEAN
from anchorscope.engine.rows import Row, lay_out
from anchorscope.engine.trunk import Grown
from anchorscope.records import Answer

# Logits held at once, as many as 256 MiB of float32 hold; one answer's at least.
LOGITS = 1 << 26


def read_tokens(
    lease: Lease,
    grown: Grown,
    prompts: Sequence[tuple[int, ...]],
    answers: Sequence[LocatedAnswer],
) -> tuple[list[LocatedAnswer], Tensor]:
    """The answers with the log-probability of each token and the entropy of the first, and their
    states [answer, layer, width] at the probe position; those without E_A hold anything.

    Each token is fed once. The trunk, grown with its head, gives what stands before the first.
    """
    assert grown.last.logits is not None, "the trunk was grown without its head"
    first = torch.log_softmax(grown.last.logits.float(), dim=-1)
    done: dict[int, LocatedAnswer] = {}
    states = grown.last.states.clone()  # an answer without tokens has nothing of its own
    words = first.shape[1]
    for numbers in _within(LOGITS // words, [len(one.answer.token_ids) for one in answers]):
        part = [answers[n] for n in numbers]
        rows = [_row(n, prompts[n], one) for n, one in zip(numbers, part, strict=True)]
        later, states[numbers] = _read(lease, grown, rows, part)
        for n, one, rest in zip(numbers, part, later, strict=True):
            done[n] = replace(one, answer=_with_log_probs(one.answer, first[n], rest))
    return [done.get(n, one) for n, one in enumerate(answers)], states


def _within(limit: int, tokens: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of the answers that go together: `limit` tokens at most, or one answer alone."""
    batch: list[int] = []
    for number in (n for n, count in enumerate(tokens) if count):
        if batch and sum(tokens[n] for n in batch) + tokens[number] > limit:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _row(number: int, prompt: tuple[int, ...], one: LocatedAnswer) -> Row:
    """All tokens of an answer after its prompt, nothing changed."""
    ids = one.answer.token_ids
    at = tuple(range(len(prompt), len(prompt) + len(ids)))
    return Row(number, CLEAN, (), ids, at, range(0))


def _read(
    lease: Lease, grown: Grown, rows: Sequence[Row], answers: Sequence[LocatedAnswer]
) -> tuple[list[list[float]], Tensor]:
    """The log-probabilities of all tokens but the first, by answer, and the states at E_A."""
    trunk = grown.trunk
    tokens, layout, number = lay_out(lease, trunk, rows)
    memory = Forked(trunk.pairs, number, trunk.prefix.pairs, apart=lease.apart)
    probe = [
        row.at[one.exact_answer[-1] if one.exact_answer else -1]
        for row, one in zip(rows, answers, strict=True)
    ]
    # A token's logits are those of the token after it: the last one of a row is asked for nothing.
    asked = torch.ones(len(layout.place), dtype=torch.bool, device=tokens.device)
    asked[layout.last()] = False
    before = asked.nonzero()[:, 0]
    read = lease.run(
        tokens, layout, memory, head=len(before) > 0, logits_at=before,
        also_at=torch.tensor(probe, device=tokens.device),
    )  # fmt: skip
    assert read.also is not None
    later = [row.ids[1:] for row in rows]
    if read.logits is None:
        return [[] for _ in later], read.also
    logits = read.logits.float()
    chosen = torch.tensor([i for ids in later for i in ids], device=logits.device)
    own = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(dim=1)
    return [part.tolist() for part in own.split([len(ids) for ids in later])], read.also


def _with_log_probs(answer: Answer, first: Tensor, later: Sequence[float]) -> Answer:
    """The answer with what each of its tokens got; `first` are the log-probabilities [word] of
    all words in the first place.
    """
    entropy = -(first.exp() * first).nan_to_num(0.0).sum()
    own = (float(first[answer.token_ids[0]]), *later)
    return replace(answer, log_probs=own, first_entropy=float(entropy))
