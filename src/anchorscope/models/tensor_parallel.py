"""A model that processes share: each holds a part of every weight, by the model's own plan."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from anchorscope import ranks
from anchorscope.errors import UserError


def read_parallel(place: str, adapter: str | None, **options: Any) -> PreTrainedModel:
    """The part of the model that is this process's; an error where it cannot be shared evenly."""
    if adapter is not None:
        raise UserError(
            f"The adapter '{adapter}' cannot be merged into a model that processes share. Merge it "
            "first (peft's merge_and_unload, then save_pretrained) and give that folder."
        )
    from transformers.distributed.configuration_utils import DistributedConfig

    named = {n: options[n] for n in ("revision", "trust_remote_code") if n in options}
    _check_shared_evenly(AutoConfig.from_pretrained(place, **named).get_text_config(), place)
    plan = DistributedConfig(tp_size=ranks.count())
    return AutoModelForCausalLM.from_pretrained(place, distributed_config=plan, **options)


def _check_shared_evenly(config: Any, place: str) -> None:
    """A plan for sharing the weights must be there, and every process must get as many heads."""
    if not config.base_model_tp_plan:
        raise UserError(
            f"transformers has no tensor-parallel plan for {config.model_type} ({place}). "
            "Use --device balanced."
        )
    heads = config.num_attention_heads
    pairs = getattr(config, "num_key_value_heads", None) or heads
    if heads % ranks.count() or pairs % ranks.count():
        raise UserError(
            f"{ranks.count()} processes cannot share {heads} heads with {pairs} pairs of keys and "
            "values evenly. Start as many as divide both, or use --device balanced."
        )
