"""The model, lent for one `with` block: our attention in, states out, and everything put back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anchorscope.engine.attention import NAME, View, Watch
from anchorscope.engine.layout import Layout
from anchorscope.engine.memory import Memory
from anchorscope.models import Model

# Given a block's number (from 0) and its packed input [1, token, width], the input it gets.
SetBack = Callable[[int, Tensor], Tensor]


class Read(NamedTuple):
    """What a pass gives: states after every block at each row's last token, and its logits."""

    states: Tensor  # [row, layer, width]
    logits: Tensor | None  # [row or token asked for, vocabulary]; None where none was asked for
    also: Tensor | None = None  # [row, layer, width] at one more position, where one was asked for


class Lease:
    """A model whose attention is ours until the `with` block ends.

    Nothing stays on the model: its attention implementation and training flag are restored and
    every hook is removed, whatever happens inside.
    """

    def __init__(self, model: Model, *, weights: bool = False) -> None:
        self.model, self.weights = model, weights
        self._pass: _Pass | None = None
        self._hooks: list[Any] = []

    def __enter__(self) -> Lease:
        lm, parts = self.model.lm, self.model.parts
        self._before = (lm.config._attn_implementation or "eager", lm.training)
        try:
            lm.eval()
            lm.set_attn_implementation(NAME)
            for block, attention in enumerate(parts.attentions):
                self._hooks.append(self._show_view(attention, block))
            for number, block in enumerate(parts.blocks):
                self._hooks.append(self._set_back(block, number))
                self._hooks.append(block.register_forward_hook(self._keep_state))
            self._hooks.append(parts.head.register_forward_pre_hook(_contiguous))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        self.model.lm.set_attn_implementation(self._before[0])
        self.model.lm.train(self._before[1])

    def run(
        self,
        ids: Tensor,
        layout: Layout,
        memory: Memory,
        *,
        head: bool = False,
        set_back: SetBack | None = None,
        watch: Watch | None = None,
        logits_at: Tensor | None = None,
        depth: int | None = None,
        also_at: Tensor | None = None,
    ) -> Read:
        """The states of every layer at each row's last token, and its logits if `head` is wanted.

        `ids` are [row, query], padded as the layout says. `set_back` may change what a block
        is given. `watch` is shown every block's attention weights; with it alone gradients can be
        taken. `logits_at` are the packed tokens whose logits are wanted instead of the last ones.
        After `depth` blocks the pass ends: what comes later cannot change their layers. `also_at`
        is one more position of each row [row] whose states are kept.
        """
        last = layout.last()
        assert depth is None or not head, "the head reads the last block"
        kept = last if also_at is None else torch.cat([last, layout.token_at(also_at)])
        self._pass = _Pass(layout, memory, kept, set_back, watch, depth)
        given = {
            "input_ids": layout.pack(ids),
            "position_ids": layout.pack(layout.query_at),
            "use_cache": False,
        }
        try:
            with torch.set_grad_enabled(watch is not None):
                logits = self._forward(given, last if logits_at is None else logits_at, head)
                states = torch.stack(self._pass.states, dim=1)
                return Read(
                    states[: len(last)], logits, None if also_at is None else states[len(last) :]
                )
        finally:
            self._pass = None

    def _forward(self, given: dict[str, Any], keep: Tensor, head: bool) -> Tensor | None:
        if head:
            return self.model.lm(**given, logits_to_keep=keep).logits[0]
        # The head over all positions would cost more than a tenth of the pass.
        with suppress(_Enough):
            self.model.parts.decoder(**given)
        return None

    def _show_view(self, attention: nn.Module, block: int) -> Any:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            now = self._pass
            assert now is not None
            view = View(now.layout, block, now.memory, self.weights, now.watch)
            return args, {**kwargs, "view": view}

        return attention.register_forward_pre_hook(hook, with_kwargs=True)

    def _set_back(self, module: nn.Module, block: int) -> Any:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            change = self._pass and self._pass.set_back
            if not change:
                return None
            if args:
                return (change(block, args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": change(block, kwargs["hidden_states"])}

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    def _keep_state(self, module: nn.Module, args: tuple, output: Any) -> None:
        now = self._pass
        assert now is not None
        hidden = output[0] if isinstance(output, tuple) else output
        now.states.append(hidden[0, now.kept])
        if len(now.states) == now.depth:
            raise _Enough


class _Enough(Exception):
    """Ends a pass whose last wanted block is done."""


@dataclass
class _Pass:
    """The pass under way, as the hooks see it."""

    layout: Layout
    memory: Memory
    kept: Tensor  # the packed tokens whose states are kept
    set_back: SetBack | None
    watch: Watch | None
    depth: int | None
    states: list[Tensor] = field(default_factory=list)


def _contiguous(module: nn.Module, args: tuple) -> tuple:
    """A contiguous input: bfloat16 on a CPU is hundreds of times slower on a slice."""
    return (args[0].contiguous(), *args[1:])
