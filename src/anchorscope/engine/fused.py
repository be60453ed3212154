"""Try the Triton kernels on a GPU, and put those that agree with a model's own code into it.

Between its matrix products a block's own code passes over memory many times: 30 % of the time of
an 8B model (docs/performance.md). Norms, gated MLPs and rotary embeddings become one kernel each.
Every kernel is tried first, on random input of the model's own dtype, and is left out where it
differs by more than rounding. With gradients the own code runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from anchorscope.engine.kv_cache import ForkedCache
from anchorscope.engine.layout import PAD, Layout, Rule
from anchorscope.models import Model

Forward = Callable[..., Any]


def can_fuse(model: Model) -> bool:
    """Whether the kernels can run: a whole model on one GPU, with Triton, and they work."""
    devices = {weight.device for weight in model.lm.parameters()}
    if devices != {model.device} or model.device.type != "cuda" or find_spec("triton") is None:
        return False
    config = model.lm.config.get_text_config()
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return _kernels_agree(model.device, model.dtype, heads, key_heads, width)


@cache
def _kernels_agree(
    device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, width: int
) -> bool:
    """Whether these kernels give what torch gives, tried once for a shape of heads."""
    like = torch.zeros((), dtype=dtype, device=device)
    attends = heads % key_heads == 0 and attention_agrees(like, heads, key_heads, width)
    return attends and choice_agrees(like)


@torch.no_grad()
def install_kernels(lm: nn.Module) -> Callable[[], None]:
    """Replace the forwards of a model by fused ones that agree; gives what restores it."""
    known = _FORWARDS.setdefault(lm, {})
    forwards = {module: _forward(known, module) for module in lm.modules() if module is not lm}
    fused = {module: forward for module, forward in forwards.items() if forward is not None}
    for module, forward in fused.items():
        module.forward = forward

    def restore() -> None:
        for module in fused:
            del module.forward

    return restore


# What was tried once is not tried again: a model is leased many times. By model, since a forward
# holds its module, and would keep it on the GPU for ever under the module's own name.
_Cached = tuple[Any, Forward | None]  # the module's kind when it was tried, and its forward
_FORWARDS: WeakKeyDictionary[nn.Module, dict[nn.Module, _Cached]] = WeakKeyDictionary()


def _forward(known: dict[nn.Module, _Cached], module: nn.Module) -> Forward | None:
    """The fused forward of a module, tried again where the module's dtype or device changed."""
    weight = next(module.parameters(recurse=False), None)
    kind = None if weight is None else (weight.dtype, weight.device)
    kind = (kind, "forward" in module.__dict__)
    if module not in known or known[module][0] != kind:
        known[module] = kind, _make_forward(module)
    return known[module][1]


def _make_forward(module: nn.Module) -> Forward | None:
    """The fused forward of a module, with its own for gradients; None where it has none."""
    if "forward" in module.__dict__:  # accelerate's, which fetches weights from elsewhere
        return None
    forward = fused_norm(module) or fused_mlp(module) or fused_attention(module)
    if forward is None:
        return None
    own = module.forward

    def either(*args: Any, **kwargs: Any) -> Any:
        return (own if torch.is_grad_enabled() else forward)(*args, **kwargs)

    return either


# --- Whether two computations agree to rounding, on random input ---


# Own code rounds between its steps, ours once: a few units in the last place, not more.
_UNITS = 4


@torch.no_grad()
def agree(own: Callable[..., Any], ours: Callable[..., Any], *inputs: Tensor) -> bool:
    """Whether both give the same to rounding; False where either cannot take the input."""
    try:
        one, other = _tensors(own(*inputs)), _tensors(ours(*inputs))
    except Exception:  # Triton has errors of its own, and each means that ours is not for this
        return False
    return len(one) == len(other) and all(map(_close, one, other))


def random_like(like: Tensor, *shape: int) -> Tensor:
    """Random input of a tensor's kind and place, the same every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, dtype=torch.float32, generator=generator).to(like)


def _tensors(out: Any) -> tuple[Tensor, ...]:
    return (out,) if isinstance(out, Tensor) else tuple(out)


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    unit = torch.finfo(one.dtype).eps * _UNITS
    largest = float(one.float().abs().max())
    return torch.allclose(one.float(), other.float(), rtol=unit, atol=unit * largest)


# --- Attention and the choice of a token, tried against torch's own functions ---


_FRONT, _COUNTS, _MIDDLE = 5, (3, 40), 4
_LATE = 30  # a position that the longer row alone has: there the prefix is not seen whole


def attention_agrees(like: Tensor, heads: int, key_heads: int, width: int) -> bool:
    """Whether the kernel compiles and agrees, for heads of this width and the dtype of `like`."""
    tokens = sum(_COUNTS)
    query = random_like(like, 1, heads, tokens, width)
    key, value = random_like(like, 2, 1, key_heads, tokens, width)
    front = random_like(like, 2, 1, key_heads, _FRONT, width)
    middle = random_like(like, 2, 2, key_heads, _MIDDLE, width)
    rows = torch.tensor([1, 0], device=like.device)
    memory = partial(ForkedCache, [(middle[0], middle[1])], rows, [(front[0], front[1])])
    layout = _layout(like.device)
    rule = Rule(lambda row, head, query, key: (key <= query) & ((query != _LATE) | (key > 1)))
    bias = layout.bias(0, rule, like.dtype)

    def stock(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (layout.in_rows(part) for part in (query, key, value))
        pair = memory().join(0, key, value)
        out = scaled_dot_product_attention(query, *pair, attn_mask=bias, enable_gqa=True)
        return layout.pack(out.transpose(1, 2))

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        from anchorscope.engine.kernels import attend_segments  # needs Triton

        segments = memory(segmented=True).segments(0, layout, key, value)
        open_prefix = layout.open_prefix(0, rule, like.dtype)
        return attend_segments(query, segments, bias, open_prefix, layout, width**-0.5)

    return agree(stock, ours, query, key, value)


def choice_agrees(like: Tensor) -> bool:
    """Whether the likeliest tokens are found: some tie, and some cannot be chosen."""
    logits = random_like(like, 3, 9001)
    logits[1, [7, 8000]] = logits[1].max() + 1
    logits[2, ::2] = -torch.inf

    def ours(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from anchorscope.engine import kernels  # needs Triton

        return kernels.likeliest(logits)

    return agree(likeliest, ours, logits)


_FAR = -1e4  # the exponential of anything below is 0


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest tokens, their log-probabilities and the entropies, [row] each, by torch."""
    logits = logits.float()
    top, chosen = logits.max(dim=-1)
    below = logits - top[:, None]
    share = below.exp()  # once: on a CPU it costs a tenth of a decoding step
    total = share.sum(dim=-1)
    # What cannot be chosen has -inf, and adds nothing.
    mean = torch.linalg.vecdot(share, below.clamp_(min=_FAR)) / total
    return chosen, -total.log(), total.log() - mean


def _layout(device: torch.device) -> Layout:
    """Two rows of unlike length behind a prefix and a trunk, padded on the left."""
    begin = _FRONT + _MIDDLE
    lines = [range(begin, begin + count) for count in _COUNTS]
    padded = [[PAD] * (max(_COUNTS) - len(line)) + list(line) for line in lines]
    query_at = torch.tensor(padded, device=device)
    trunk = torch.arange(_FRONT, begin, device=device).expand(len(lines), -1)
    return Layout(query_at, torch.cat([trunk, query_at], dim=1), prefix_length=_FRONT)


# --- RMS norms ---


def fused_norm(module: nn.Module) -> Forward | None:
    """The norm in one kernel; None where the module is no RMS norm of a known kind."""
    weight, eps = getattr(module, "weight", None), _epsilon(module)
    if type(weight) is not nn.Parameter or eps is None or weight.dim() != 1:
        return None
    if not type(module).__name__.endswith("RMSNorm"):
        return None
    from anchorscope.engine.kernels import normed  # Triton comes with torch for GPUs

    # Scaled by the weight (Llama), or by one more than it (Gemma).
    kinds = (partial(normed, weight=weight, eps=eps, more=more) for more in (False, True))
    sample = random_like(weight, 1, 3, len(weight))
    return next((norm for norm in kinds if agree(module, norm, sample)), None)


def _epsilon(module: nn.Module) -> float | None:
    """The epsilon of a norm, by the names in use."""
    names = ("variance_epsilon", "eps")
    return next((float(eps) for n in names if (eps := getattr(module, n, None)) is not None), None)


# --- Gated MLPs ---


_PARTS = ("gate_proj", "up_proj", "down_proj", "act_fn")
_ACTS: dict[Any, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": partial(gelu, approximate="tanh"),
}


def fused_mlp(module: Any) -> Forward | None:
    """The MLP with its gate in one kernel; None where the module is none of that kind."""
    if not all(hasattr(module, name) for name in _PARTS):
        return None
    from anchorscope.engine.kernels import gated  # Triton comes with torch for GPUs

    weight = getattr(module.gate_proj, "weight", None)
    width = getattr(module.gate_proj, "in_features", None)
    if weight is None or width is None or not weight.dtype.is_floating_point:
        return None
    # The activation by itself: where a gate is small, all of them look alike.
    values = random_like(weight, 1, 3, width)
    acts = (name for name, act in _ACTS.items() if agree(module.act_fn, act, 3 * values))
    act = next(acts, None)
    if act is None:
        return None

    def forward(x: Tensor) -> Tensor:
        return module.down_proj(gated(module.gate_proj(x), module.up_proj(x), act))

    return forward if agree(module, forward, values) else None


# --- Rotary embedding ---

# A model's attention calls a function of its file by name. Its forward is copied with another
# function under that name, for the one module: the file's own stays as it is for every other.


_NAME = "apply_rotary_pos_emb"


def fused_attention(module: nn.Module) -> Forward | None:
    """The attention's forward with the fused rotation; None where it rotates in another way."""
    plain = type(module).forward
    if not isinstance(plain, FunctionType) or _NAME not in plain.__code__.co_names:
        return None
    weight = next((p for p in module.parameters() if p.dtype.is_floating_point), None)
    if weight is None or not _halves(plain.__globals__[_NAME], weight):
        return None
    names = {**plain.__globals__, _NAME: _by_kernel(plain.__globals__[_NAME])}
    copy = FunctionType(
        plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__
    )
    copy.__kwdefaults__ = plain.__kwdefaults__
    return MethodType(copy, module)


def _by_kernel(own: Forward) -> Forward:
    """The model's rotation function, by our kernel where the whole head is rotated."""

    def either(
        query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if all(x.shape[0] == 1 and x.shape[-2:] == cos.shape[-2:] for x in (query, key)):
            return rotate(query, key, cos, sin)
        return own(query, key, cos, sin, *args, **kwargs)

    return either


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys [1, head, token, width], rotated by the angles [1, token, width]."""
    from anchorscope.engine.kernels import rotated  # Triton comes with torch for GPUs

    return rotated(query, key, cos, sin)


def _halves(own: Forward, like: Tensor) -> bool:
    """Whether a model's function rotates the two halves of a head against each other."""
    query, key = random_like(like, 1, 3, 5, 8), random_like(like, 1, 1, 5, 8)
    return agree(
        own, rotate, query, key, random_like(like, 1, 5, 8), random_like(like, 1, 5, 8).neg()
    )
