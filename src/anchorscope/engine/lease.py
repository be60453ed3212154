"""Run forward passes with the engine's attention, and restore the model afterwards."""

from __future__ import annotations

import inspect
import platform
import sys
import threading
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from anchorscope.engine.attention import (
    CURRENT,
    Pass,
    WeightObserver,
    WindowSlots,
    attention_named,
)
from anchorscope.engine.batches import PackTooLong, facts_of, set_facts
from anchorscope.engine.layout import (
    NAME,
    GrowingCache,
    KVCache,
    Layout,
    UnsupportedModel,
    first_position,
)
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.models.load import cpu_has_bfloat16
from anchorscope.models.parts import rotary_switch, row_too_long

_LOCKS: WeakKeyDictionary[nn.Module, threading.Lock] = WeakKeyDictionary()
_HOLDERS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


def _lock(lm: nn.Module) -> Any:
    """Lock a model for this thread; returns the function that releases it."""
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
    """The result of a pass: states after every block at each row's last token, and logits."""

    states: Tensor  # [row, layer, width]
    logits: Tensor | None  # [row or token of `logits_at`, vocabulary]; None without `head`
    extra: Tensor | None = None  # [token of `states_at`, layer, width]


class Lease:
    """Replace a model's attention by the engine's until the `with` block ends.

    Nothing stays on the model: its attention implementations and training flags are restored and
    every hook is removed, whatever happens inside. A model is leased once at a time: another thread
    waits for it.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.server = model, model.server
        self._back = ExitStack()
        self._picks = "logits_to_keep" in inspect.signature(model.lm.forward).parameters
        self._first = first_position(model.parts.decoder)
        self._switch = rotary_switch(model.lm)
        # Whether the Triton kernels run, one of which reads keys in place.
        self.fused = facts_of(model.lm).fused and can_fuse(model)

    def __enter__(self) -> Lease:
        lm, parts = self.model.lm, self.model.parts
        with ExitStack() as back:
            back.callback(_lock(lm))
            if self.server is not None:  # its hooks are in other processes
                self._back = back.pop_all()
                return self
            back.enter_context(attention_named(lm, NAME))
            for number, block in enumerate(parts.blocks):
                begin = partial(_begin_block, number)
                back.callback(block.register_forward_pre_hook(begin, with_kwargs=True).remove)
                back.callback(block.register_forward_hook(_keep_state).remove)
            if self.fused:
                from anchorscope.engine.kernels import install_norms  # needs Triton

                back.callback(install_norms(lm))
            onednn = bool(torch.backends.mkldnn.enabled)
            back.callback(_set_onednn, onednn)
            _set_onednn(onednn and onednn_is_faster(self.model.dtype))
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
        gradients: bool = False,
        logits_at: Tensor | None = None,
        depth: int | None = None,
        states_at: Tensor | None = None,
        made_up: bool = False,
    ) -> Read:
        """Run a pass: states of every layer at each row's last token, and its logits with `head`.

        `ids` are [row, query], padded as in the layout. `slots` cut in windows of blocks. `watch`
        receives every block's attention weights, through which `gradients` can be taken.
        `logits_at` are the packed tokens whose logits are wanted instead of the last ones. After
        `depth` blocks the pass ends: later blocks cannot change these layers. `states_at` are
        packed tokens whose states are kept beside the last ones. A `made_up` pack needs no proof.

        Example:
            at = torch.arange(ids.shape[1])[None]  # one row, all positions from 0
            with Lease(model) as lease:
                memory = GrowingCache(model.blocks, ids.shape[1])
                read = lease.run(ids, Layout(at, at, prefix_length=0), memory, head=True)

        """
        if self.server is not None:
            raise UserError(
                "This reads the model in a way that vLLM does not offer. Accepted with --engine "
                "vllm: answers, states, knockouts and reweighting; or --engine transformers."
            )
        self._check_positions(layout)
        if not made_up:
            self._require_proved(layout)
        last = layout.last()
        assert depth is None or not head, "the head reads the last block"
        kept = last if states_at is None else torch.cat([last, states_at])
        now = Pass(layout, memory, kept, watch, slots, depth)
        tokens = layout.pack(ids)
        given = {
            "input_ids": tokens,
            # All ones: else transformers takes the rows of a pack for separate sequences.
            "attention_mask": torch.ones_like(tokens),
            "position_ids": layout.pack(layout.query_at) + self._first,
            "use_cache": False,
        }
        # On a CPU torch's bookkeeping for gradients would slow many short steps.
        bare = not gradients and self.model.device.type == "cpu"
        token = CURRENT.set(now)
        try:
            with torch.inference_mode() if bare else torch.set_grad_enabled(gradients):
                logits = self._forward(given, last if logits_at is None else logits_at, head)
            self._check_called(now)
            with torch.set_grad_enabled(gradients):
                states = torch.stack(now.states, dim=1)
        finally:
            CURRENT.reset(token)
        more = None if states_at is None else states[len(last) :]
        return Read(states[: len(last)], logits, more)

    def _check_positions(self, layout: Layout) -> None:
        """Raise an error where a row is long enough to change all rotary angles of its pass."""
        # Columns bound the positions, and counting them does not synchronize with the GPU.
        if self._switch is None or layout.keys <= self._switch:
            return
        tokens = int(layout.query_at.max()) + 1
        if tokens > self._switch:
            raise row_too_long(self.model.name, self._switch, tokens)

    def _require_proved(self, layout: Layout) -> None:
        """Prove a pack length on made-up rows before its first use; raise PackTooLong if it fails.

        A pack's length is its number of tokens or its number of positions, whichever is larger.
        """
        facts = facts_of(self.model.lm)
        # Columns bound the positions, and counting them does not synchronize with the GPU.
        if facts.proved is None or max(len(layout.place), layout.keys) <= facts.proved:
            return
        longest = max(len(layout.place), int(layout.query_at.max()) + 1)
        if longest <= facts.proved:
            return
        right = 0
        if facts.largest is None:
            # A power of two first, so that batches of similar size have the same outcome.
            power = 1 << (longest - 1).bit_length()
            right, _ = longest_right(self, (power, longest), facts.rounding)
        if not right:
            set_facts(self.model.lm, replace(facts, largest=facts.proved))
            raise PackTooLong(self.model, right=facts.proved, given=longest)
        set_facts(self.model.lm, replace(facts, proved=right))

    def _forward(self, given: dict[str, Any], keep: Tensor, head: bool) -> Tensor | None:
        if head and self._picks:
            return self.model.lm(**given, logits_to_keep=keep).logits[0].to(keep.device)
        if head:
            return self.model.lm(**given).logits[0].to(keep.device)[keep]
        # The head over all positions would cost more than a tenth of the pass.
        with suppress(_Enough):
            self.model.parts.decoder(**given)
        return None

    def _check_called(self, now: Pass) -> None:
        """Check that every block attended through the engine once: nothing bypasses the cut."""
        blocks = list(range(self.model.blocks if now.depth is None else now.depth))
        if now.called == blocks and len(now.states) == len(blocks):
            return
        if without := [n + 1 for n in blocks if n not in now.called]:
            named = ", ".join(map(str, without[:4])) + (", ..." if len(without) > 4 else "")
            raise UnsupportedModel(
                f"information flows around the attention layers: blocks {named} have no attention "
                "that can be cut"
            )
        raise UnsupportedModel("its blocks do not run once each, one after the other")

    def _to_first_device(self, module: nn.Module, args: tuple, output: Any) -> None:
        """Move the decoder's last states to the first device, where `logits_to_keep` is."""
        hidden, home = getattr(output, "last_hidden_state", None), self.model.device
        if hidden is not None and hidden.device != home:
            output.last_hidden_state = hidden.to(home)


def _begin_block(
    number: int, module: nn.Module, args: tuple, kwargs: dict
) -> tuple[tuple, dict] | None:
    """Note which block runs, from 0; with windows, reset the slot that begins in it."""
    now = CURRENT.get()
    assert now is not None
    now.block = number
    if now.slots is None:
        return None
    if args:
        return (now.slots.begin(number, args[0]), *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": now.slots.begin(number, kwargs["hidden_states"])}


def _keep_state(module: nn.Module, args: tuple, output: Any) -> None:
    """Record a block's output states at the tokens that the pass keeps."""
    now = CURRENT.get()
    assert now is not None
    hidden = output[0] if isinstance(output, tuple | list) else output
    if hidden.dim() != 3:
        raise UnsupportedModel("a block hands on more than one vector for each token")
    # States go to the first device, wherever their block is.
    kept = hidden[0].index_select(0, now.kept.to(hidden.device))
    now.states.append(kept.to(now.kept.device))
    if len(now.states) == now.depth:
        raise _Enough


def can_fuse(model: Model) -> bool:
    """Whether the Triton kernels can run: a whole model on one GPU, where Triton is installed."""
    devices = {weight.device for weight in model.lm.parameters()}
    one_gpu = devices == {model.device} and model.device.type == "cuda"
    return one_gpu and find_spec("triton") is not None


def onednn_is_faster(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies matrices faster here than torch's other BLAS.

    It does not in float32 on ARM cores without bfloat16 (Neoverse-N1). Only processor and dtype
    decide: two runs on equal machines must give equal results, to the last bit.
    """
    arm = sys.platform == "linux" and platform.machine().lower() in ("aarch64", "arm64")
    return not arm or dtype != torch.float32 or cpu_has_bfloat16()


def _set_onednn(on: bool) -> None:
    # Not by `flags()`, which sets TF32 as well, with a warning.
    torch.backends.mkldnn.enabled = on  # pyright: ignore[reportAttributeAccessIssue]


class _Enough(Exception):
    """Raised to end a pass after its last wanted block."""


def _contiguous(module: nn.Module, args: tuple) -> tuple:
    """Make the input contiguous: bfloat16 on a CPU is hundreds of times slower on a slice."""
    return (args[0].contiguous(), *args[1:])


# --- Packs: whether packing rows into one sequence leaves each row's states unchanged ---

# A model that depends on a token's index in the pack is right only for short packs. The checks on
# load try a full pack; before a run uses a longer one, made-up rows of that length are tried.


_ROW = 12  # tokens of a made-up row


def longest_right(lease: Lease, sizes: Iterable[int], rounding: float) -> tuple[int, float]:
    """Find the first pack size, in tokens, whose last row has the same states as that row alone.

    Returns that size, 0 where there is none, and the distance measured at the last size tried.
    """
    model, far = lease.model, torch.inf
    size = model.lm.config.get_text_config().vocab_size

    def last_states(rows: Tensor) -> Tensor:
        at = torch.arange(_ROW, device=model.device).expand(len(rows), -1)
        memory = GrowingCache(model.blocks, _ROW, segmented=lease.fused)
        layout = Layout(at, at, prefix_length=0)
        return lease.run(rows.to(model.device), layout, memory, made_up=True).states[-1]

    for tokens in sizes:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(size // 10, size, (-(-tokens // _ROW), _ROW), generator=generator)
        far = distance(last_states(rows), last_states(rows[-1:]))
        if far < rounding:
            return tokens, far
    return 0, far


def distance(a: Tensor, b: Tensor) -> float:
    """The largest relative difference between states [..., width]; see `apart`."""
    return float(apart(a, b).max())


def apart(a: Tensor, b: Tensor) -> Tensor:
    """The mean relative difference between states [..., width] over their width, [...].

    Each difference is divided by the value's own size plus the state's mean size: otherwise the few
    values of a residual stream that are a thousand times larger than the rest would hide the rest.
    """
    a, b = a.float(), b.float()
    size = b.abs() + b.abs().mean(dim=-1, keepdim=True).clamp(min=1e-9)
    far = ((a - b).abs() / size).mean(dim=-1)
    # A NaN on either side counts as an infinite difference.
    return far.nan_to_num(torch.inf, posinf=torch.inf)
