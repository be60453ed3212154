"""A server with the interface of `VllmServer` that computes by transformers alone, row by row.

Each row goes through eager attention by itself; each block has a mask of its own, made by a plain
loop over the edges that the request names. Nothing of the engine is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from anchorscope.engine_vllm import Readings, ReadRequest, WrittenAnswer


def changes(request: ReadRequest, block: int, query: int, key: int) -> bool:
    """Whether a request changes the edge from a query to a key in a block, counted from 0."""
    if request.blocks is not None and not request.blocks[0] <= block < request.blocks[1]:
        return False
    if key not in request.keys:
        return False
    if request.queries is not None:
        return query in request.queries
    return query >= request.begin and query not in request.keys


class ReferenceServer:
    """Answers, states, scores and attention mass of a model's folder, one row at a time."""

    def __init__(self, model: str, *, dtype: torch.dtype = torch.float32, **_: Any) -> None:
        self.lm: Any = AutoModelForCausalLM.from_pretrained(
            model, dtype=dtype, attn_implementation="eager"
        ).eval()
        self.layers: nn.ModuleList = self.lm.model.layers
        self.device, self.blocks = torch.device("cpu"), len(self.layers)
        self._states: dict[int, Tensor] = {}  # of the last reading [position, block, width]
        self._numbers = count(1000)
        self.requests: list[ReadRequest] = []  # all that were ever read

    def write(
        self, prompts: Sequence[Sequence[int]], *, stop_ids: Sequence[int], limit: int
    ) -> list[WrittenAnswer]:
        answers = []
        for prompt in prompts:
            ids: list[int] = []
            while len(ids) < limit:
                logits, _, _ = self._pass(ReadRequest(ids=(*prompt, *ids)))
                token = int(logits[-1].argmax())
                if token in stop_ids:
                    break
                ids.append(token)
            answers.append(WrittenAnswer(tuple(ids), len(ids) < limit))
        return answers

    def read(self, requests: Sequence[ReadRequest]) -> Readings:
        self._states, scores, masses = {}, [], []
        self.requests += requests
        numbers = tuple(next(self._numbers) for _ in requests)
        for number, request in zip(numbers, requests, strict=True):
            logits, states, weights = self._pass(request)
            self._states[number] = states
            begin, rows = len(request.ids) - request.scored, []
            for at in range(begin, len(request.ids)):
                chances, own = logits[at - 1].double().softmax(-1), request.ids[at]
                rank = 1 + (chances > chances[own]).sum()
                entropy = torch.special.entr(chances).sum()
                rows.append([chances[own].log(), rank, entropy, chances.argmax() == own])
            scores.append(np.array(rows, np.float32).reshape(-1, 4))
            if request.mass:
                masses.append(weights[:, :, -1].mean(dim=(0, 1)).numpy())
        return Readings(self, numbers, tuple(scores), tuple(masses))  # type: ignore[arg-type]

    def states(self, numbers: Sequence[int], positions: Sequence[int]) -> Tensor:
        pairs = zip(numbers, positions, strict=True)
        return torch.stack([self._states[number][position] for number, position in pairs])

    def _pass(self, request: ReadRequest) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [position, token], states [position, block, width], weights of each block."""
        size, states, hooks = len(request.ids), [], []
        added = -torch.inf if request.added is None else request.added
        for number, layer in enumerate(self.layers):
            mask = torch.full((size, size), -torch.inf).triu(1)
            for key in request.keys:
                mask[[q for q in range(key, size) if changes(request, number, q, key)], key] += (
                    added
                )
            hooks.append(layer.register_forward_pre_hook(_masked(mask), with_kwargs=True))
            hooks.append(layer.register_forward_hook(_kept(states)))
        with torch.no_grad():
            out = self.lm(
                torch.tensor([request.ids]), use_cache=False, output_attentions=request.mass
            )
        for hook in hooks:
            hook.remove()
        weights = torch.stack(out.attentions)[:, 0] if request.mass else torch.empty(0)
        return out.logits[0], torch.stack(states, dim=1), weights


def _masked(mask: Tensor) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"attention_mask": mask[None, None]}

    return hook


def _kept(states: list[Tensor]) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        states.append((output[0] if isinstance(output, tuple) else output)[0])

    return hook


@contextmanager
def served() -> Iterator[None]:
    """Whatever is loaded with the engine vllm has a `ReferenceServer`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anchorscope.models.load.VllmServer", ReferenceServer)
        patch.setattr("anchorscope.models.load.find_vllm", lambda: None)
        yield
