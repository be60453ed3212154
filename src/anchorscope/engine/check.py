"""Is this model understood? The knockout proved on the very model, before anything slow starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anchorscope.engine.interventions import TokenPositions
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.engine.rows import read_batch, row_for
from anchorscope.engine.trunk import grow_trunk, read_prefix
from anchorscope.errors import UserError
from anchorscope.models import Model

# How far rounding may move a state, as a share of the largest value of its layer.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
# Deep models with large activations round further in half precision: as far as transformers' own
# two ways of attention differ on this very model, and a little more.
_SLACK = 3.0
_PREFIX, _TURN, _ANSWER = 6, 9, 3


class Check(NamedTuple):
    """One thing that was checked, whether it is so, and what was seen."""

    name: str
    ok: bool
    seen: str


def check_model(model: Model) -> Iterator[Check]:
    """Each check as it is done; the model is left as it was."""
    sample = _sample(model)
    before, hidden = _stock(model, sample.ids)
    limit = _limit(model, sample, hidden)
    try:
        clean, knocked, nothing, weights = _ours(model, sample)
    except NotImplementedError as error:
        yield Check("its attention can be read", False, str(error))
        return
    yield Check(
        "its attention can be read", True, f"{model.blocks} blocks, width {model.parts.width}"
    )
    far = max(_distance(clean[k], hidden[k]) for k in range(model.blocks))
    yield Check(
        "states are those of output_hidden_states", far < limit, f"largest difference {far:.1e}"
    )
    same = torch.equal(nothing, clean)
    yield Check(
        "an empty knockout changes nothing", same, "bit for bit" if same else "it changes states"
    )
    cut = _cut_weight(sample, weights)
    yield Check("blocked edges carry no weight", cut == 0, f"largest blocked weight {cut:.1e}")
    whole = max(float((w.sum(-1) - 1).abs().max()) for w in weights)
    yield Check("weights still sum to one", whole < limit, f"largest difference {whole:.1e}")
    plain = _stock(model, sample.ids, cut=sample)[1]
    far = max(_distance(knocked[k], plain[k]) for k in range(model.blocks))
    yield Check("the knockout blocks what it says and nothing else", far < limit,
                f"largest difference from stock attention with that mask {far:.1e}")  # fmt: skip
    moved = max(_distance(knocked[k], clean[k]) for k in range(model.blocks))
    yield Check("the knockout reaches the states", moved > 0, f"they move by up to {moved:.1e}")
    after = _stock(model, sample.ids)[0]
    yield Check("the model is left as it was", torch.equal(before, after), "logits bit for bit")


def require_understood(model: Model) -> None:
    """An error that names the failed checks, where there are any."""
    failed = [check for check in check_model(model) if not check.ok]
    if failed:
        said = "; ".join(f"{check.name}: no ({check.seen})" for check in failed)
        raise UserError(
            f"{model.name} is not understood, so its numbers would mean nothing: {said}. "
            f"`anchorscope doctor --model {model.source}` shows every check."
        )


def _limit(model: Model, sample: TokenPositions, hidden: list[Tensor]) -> float:
    """How far states may lie apart and still be the same but for rounding."""
    usual = _TOLERANCE.get(model.dtype, _TOLERANCE[torch.bfloat16])
    if model.dtype == torch.float32 or not model.lm._supports_sdpa:
        return usual
    other = _stock(model, sample.ids, attention="sdpa")[1]
    apart = max(_distance(a, b) for a, b in zip(other, hidden, strict=True))
    return max(usual, _SLACK * apart)


def _sample(model: Model) -> TokenPositions:
    """Arbitrary tokens in the shape of a question: the checks are about arithmetic, not meaning."""
    size = model.lm.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    count = _PREFIX + _TURN + _ANSWER
    ids = torch.randint(size // 10, size, (count,), generator=generator).tolist()
    exact = (_PREFIX + 2, _PREFIX + 3)
    question = tuple(range(_PREFIX, _PREFIX + _TURN))
    return TokenPositions(
        id="check",
        ids=tuple(ids),
        answer_at=_PREFIX + _TURN,
        question_tokens=question,
        exact_question=exact,
    )


def _ours(model: Model, sample: TokenPositions) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Clean, knocked-out and emptily knocked-out states [layer, width], and weights by block."""
    with Lease(model, weights=True) as lease, _weights(model) as weights:
        prefix = read_prefix(lease, sample.ids[:_PREFIX])
        trunk = grow_trunk(
            lease, prefix, [sample.ids[: sample.answer_at]], room=0, head=False
        ).trunk
        read = []
        bare = replace(sample, exact_question=())
        # All three rows start at the same token, so that they run through the same arithmetic.
        how = {"blocks": model.blocks, "turn_at": _PREFIX, "seed": 0}
        start = row_for(sample, 0, KNOCKOUT, **how)
        for of, cut in ((bare, KNOCKOUT), (sample, KNOCKOUT), (sample, CLEAN)):
            row = replace(row_for(of, 0, cut, **how), ids=start.ids, at=start.at)
            weights.clear()
            read.append((read_batch(lease, trunk, [row])[0], list(weights)))
    (clean, _), (knocked, seen), (empty, _) = read
    return clean, knocked, empty, seen


@contextmanager
def _weights(model: Model) -> Iterator[list[Tensor]]:
    """The attention weights of every block, as they come."""
    seen: list[Tensor] = []
    hooks = [
        a.register_forward_hook(lambda module, args, output: seen.append(output[1]))
        for a in model.parts.attentions
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _cut_weight(sample: TokenPositions, weights: list[Tensor]) -> float:
    """The largest weight on a cut edge; keys stand as prefix, trunk, then the row's own."""
    return max(float(w[..., list(sample.exact_question)].abs().max()) for w in weights)


@torch.no_grad()
def _stock(
    model: Model, ids: tuple[int, ...], cut: TokenPositions | None = None, attention: str = "eager"
) -> tuple[Tensor, list[Tensor]]:
    """Logits [vocabulary] and states of each layer [width], by transformers' own attention."""
    last: list[Tensor] = []
    before = model.lm.config._attn_implementation or "eager"
    with ExitStack() as stack:
        stack.callback(model.lm.set_attn_implementation, before)
        model.lm.set_attn_implementation(attention)
        hook = model.parts.blocks[-1].register_forward_hook(_keep_last(last))
        stack.callback(hook.remove)
        for module in model.parts.attentions if cut else ():
            hook = module.register_forward_pre_hook(_cut_mask(cut), with_kwargs=True)
            stack.callback(hook.remove)
        tokens = torch.tensor([ids], device=model.device)
        out = model.lm(tokens, use_cache=False, output_hidden_states=True)
    # The last of theirs is after the final norm; METHOD's layer L is before it.
    theirs = [state[0, -1] for state in out.hidden_states[1:-1]]
    return out.logits[0, -1], [*theirs, *last]


def _keep_last(kept: list[Tensor]) -> Any:
    def hook(module: nn.Module, args: tuple, output: Any) -> None:
        kept.append((output[0] if isinstance(output, tuple) else output)[0, -1])

    return hook


def _cut_mask(cut: TokenPositions | None) -> Any:
    """A hook that takes the cut edges from the mask the model itself made, windows and all."""
    assert cut is not None
    at = torch.arange(len(cut.ids))
    is_key = torch.isin(at, torch.tensor(cut.exact_question))
    gone = (at[:, None] > at) & is_key & ~is_key[:, None]

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        mask = kwargs["attention_mask"]
        least = torch.finfo(mask.dtype).min
        return args, {**kwargs, "attention_mask": mask.masked_fill(gone.to(mask.device), least)}

    return hook


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-9))
