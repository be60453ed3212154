"""The model, lent for one `with` block: our attention in, states out, and everything put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anchorscope.engine.attention import NAME, View
from anchorscope.engine.layout import Layout
from anchorscope.engine.memory import Memory
from anchorscope.models import Model

# Given a block's number (from 0) and its packed input [1, token, width], the input it gets.
SetBack = Callable[[int, Tensor], Tensor]


class Read(NamedTuple):
    """What a pass gives: states after every block at each row's last token, and its logits."""

    states: Tensor  # [row, layer, width]
    logits: Tensor | None  # [row, vocabulary]; None where they were not asked for


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

    @torch.no_grad()
    def run(
        self,
        ids: Tensor,
        layout: Layout,
        memory: Memory,
        *,
        head: bool = False,
        set_back: SetBack | None = None,
    ) -> Read:
        """The states of every layer at each row's last token, and its logits if `head` is wanted.

        `ids` are [row, query], padded as the layout says. `set_back` may change what a block
        is given.
        """
        last = layout.last()
        self._pass = _Pass(layout, memory, last, set_back)
        given = {
            "input_ids": layout.pack(ids),
            "position_ids": layout.pack(layout.query_at),
            "use_cache": False,
        }
        try:
            if head:
                logits = self.model.lm(**given, logits_to_keep=last).logits[0]
            else:
                # The head over all positions would cost more than a tenth of the pass.
                logits = None
                self.model.parts.decoder(**given)
            return Read(torch.stack(self._pass.states, dim=1), logits)
        finally:
            self._pass = None

    def _show_view(self, attention: nn.Module, block: int) -> Any:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            now = self._pass
            assert now is not None
            return args, {**kwargs, "view": View(now.layout, block, now.memory, self.weights)}

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
        now.states.append(hidden[0, now.last])


@dataclass
class _Pass:
    """The pass under way, as the hooks see it."""

    layout: Layout
    memory: Memory
    last: Tensor
    set_back: SetBack | None
    states: list[Tensor] = field(default_factory=list)


def _contiguous(module: nn.Module, args: tuple) -> tuple:
    """A contiguous input: bfloat16 on a CPU is hundreds of times slower on a slice."""
    return (args[0].contiguous(), *args[1:])
