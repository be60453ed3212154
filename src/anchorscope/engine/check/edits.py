"""The interventions in the words of stock attention, and all of them in a pass or two."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anchorscope.engine.check.stock import Edit, Edits, stock_states
from anchorscope.engine.interventions import Intervention, TokenPositions, window_of
from anchorscope.models import Model


class Theirs(NamedTuple):
    """What stock attention gives under an intervention."""

    layers: slice  # of all layers, those that it was read at
    states: Tensor  # [sample, layer, width], at each sample's last token


def stock_by_kind(
    model: Model, samples: tuple[TokenPositions, ...], kinds: Sequence[Intervention]
) -> dict[str, list[Theirs]]:
    """The states of samples by stock attention, by the name of the intervention.

    All that is read at one depth is rows of one pass: a pass each takes half as long again.
    """
    at_depth: dict[int, list[Intervention]] = defaultdict(list)
    for kind in kinds:
        for layer in _read_at(kind, model.blocks):
            at_depth[layer].append(kind)
    theirs: dict[str, list[Theirs]] = defaultdict(list)
    for depth, some in at_depth.items():
        rows = [sample.ids for _ in some for sample in samples]
        states = stock_states(model, rows, _of_rows(model, samples, some, depth), depth=depth)
        for kind, own in zip(some, states.split(len(samples)), strict=True):
            every = window_of(kind.layers) is None
            layers = slice(0 if every else depth - 1, depth)
            theirs[kind.name].append(Theirs(layers, own[:, layers]))
    return theirs


def _read_at(kind: Intervention, blocks: int) -> list[int]:
    """A window needs a pass for each layer it is read at; the others hold every layer at once."""
    return [blocks] if window_of(kind.layers) is None else sorted({min(2, blocks), blocks})


def _of_rows(
    model: Model, samples: tuple[TokenPositions, ...], kinds: Sequence[Intervention], depth: int
) -> Edits:
    """The edits of rows: all samples under the first intervention, then under the next."""
    heads = model.lm.config.get_text_config().num_attention_heads
    length = max(len(s.ids) for s in samples)
    shape = (len(samples), heads, length, length)
    each = [edits_for(samples, kind, layer=depth, heads=heads) for kind in kinds]

    def edits(block: int) -> Edit:
        here = [of(block) or Edit() for of in each]
        return Edit(
            added=_joined([of.added for of in here], shape, nothing=0.0),
            factor=_joined([of.factor for of in here], shape, nothing=1.0),
        )

    return edits


def _joined(parts: list[Tensor | None], shape: tuple[int, ...], *, nothing: float) -> Tensor | None:
    """The parts, each of this shape, one below the other; None: all of them change nothing."""
    if all(part is None for part in parts):
        return None
    still = torch.tensor(nothing)
    return torch.cat([(still if part is None else part).expand(shape) for part in parts])


def edits_for(
    samples: tuple[TokenPositions, ...], kind: Intervention, *, layer: int, heads: int
) -> Edits:
    """One intervention for the states of one layer."""
    length = max(len(s.ids) for s in samples)
    gone = torch.stack([_edges(s, kind, length) for s in samples])[:, None]
    width = window_of(kind.layers) or layer

    def edits(block: int) -> Edit | None:
        if not layer - width < block <= layer:
            return None
        edges = gone
        if kind.heads is not None:
            cut = {head for at, head in kind.heads if at == block}
            edges = gone & torch.tensor([h in cut for h in range(heads)])[None, :, None, None]
        if kind.where == "post":
            return Edit(factor=(~edges).float())
        change = -math.inf if kind.boost is None else kind.boost
        return Edit(added=torch.where(edges, change, 0.0))

    return edits


def _edges(sample: TokenPositions, kind: Intervention, length: int) -> Tensor:
    """Which edges [query, key] change."""
    at = torch.arange(length)
    is_key = torch.isin(at, torch.tensor(sample.exact_question))
    asks = ~is_key
    if kind.boost is not None:
        asks = torch.isin(at, torch.tensor(sample.exact_answer))
    return (at[:, None] > at) & is_key & asks[:, None]
