"""vLLM as the second engine: answers, states and knockouts for models larger than one GPU."""

from anchorscope.engine_vllm.server import (
    Readings,
    ReadRequest,
    VllmServer,
    WrittenAnswer,
    find_vllm,
)

__all__ = ["ReadRequest", "Readings", "VllmServer", "WrittenAnswer", "find_vllm"]
