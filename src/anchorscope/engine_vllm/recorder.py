"""Record states and outputs of requests inside vLLM's workers, and fill the tables of edges.

A request names in `SamplingParams.extra_args` what it cuts and which of its positions are read.
Everything is found by request and position, never by place in a batch: vLLM reorders its batches,
splits prompts into chunks, and computes a preempted request again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from anchorscope.engine_vllm.plugin import ARGUMENT

_AT_ONCE = 256  # contexts whose logits are computed together
_FAR = -1e4  # the exponential of anything below is 0


@dataclass(frozen=True)
class EdgeTables:
    """The edges that each request of a step changes; rows are the requests of the step."""

    is_key: Tensor  # bool [request, position]
    is_query: Tensor  # bool [request, position]: the queries that no longer see these keys
    blocks: Tensor  # bool [block, request]: where
    active: Tensor  # bool [request]: in the block that is computed now
    added: Tensor  # [request]: added to the scores, -inf for a cut


@dataclass
class _Step:
    """What to take from one step of the engine."""

    states: list[tuple[int, int]] = field(default_factory=list)  # request number and position
    state_tokens: list[int] = field(default_factory=list)  # of the batch
    scored: list[tuple[int, int]] = field(default_factory=list)  # request number, answer token
    contexts: list[int] = field(default_factory=list)  # tokens that those are predicted from
    targets: list[int] = field(default_factory=list)


class Recorder:
    """Take states, log-probabilities and attention mass out of a worker's forward passes."""

    def __init__(self) -> None:
        self._runner: Any = None
        self.mass_rows: list[tuple[int, int, Tensor]] = []  # token, row of the step, sum
        self.forget()

    def attach(self, runner: Any) -> dict[str, Any]:
        """Hook the model of a vLLM runner; return the blocks that this process holds."""
        self._runner, self.model = runner, runner.get_model()
        config = runner.model_config.hf_text_config
        lists = (part for part in self.model.modules() if isinstance(part, nn.ModuleList))
        blocks = next(each for each in lists if len(each) == config.num_hidden_layers)
        own = {
            n: block for n, block in enumerate(blocks) if next(block.parameters(), None) is not None
        }
        self._place = {number: place for place, number in enumerate(own)}
        device, rows = runner.device, runner.max_num_reqs
        # Whole pages: the rule is also called for the unused end of a request's last page.
        length = -(-runner.max_model_len // 128) * 128
        flags = partial(torch.zeros, dtype=torch.bool, device=device)
        self._tables = EdgeTables(
            flags(rows, length), flags(rows, length), flags(config.num_hidden_layers, rows),
            flags(rows), torch.zeros(rows, device=device),
        )  # fmt: skip
        self._width, self._whole = config.hidden_size, True
        for number, block in own.items():
            block.register_forward_hook(partial(self._keep_state, number))
        self.model.register_forward_hook(self._end_step)
        return {"blocks": [*own]}

    def forget(self) -> None:
        """Drop everything that was recorded."""
        self._states: dict[tuple[int, int], tuple[Tensor, int]] = {}
        self._scores: dict[tuple[int, int], Tensor] = {}
        self._mass: dict[int, Tensor] = {}
        self._step = _Step()

    # --- One step ---

    def begin_step(self, batch: Any) -> EdgeTables | None:
        """Prepare a step from vLLM's attention metadata; return the tables where edges change.

        Called once for each kind of attention layer, with the same result.
        """
        self._step, self.mass_rows = _Step(), []
        runner = self._runner
        if runner is None:
            return None
        ids = runner.input_batch.req_ids[: batch.num_reqs]
        starts = batch.query_start_loc_cpu.tolist()
        cuts = []
        for row, id in enumerate(ids):
            request = runner.requests.get(id)
            params = getattr(request, "sampling_params", None)
            asked = ((params and params.extra_args) or {}).get(ARGUMENT)
            if asked is None:
                continue
            first = int(runner.input_batch.num_computed_tokens_cpu[row])
            self._plan(asked, request.prompt_token_ids, row, first, starts[row], starts[row + 1])
            if asked["keys"]:
                cuts.append((row, asked))
        return self._fill(cuts, len(ids)) if cuts else None

    def _plan(
        self, asked: dict[str, Any], ids: list[int], row: int, first: int, start: int, stop: int
    ) -> None:
        """Note what is taken from a request's tokens of this step, which begin at `first`."""
        step, number, last = self._step, asked["number"], first + stop - start
        for position in asked["positions"]:
            if first <= position < last:
                step.states.append((number, position))
                step.state_tokens.append(start + position - first)
        begin = len(ids) - asked["scored"]
        for position in range(begin, len(ids)):
            if first <= position - 1 < last:
                step.scored.append((number, position - begin))
                step.contexts.append(start + position - 1 - first)
                step.targets.append(ids[position])
        if asked["mass"] and first < len(ids) <= last:
            mass = torch.zeros(len(ids), device=self._tables.added.device)
            self._mass[number] = mass
            self.mass_rows.append((start + len(ids) - 1 - first, row, mass))

    def _fill(self, cuts: list[tuple[int, dict[str, Any]]], rows: int) -> EdgeTables:
        """Fill the tables for these requests; all others change no edge."""
        tables = self._tables
        blocks, length = len(tables.blocks), tables.is_key.shape[1]
        is_key, is_query = np.zeros((2, rows, length), dtype=bool)
        where, added = np.zeros((blocks, rows), dtype=bool), np.zeros(rows, dtype=np.float32)
        for row, asked in cuts:
            is_key[row, asked["keys"]] = True
            if asked["queries"] is None:
                is_query[row, asked["begin"] :] = True
                is_query[row, asked["keys"]] = False
            else:
                is_query[row, asked["queries"]] = True
            first, last = asked["blocks"] or (0, blocks)
            where[first:last, row] = True
            added[row] = -np.inf if asked["added"] is None else asked["added"]
        for table, values in (
            (tables.is_key[:rows], is_key),
            (tables.is_query[:rows], is_query),
            (tables.blocks[:, :rows], where),
            (tables.added[:rows], added),
        ):
            table.copy_(torch.from_numpy(values))
        # Where all blocks cut alike nothing is copied between them.
        self._whole = bool(np.all(where == where[:1]))
        tables.active[:rows].copy_(tables.blocks[0, :rows])
        return tables

    def begin_block(self, number: int) -> None:
        """Tell the rule which block is computed."""
        if self._runner is not None and not self._whole:
            self._tables.active.copy_(self._tables.blocks[number])

    def _keep_state(self, number: int, module: nn.Module, args: Any, output: Any) -> None:
        """Keep the state after a block at the chosen tokens: vLLM adds the residual later."""
        step = self._step
        if not step.state_tokens:
            return
        place = self._place[number]
        if place == 0:
            shape = (len(step.state_tokens), len(self._place), self._width)
            first = output[0] if isinstance(output, tuple) else output
            self._taken = torch.empty(shape, dtype=first.dtype, device=first.device)
            self._at = torch.tensor(step.state_tokens, device=first.device)
        parts = output if isinstance(output, tuple) else (output,)
        state = parts[0][self._at]
        if len(parts) > 1 and parts[1] is not None:
            state = state + parts[1][self._at]
        self._taken[:, place] = state

    def _end_step(self, module: nn.Module, args: Any, output: Any) -> None:
        """Move the step's states to main memory, and score its answer tokens."""
        step, self._step, self.mass_rows = self._step, _Step(), []
        if step.states:
            taken = self._taken.cpu()
            self._states |= {key: (taken, n) for n, key in enumerate(step.states)}
        if step.scored and isinstance(output, Tensor):  # the last stage of a pipeline
            scores = self._score(output, step)
            self._scores |= dict(zip(step.scored, scores, strict=True))

    def _score(self, hidden: Tensor, step: _Step) -> Tensor:
        """Log-probability, rank, entropy and likeliest token of each answer token, [token, 4]."""
        at, targets = (torch.tensor(x, device=hidden.device) for x in (step.contexts, step.targets))
        parts = []
        for some, own in zip(at.split(_AT_ONCE), targets.split(_AT_ONCE), strict=True):
            logits = self.model.compute_logits(hidden[some])
            if logits is None:  # vLLM gathers logits on one process of a tensor-parallel group
                parts.append(torch.full((len(some), 4), torch.nan))
                continue
            logits = logits.float()
            log_p = logits.log_softmax(dim=-1)
            chosen = log_p.gather(1, own[:, None])
            rank = (log_p > chosen).sum(dim=-1, keepdim=True) + 1
            entropy = -(log_p.exp() * log_p.clamp(min=_FAR)).sum(dim=-1, keepdim=True)
            best = log_p.argmax(dim=-1, keepdim=True) == own[:, None]
            parts.append(torch.cat([chosen, rank, entropy, best], dim=1).cpu())
        return torch.cat(parts)

    # --- What was recorded ---

    def states(self, numbers: list[int], positions: list[int]) -> Tensor:
        """States [place, block, width] of requests at these positions, of this process's blocks."""
        pairs = [self._states[key] for key in zip(numbers, positions, strict=True)]
        return torch.stack([taken[n] for taken, n in pairs])

    def scores(self, numbers: list[int], counts: list[int]) -> Tensor:
        """Scores [token, 4] of the last `counts` tokens of these requests, one after the other.

        Empty on a process without the model's head.
        """
        if not self._scores:
            return torch.empty(0, 4)
        pairs = [
            (n, token) for n, count in zip(numbers, counts, strict=True) for token in range(count)
        ]
        return torch.stack([self._scores[pair] for pair in pairs])

    def mass(self, numbers: list[int]) -> Tensor:
        """Attention from the last token to all, summed over this process's blocks, [position].

        One request after the other; the mean over this process's heads.
        """
        return torch.cat([self._mass[number].cpu() for number in numbers])


RECORDER = Recorder()  # of this process


class RecorderExtension:
    """Methods that vLLM adds to its worker; results are bytes, which any transport carries."""

    model_runner: Any

    def anchorscope_attach(self) -> dict[str, Any]:
        return RECORDER.attach(self.model_runner)

    def anchorscope_states(self, numbers: list[int], positions: list[int]) -> bytes:
        from vllm.distributed import get_tensor_model_parallel_rank

        if get_tensor_model_parallel_rank():  # every process of the group has the same states
            return b""
        return save({"states": RECORDER.states(numbers, positions)})

    def anchorscope_scores(self, numbers: list[int], counts: list[int]) -> bytes:
        return save({"scores": RECORDER.scores(numbers, counts)})

    def anchorscope_mass(self, numbers: list[int]) -> bytes:
        return save({"mass": RECORDER.mass(numbers)})

    def anchorscope_forget(self) -> None:
        RECORDER.forget()
