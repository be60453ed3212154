"""Register the attention backend in every process of vLLM, which loads this by entry point."""

ARGUMENT = "anchorscope"  # the key of a request's own arguments in `extra_args`
BACKEND = "anchorscope.engine_vllm.attention.KnockoutBackend"
EXTENSION = "anchorscope.engine_vllm.recorder.RecorderExtension"


def register() -> None:
    """Register the knockout backend as vLLM's CUSTOM attention backend."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
