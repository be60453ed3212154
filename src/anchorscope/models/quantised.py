"""Quantised and compiled models, and those that name code: what is not taken ends in a sentence."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import AutoConfig, PretrainedConfig

from anchorscope.errors import UserError


def is_quantised(place: str, options: dict[str, Any]) -> bool:
    """Whether the model's own files say that its weights are quantised."""
    named = {name: options.get(name) for name in ("revision", "trust_remote_code")}
    config = AutoConfig.from_pretrained(place, **named)
    return getattr(config, "quantization_config", None) is not None


def check_no_code(place: str, options: dict[str, Any]) -> None:
    """An error where a model's config.json names code that is to compute its attention or experts.

    transformers before 5.3 fetches and runs it without being asked to trust it, where the package
    `kernels` is installed (CVE-2026-4372); later ones leave these fields out.
    """
    content, _ = PretrainedConfig.get_config_dict(place, revision=options.get("revision"))
    waiting: list[Any] = [content]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            # A name with a slash is a repository; "sdpa" and the like are transformers' own.
            said = {n: of for n, of in part.items() if str(n).endswith("_implementation_internal")}
            named = [name for name, of in said.items() if "/" in str(of)]
            if named:
                raise UserError(
                    f"The config.json of '{place}' names code of its own ({named[0]}), which is "
                    "not run. Take that field out, or another model."
                )
        if isinstance(part, dict | list):
            waiting += part.values() if isinstance(part, dict) else part


def check_plain(lm: nn.Module) -> None:
    """An error where a model computes in a way that no pass of ours could repeat."""
    name = type(lm).__name__
    for module in lm.modules():
        if _compiled(module):
            raise UserError(
                f"Parts of this {name} are compiled, and their attention cannot be replaced. Give "
                "the model before `torch.compile`."
            )
        if _rounds_activations(module):
            raise UserError(
                f"This {name} rounds its activations to a few bits as well as its weights, by "
                "steps that depend on what else is in the batch, so no state would come out "
                "twice. Give the model itself, or one with quantised weights alone."
            )


def _compiled(module: nn.Module) -> bool:
    own = module.__dict__.get("forward")
    return (
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(own, "_torchdynamo_orig_callable")
    )


def _rounds_activations(module: nn.Module) -> bool:
    """Dynamic quantisation, by torch in a module of its own, by torchao in its weight."""
    weight: Any = module._parameters.get("weight")
    inner = getattr(weight, "act_quant_kwargs", None)
    linear = type(weight).__name__.startswith("LinearActivation")  # torchao before 0.14
    return "ao.nn.quantized" in type(module).__module__ or inner is not None or linear
