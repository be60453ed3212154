"""Run passes through a model: our attention in, states out, the model restored afterwards."""

from __future__ import annotations

import inspect
import threading
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from anchorscope.engine.attention import (
    CURRENT,
    View,
    WeightObserver,
    WindowSlots,
    attention_named,
    replace_own_attention,
)
from anchorscope.engine.fused import can_fuse, install_kernels
from anchorscope.engine.kv_cache import KVCache
from anchorscope.engine.layout import NAME, Layout, UnsupportedModel, first_position
from anchorscope.engine.limits import facts_of, prove_length
from anchorscope.engine.on_cpu import cpu_fast_paths
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.models.parts import rotary_switch, row_too_long

_LOCKS: WeakKeyDictionary[nn.Module, threading.Lock] = WeakKeyDictionary()
_HOLDERS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


def _lock(lm: nn.Module) -> Any:
    """Wait until no other thread holds the model; gives what releases it."""
    lock = _LOCKS.setdefault(lm, threading.Lock())
    if lock.locked() and _HOLDERS.get(lm) == threading.get_ident():
        raise UserError(
            "This model is in use by another `with Lease(...)` of the same thread. "
            "End that one first: two at once would undo each other."
        )
    lock.acquire()
    _HOLDERS[lm] = threading.get_ident()
    return lock.release


class Read(NamedTuple):
    """What a pass gives: states after every block at each row's last token, and its logits."""

    states: Tensor  # [row, layer, width]
    logits: Tensor | None  # [row or token of `logits_at`, vocabulary]; None without `head`
    extra: Tensor | None = None  # [token of `states_at`, layer, width]


class Lease:
    """A model whose attention is ours until the `with` block ends.

    Nothing stays on the model: its attention implementations and training flags are restored and
    every hook is removed, whatever happens inside. A model is leased once at a time: another thread
    waits for it.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        # Shown every block's weights, without gradients.
        self.observer: WeightObserver | None = None
        self._pass: _Pass | None = None
        self._back = ExitStack()
        self.trying = False  # whether made-up packs are under way
        forward = inspect.signature(model.lm.forward).parameters
        self._picks = "logits_to_keep" in forward
        self._first = first_position(model.parts.decoder)
        self._switch = rotary_switch(model.lm)
        # Whether the Triton kernels run, one of which reads keys in place.
        self.fused = facts_of(model.lm).fused and can_fuse(model)

    def __enter__(self) -> Lease:
        lm, parts = self.model.lm, self.model.parts
        with ExitStack() as back:
            back.callback(_lock(lm))
            back.enter_context(attention_named(lm, NAME))
            for number, block in enumerate(parts.blocks):
                back.callback(replace_own_attention(block))
                back.callback(self._begin_block(block, number).remove)
                back.callback(block.register_forward_hook(self._keep_state).remove)
            if self.fused:
                back.callback(install_kernels(lm))
            elif self.model.device.type == "cpu":
                back.enter_context(cpu_fast_paths(self.model))
            back.callback(parts.head.register_forward_pre_hook(_contiguous).remove)
            back.callback(parts.decoder.register_forward_hook(self._to_first_device).remove)
            self._back = back.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._back.close()

    def run(
        self,
        ids: Tensor,
        layout: Layout,
        memory: KVCache,
        *,
        head: bool = False,
        slots: WindowSlots | None = None,
        watch: WeightObserver | None = None,
        logits_at: Tensor | None = None,
        depth: int | None = None,
        states_at: Tensor | None = None,
    ) -> Read:
        """The states of every layer at each row's last token, and its logits if `head` is wanted.

        `ids` are [row, query], padded as the layout says. `slots` read windows of
        blocks. `watch` is shown every block's attention weights; with it alone gradients can be
        taken. `logits_at` are the packed tokens whose logits are wanted instead of the last ones.
        After `depth` blocks the pass ends: what comes later cannot change their layers.
        `states_at` are packed tokens whose states are kept beside the last ones.

        Example:
            at = torch.arange(ids.shape[1])[None]  # one row, all positions from 0
            with Lease(model) as lease:
                memory = GrowingCache(model.blocks, ids.shape[1])
                read = lease.run(ids, Layout(at, at, prefix_length=0), memory, head=True)

        """
        self._check_positions(layout)
        prove_length(self, layout)
        last = layout.last()
        assert depth is None or not head, "the head reads the last block"
        kept = last
        if states_at is not None:
            kept = torch.cat([last, states_at])
        view = View(layout, memory, watch or self.observer, slots)
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
            with self._gradients(wanted=watch is not None):
                logits = self._forward(given, last if logits_at is None else logits_at, head)
            self._check_called(now)
            with torch.set_grad_enabled(watch is not None):
                states = torch.stack(now.states, dim=1)
            more = None if states_at is None else states[len(last) :]
        finally:
            CURRENT.reset(token)
            self._pass = None
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
        every tensor for later gradients.
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

    def _check_called(self, now: _Pass) -> None:
        """Every block must have attended through us, once: else something flows around the cut."""
        blocks = list(range(self.model.blocks if now.depth is None else now.depth))
        if now.view.called == blocks and len(now.states) == len(blocks):
            return
        without = [n + 1 for n in blocks if n not in now.view.called]
        if len(without) == len(blocks):
            raise UnsupportedModel(
                "information flows around the attention layers: no block attends in a way that "
                "can be cut"
            )
        if without:
            named = ", ".join(map(str, without[:4])) + (", ..." if len(without) > 4 else "")
            raise UnsupportedModel(
                f"information flows around the attention layers: blocks {named} have no attention "
                "that can be cut"
            )
        raise UnsupportedModel("its blocks do not run once each, one after the other")

    def _begin_block(self, module: nn.Module, block: int) -> Any:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            assert self._pass is not None
            view = self._pass.view
            view.block = block
            if view.slots is None:
                return None
            if args:
                return (view.slots.begin(block, args[0]), *args[1:]), kwargs
            hidden = view.slots.begin(block, kwargs["hidden_states"])
            return args, {**kwargs, "hidden_states": hidden}

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    def _to_first_device(self, module: nn.Module, args: tuple, output: Any) -> None:
        """The last states on the first device, where the tokens whose logits are kept are named."""
        hidden, home = getattr(output, "last_hidden_state", None), self.model.device
        if hidden is not None and hidden.device != home:
            output.last_hidden_state = hidden.to(home)

    def _keep_state(self, module: nn.Module, args: tuple, output: Any) -> None:
        now = self._pass
        assert now is not None
        hidden = output[0] if isinstance(output, tuple | list) else output
        if hidden.dim() != 3:
            raise UnsupportedModel("a block hands on more than one vector for each token")
        # States go to the first device, wherever their block is.
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
