"""The model, lent for one `with` block: our attention in, states out, and everything put back."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anchorscope.engine.attention import CURRENT, SetBack, View, Watch, attention_named
from anchorscope.engine.fused import can_fuse, put_into
from anchorscope.engine.layout import Layout
from anchorscope.engine.limits.borrow import borrow
from anchorscope.engine.limits.bounds import noted_of
from anchorscope.engine.limits.packs import Alone, Packs
from anchorscope.engine.masks import NAME, NotUnderstood, first_position
from anchorscope.engine.memory import Memory
from anchorscope.engine.on_cpu import cpu_fast_paths
from anchorscope.engine.own_attention import replace_own
from anchorscope.models import Model
from anchorscope.models.parts import rotary_switch, row_too_long


class Read(NamedTuple):
    """What a pass gives: states after every block at each row's last token, and its logits."""

    states: Tensor  # [row, layer, width]
    logits: Tensor | None  # [row or token asked for, vocabulary]; None where none was asked for
    also: Tensor | None = None  # [row, layer, width] at one more position, where one was asked for


class Lease:
    """A model whose attention is ours until the `with` block ends.

    Nothing stays on the model: its attention implementations and training flags are restored and
    every hook is removed, whatever happens inside. A model is lent once at a time: another thread
    waits for it.
    """

    def __init__(self, model: Model, *, weights: bool = False) -> None:
        self.model, self.weights = model, weights
        self.look: Watch | None = None  # shown every block's weights, without gradients
        self.beside: Watch | None = None  # the same, where no kernel of a GPU's makes the values
        self._pass: _Pass | None = None
        self._back = ExitStack()
        self._packs = Packs(self)
        self._tuples = False  # whether a block hands on a tuple, as seen in the last pass
        forward = inspect.signature(model.lm.forward).parameters
        self._picks = "logits_to_keep" in forward
        self._first = first_position(model.parts.decoder)
        self._switch = rotary_switch(model.lm)
        # Whether kernels of ours run, one of which reads keys where they lie.
        self.apart = noted_of(model.lm).fused and can_fuse(model)

    def __enter__(self) -> Lease:
        lm, parts = self.model.lm, self.model.parts
        with ExitStack() as back:
            back.callback(borrow(lm))
            back.enter_context(attention_named(lm, NAME))
            for number, block in enumerate(parts.blocks):
                back.callback(replace_own(block))
                back.callback(self._begin_block(block, number).remove)
                back.callback(block.register_forward_hook(self._keep_state).remove)
            if self.apart:
                back.callback(put_into(lm))
            elif self.model.device.type == "cpu":
                back.enter_context(cpu_fast_paths(self.model))
            back.callback(parts.head.register_forward_pre_hook(_contiguous).remove)
            back.callback(parts.decoder.register_forward_hook(self._come_home).remove)
            self._back = back.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._back.close()

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
        start: int = 0,
        alone: Alone | None = None,
    ) -> Read:
        """The states of every layer at each row's last token, and its logits if `head` is wanted.

        `ids` are [row, query], padded as the layout says. `set_back` may change what a block
        is given. `watch` is shown every block's attention weights; with it alone gradients can be
        taken. `logits_at` are the packed tokens whose logits are wanted instead of the last ones.
        After `depth` blocks the pass ends: what comes later cannot change their layers. `also_at`
        is one more position of each row [row] whose states are kept. The first `start` blocks are
        passed by: `set_back` must give the next one its input, and their layers mean nothing.
        `alone` reads one of several rows by itself, which a longer pack than any before is held
        against.

        Example:
            at = torch.arange(ids.shape[1])[None]  # one row, all positions from 0
            with Lease(model) as lease:
                memory = Growing(model.blocks, ids.shape[1])
                read = lease.run(ids, Layout(at, at, prefix_length=0), memory, head=True)

        """
        self._check_positions(layout)
        longest = self._packs.longer(layout)
        if longest and alone is None:
            self._packs.try_made_up(longest)
        last = layout.last()
        assert depth is None or not head, "the head reads the last block"
        kept = last if also_at is None else torch.cat([last, layout.token_at(also_at)])
        view = View(layout, memory, self.weights, watch or self.look, self.beside, set_back)
        now = self._pass = _Pass(view, kept, depth)
        tokens = layout.pack(ids)
        given = {
            "input_ids": tokens,
            # All ones: else transformers takes the rows of a pack for separate sequences.
            "attention_mask": torch.ones_like(tokens),
            "position_ids": layout.pack(layout.query_at) + self._first,
            "use_cache": False,
        }
        token = CURRENT.set(view)
        try:
            with self._gradients(wanted=watch is not None), self._passed_by(start):
                logits = self._forward(given, last if logits_at is None else logits_at, head)
            self._check_called(now, start)
            with torch.set_grad_enabled(watch is not None):
                states = torch.stack(now.states, dim=1)
            more = None if also_at is None else states[len(last) :]
        finally:
            CURRENT.reset(token)
            self._pass = None
        if longest and alone is not None:
            self._packs.compare(last, longest, states, alone)
        return Read(states[: len(last)], logits, more)

    def _check_positions(self, layout: Layout) -> None:
        """An error where a row would change the rotary angles of all others in its pass."""
        # The columns bound the positions, and counting them makes no GPU wait.
        if self._switch is None or layout.keys <= self._switch:
            return
        tokens = int(layout.query_at.max()) + 1
        if tokens > self._switch:
            raise row_too_long(self.model.name, self._switch, tokens)

    def _gradients(self, *, wanted: bool) -> AbstractContextManager[object]:
        """Passes with gradients or without them.

        On a CPU, where many short steps wait for torch itself, also without what torch notes of
        every tensor in case somebody asks for gradients later.
        """
        if wanted or self.model.device.type != "cpu":
            return torch.set_grad_enabled(wanted)
        return torch.inference_mode()

    def _forward(self, given: dict[str, Any], keep: Tensor, head: bool) -> Tensor | None:
        if head and self._picks:
            return self.model.lm(**given, logits_to_keep=keep).logits[0].to(keep.device)
        if head:
            return self.model.lm(**given).logits[0].to(keep.device)[keep]
        # The head over all positions would cost more than a tenth of the pass.
        with suppress(_Enough):
            self.model.parts.decoder(**given)
        return None

    def _check_called(self, now: _Pass, start: int) -> None:
        """Every block must have attended through us, once: else something flows around the cut."""
        blocks = list(range(start, self.model.blocks if now.depth is None else now.depth))
        if now.view.called == blocks and len(now.states) == start + len(blocks):
            return
        without = [n + 1 for n in blocks if n not in now.view.called]
        if len(without) == len(blocks):
            raise NotUnderstood(
                "information flows around the attention layers: no block attends in a way that "
                "can be cut"
            )
        if without:
            named = ", ".join(map(str, without[:4])) + (", ..." if len(without) > 4 else "")
            raise NotUnderstood(
                f"information flows around the attention layers: blocks {named} have no attention "
                "that can be cut"
            )
        raise NotUnderstood("its blocks do not run once each, one after the other")

    def _begin_block(self, module: nn.Module, block: int) -> Any:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            assert self._pass is not None
            view = self._pass.view
            view.block, change = block, view.set_back
            if not change:
                return None
            if args:
                return (change(block, args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": change(block, kwargs["hidden_states"])}

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    @contextmanager
    def _passed_by(self, start: int) -> Iterator[None]:
        """The first blocks hand on what they are given."""

        def hand_on(*args: Any, **kwargs: Any) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            return (hidden,) if self._tuples else hidden

        blocks = self.model.parts.blocks[:start]
        before = [block.__dict__.get("forward") for block in blocks]  # accelerate puts one there
        try:
            for block in blocks:
                block.forward = hand_on
            yield
        finally:
            for block, forward in zip(blocks, before, strict=True):
                del block.forward
                if forward is not None:
                    block.forward = forward

    def _come_home(self, module: nn.Module, args: tuple, output: Any) -> None:
        """The last states on the first device, where the tokens whose logits are kept are named."""
        hidden, home = getattr(output, "last_hidden_state", None), self.model.device
        if hidden is not None and hidden.device != home:
            output.last_hidden_state = hidden.to(home)

    def _keep_state(self, module: nn.Module, args: tuple, output: Any) -> None:
        now = self._pass
        assert now is not None
        hidden = output[0] if isinstance(output, tuple | list) else output
        if hidden.dim() != 3:
            raise NotUnderstood("a block hands on more than one vector for each token")
        # States come to the first device, wherever their block lies.
        self._tuples = isinstance(output, tuple | list)
        kept = hidden[0].index_select(0, now.kept.to(hidden.device))
        now.states.append(kept.to(now.kept.device))
        if len(now.states) == now.depth:
            raise _Enough


class _Enough(Exception):
    """Ends a pass whose last wanted block is done."""


@dataclass
class _Pass:
    """The pass under way, as the hooks see it."""

    view: View
    kept: Tensor  # the packed tokens whose states are kept
    depth: int | None
    states: list[Tensor] = field(default_factory=list)


def _contiguous(module: nn.Module, args: tuple) -> tuple:
    """A contiguous input: bfloat16 on a CPU is hundreds of times slower on a slice."""
    return (args[0].contiguous(), *args[1:])
