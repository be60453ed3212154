"""Serve a model by vLLM: write answers, and read states under changed attention edges."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from anchorscope.engine_vllm import plugin
from anchorscope.errors import UserError

TESTED = "0.24"  # the version of vLLM
LONGEST = 8192  # tokens of a prompt and its answer, at most
# Bytes of keys and values on each GPU; the tables of vLLM's FlexAttention grow with them.
_CACHE = 4 << 30
_ENVIRONMENT = {
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the recorder knows the batches of the first
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """A row of tokens to read: the edges that change, and the positions whose states are kept."""

    ids: tuple[int, ...]
    keys: tuple[int, ...] = ()
    begin: int = 0  # the first query that no longer sees the keys; keys still see each other
    queries: tuple[int, ...] | None = None  # these alone instead
    blocks: tuple[int, int] | None = None  # from, and below, counted from 0; None: all
    added: float | None = None  # to the scores of these edges; None: they are cut
    positions: tuple[int, ...] = ()
    scored: int = 0  # the last tokens, whose log-probabilities are read
    mass: bool = False  # read the attention from the last token to every position


class WrittenAnswer(NamedTuple):
    """The tokens of an answer without its stop token, and whether it came to one."""

    token_ids: tuple[int, ...]
    finished: bool


@dataclass(frozen=True)
class Readings:
    """What was read of some requests; states stay in vLLM's workers until they are fetched."""

    server: VllmServer = field(repr=False)
    numbers: tuple[int, ...]
    scores: tuple[np.ndarray, ...]  # of each: log-probability, rank, entropy, likeliest [token, 4]
    mass: tuple[np.ndarray, ...] = ()  # of each [position], mean over heads and blocks

    def states(self, requests: Sequence[int], positions: Sequence[int]) -> Tensor:
        """States [place, layer, width] of requests, by their place in the list, at positions."""
        return self.server.states([self.numbers[n] for n in requests], positions)


class VllmServer:
    """A model inside vLLM's workers."""

    def __init__(
        self,
        model: str,
        *,
        dtype: torch.dtype = torch.bfloat16,
        revision: str | None = None,
        tensor_parallel: int = 1,
        trust_remote_code: bool = False,
        longest: int | None = None,
        **options: Any,
    ) -> None:
        """Load a model into vLLM; `longest` is the most tokens that it reads, None any number.

        `options` are further arguments of `vllm.LLM`.
        """
        vllm = find_vllm()
        plugin.register()
        length = min(LONGEST, longest or LONGEST)
        options = {
            "kv_cache_memory_bytes": _CACHE,
            "gpu_memory_utilization": 0.05,  # checked at the start alone, with a cache of this size
            "max_model_len": length,
        } | options
        try:
            self._llm: Any = vllm.LLM(
                model=model,
                dtype=str(dtype).removeprefix("torch."),
                revision=revision,
                tensor_parallel_size=tensor_parallel,
                trust_remote_code=trust_remote_code,
                attention_backend="CUSTOM",
                worker_extension_cls=plugin.EXTENSION,
                skip_tokenizer_init=True,
                # States are taken by hooks, which neither compiled code nor a CUDA graph calls.
                enforce_eager=True,
                # Keys and values under a cut must never serve another request.
                enable_prefix_caching=False,
                async_scheduling=False,
                disable_log_stats=True,
                **options,
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:400]
            raise UserError(
                f"vLLM could not load '{model}': {reason}. Accepted: a folder or a hub id of a "
                "model that vLLM runs with FlexAttention, on a GPU; or --engine transformers."
            ) from error
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._params, self._numbers = vllm.SamplingParams, count()
        self.tensor_parallel = tensor_parallel
        held = self._llm.collective_rpc("anchorscope_attach")
        self.blocks = len({block for each in held for block in each["blocks"]})

    def write(
        self, prompts: Sequence[Sequence[int]], *, stop_ids: Sequence[int], limit: int
    ) -> list[WrittenAnswer]:
        """Write a greedy answer after each prompt, up to a stop token or the limit."""
        params = self._params(
            max_tokens=limit,
            temperature=0.0,
            ignore_eos=True,  # `stop_ids` says what ends an answer
            stop_token_ids=[*stop_ids],
            detokenize=False,
        )
        written = self._generate(prompts, params)
        stops, answers = frozenset(stop_ids), []
        for output in written:
            ids = tuple(output.outputs[0].token_ids)
            done = output.outputs[0].finish_reason == "stop"
            answers.append(WrittenAnswer(ids[:-1] if done and ids[-1] in stops else ids, done))
        return answers

    def read(self, requests: Sequence[ReadRequest]) -> Readings:
        """Read requests in vLLM's own batches; what was read before can no longer be fetched."""
        self._llm.collective_rpc("anchorscope_forget")
        numbers = [next(self._numbers) for _ in requests]
        params = [
            self._params(
                max_tokens=1,
                temperature=0.0,
                detokenize=False,
                extra_args={plugin.ARGUMENT: {"number": number} | _arguments(request)},
            )
            for number, request in zip(numbers, requests, strict=True)
        ]
        self._generate([request.ids for request in requests], params)
        counts = [request.scored for request in requests]
        scores = np.empty((0, 4), np.float32)
        if any(counts):
            found = self._fetch("scores", numbers, counts)
            # Vocabulary is spread over processes: one of them has the logits.
            scores = next(each for each in found if len(each) and not each.isnan().any()).numpy()
        masses: tuple[np.ndarray, ...] = ()
        if asked := [n for n, request in zip(numbers, requests, strict=True) if request.mass]:
            total = torch.stack(self._fetch("mass", asked)).sum(dim=0)
            total = (total / (self.tensor_parallel * self.blocks)).numpy()
            lengths = [len(request.ids) for request in requests if request.mass]
            masses = tuple(np.split(total, [*accumulate(lengths)][:-1]))
        parts = np.split(scores, [*accumulate(counts)][:-1])
        return Readings(self, tuple(numbers), tuple(parts), masses)

    def states(self, numbers: Sequence[int], positions: Sequence[int]) -> Tensor:
        """States [place, layer, width] of requests of the last reading at these positions."""
        return torch.cat(self._fetch("states", [*numbers], [*positions]), dim=1)

    def _fetch(self, name: str, *args: Any) -> list[Tensor]:
        """Fetch a tensor from each process that has one."""
        found = self._llm.collective_rpc(f"anchorscope_{name}", args=args)
        return [load(each)[name] for each in found if each]

    def _generate(self, prompts: Sequence[Sequence[int]], params: Any) -> list[Any]:
        given = [{"prompt_token_ids": [*ids]} for ids in prompts]
        return self._llm.generate(given, params, use_tqdm=False)


def _arguments(request: ReadRequest) -> dict[str, Any]:
    """The arguments of a request as the recorder takes them: plain lists and numbers."""
    values = {name: value for name, value in vars(request).items() if name != "ids"}
    return {n: [*value] if isinstance(value, tuple) else value for n, value in values.items()}


def find_vllm() -> Any:
    """Import vLLM; a UserError where it is missing, or of a version that was not tried."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        raise UserError(
            "--engine vllm needs vLLM, and it is not installed: pip install 'anchorscope[vllm]', "
            "on a machine with a GPU."
        ) from error
    if ".".join(vllm.__version__.split(".")[:2]) != TESTED:
        raise UserError(
            f"vLLM {vllm.__version__} is installed, and the knockout was tried with {TESTED}. "
            "Install that one: pip install 'anchorscope[vllm]'."
        )
    return vllm
