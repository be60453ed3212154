"""The tokens of an answer heard while `Detector.score` writes it.

Streaming does not generate in a way of its own: the same call writes and scores the answer, and
hooks hear the passes. So a streamed answer is the one that an unstreamed request gets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorscope.detect.deployed.located import on_host
from anchorscope.models import Model

# Told of each answer token when it has been fed: its id, and its states [layer, width].
OnToken = Callable[[int, np.ndarray], None]


class _Ear:
    """Follows the passes of one answer: prompt, then one token each, then whatever a method reads.

    The head chooses. Once it has chosen a token that ends the answer, or the limit is reached, what
    passes is no longer the answer.
    """

    def __init__(self, heard: OnToken, *, layers: int, stop: Collection[int], limit: int) -> None:
        self._heard, self._layers, self._stop, self._limit = heard, layers, stop, limit
        self._open, self._ended, self._count = False, False, 0
        self._token: int | None = None
        self._states: list[Tensor] = []

    def chosen(self, module: Any, args: tuple, logits: Tensor) -> None:
        """The head's choice after the prompt or after a token."""
        if not self._ended:
            token = int(logits.reshape(-1, logits.shape[-1])[-1].argmax())
            self._open, self._ended = True, token in self._stop

    def fed(self, module: Any, args: tuple) -> None:
        """The ids that go in: one alone is a token of the answer."""
        self._token, self._states = None, []
        if self._open and not self._ended and args[0].numel() == 1:
            self._token = int(args[0].reshape(-1)[0])

    def passed(self, module: Any, args: tuple, output: Any) -> None:
        """The state after a block; the last one that is wanted completes the token."""
        if self._token is None:
            return
        hidden = output[0] if isinstance(output, tuple | list) else output
        self._states.append(hidden.reshape(-1, hidden.shape[-1])[-1].detach().to("cpu"))
        if len(self._states) < self._layers:
            return
        token, self._token = self._token, None
        self._count += 1
        states = on_host(torch.stack(self._states)[None])[0]
        self._ended = self._count >= self._limit
        self._heard(token, states)


@contextmanager
def listening(
    model: Model, heard: OnToken, *, layers: Sequence[int], stop: Collection[int], limit: int
) -> Iterator[None]:
    """A block in which `heard` is told of each answer token with its states at these layers."""
    ear = _Ear(heard, layers=len(layers), stop=stop, limit=limit)
    embedding: Any = model.lm.get_input_embeddings()
    with ExitStack() as back:
        back.callback(embedding.register_forward_pre_hook(ear.fed).remove)
        for layer in layers:
            block = model.parts.blocks[layer - 1]
            back.callback(block.register_forward_hook(ear.passed).remove)
        back.callback(model.parts.head.register_forward_hook(ear.chosen).remove)
        yield
