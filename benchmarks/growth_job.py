"""The main job at any size, on a random model: what `growth.py` measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.decode import Written, write_answers
from anchorscope.engine.interventions import Intervention, TokenPositions
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import KNOCKOUT
from anchorscope.engine.read import read_rows
from anchorscope.engine.rows import Row, read_batch, row_for
from anchorscope.engine.transfer import to_host
from anchorscope.engine.trunk import Trunk, grow_trunk, read_prefix
from anchorscope.models import Model, load_model

# Small enough for minutes on two cores, large enough that arithmetic, not Python, takes the time.
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 192,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 4096,
    "max_position_embeddings": 1024,
}


class NoTokenizer:
    """The benchmark works on token ids."""

    is_fast = True


@dataclass(frozen=True)
class Size:
    """How much is asked for; lengths in tokens."""

    questions: int = 64
    prefix: int = 96
    question: int = 24
    answer: int = 6
    interventions: tuple[Intervention, ...] = (KNOCKOUT,)

    @property
    def subject(self) -> range:
        """The subject's positions: four tokens (fewer in a short question) from a third of it."""
        start = self.prefix + self.question // 3
        return range(start, start + min(4, self.question // 4))


def random_model() -> Model:
    """A small Llama with random weights on the device that is there."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(**CONFIG), dtype=torch.float32)
    lm.config.name_or_path = "random"
    return load_model(lm.to(device).eval(), tokenizer=NoTokenizer())


def make_prompts(size: Size) -> list[tuple[int, ...]]:
    """Random tokens: a prefix that all share, and a question each."""
    generator = torch.Generator().manual_seed(0)
    prefix = torch.randint(CONFIG["vocab_size"], (size.prefix,), generator=generator)
    turns = torch.randint(
        CONFIG["vocab_size"], (size.questions, size.question), generator=generator
    )
    return [tuple(prefix.tolist() + turn) for turn in turns.tolist()]


def mark(
    size: Size, prompt: tuple[int, ...], answer: tuple[int, ...], number: int
) -> TokenPositions:
    return TokenPositions(
        id=str(number),
        ids=prompt + answer,
        answer_at=len(prompt),
        question_tokens=tuple(range(size.prefix, len(prompt))),
        exact_question=tuple(size.subject),
        mass=(0.0,) * (len(prompt) + len(answer)),
    )


def widened(of: TokenPositions, by: int) -> TokenPositions:
    """The same with a subject that begins so many tokens earlier: a row of the same length."""
    first, last = of.exact_question[0], of.exact_question[-1]
    return replace(of, exact_question=tuple(range(first - by, last + 1)))


def job(model: Model, size: Size) -> None:
    """Answers, clean states and states under each intervention, brought to the host and let go."""
    budget = Budget.of(model)
    how = {"blocks": model.blocks, "turn_at": size.prefix, "seed": 0}
    none = torch.tensor([-1], device=model.device)
    prompts = make_prompts(size)
    with Lease(model) as lease:
        prefix = read_prefix(lease, prompts[0][: size.prefix])

        def answer(batch: list[tuple[int, ...]]) -> Written:
            return write_answers(lease, prefix, batch, stop_ids=none, limit=size.answer)

        for batch, written in in_batches(
            prompts,
            answer,
            length=lambda p: size.question,
            then=lambda p: p,
            budget=budget,
            rows=prefix.rows_within(budget.written, room=size.question + size.answer),
        ):
            to_host(written.states[:, -1])
            lines = enumerate(zip(batch, written.lines, strict=True))
            marked = [(n, mark(size, prompt, line.token_ids, n)) for n, (prompt, line) in lines]
            # Rows that are the same would be read once.
            rows = [
                row_for(widened(m, k) if cut.keys == "exact" else m, n, cut, **how)
                for n, m in marked
                for k, cut in enumerate(size.interventions)
            ]
            for _, states in read_rows(lease, written.trunk, rows, budget=budget):
                to_host(states)


@dataclass(frozen=True)
class Windows:
    """Questions with made-up answers, ready to be read under windows of blocks."""

    lease: Lease
    trunk: Trunk
    rows: Sequence[Row]
    width: int

    def sweep(self) -> Tensor:
        """States [row, layer, width], every window in one pass."""
        found = {}
        for batch, states in read_rows(
            self.lease, self.trunk, self.rows, budget=Budget.of(self.lease.model)
        ):
            found |= {row.number: state for row, state in zip(batch, states, strict=True)}
        return torch.stack([found[row.number] for row in self.rows])

    def passes(self) -> Tensor:
        """The same states by a pass for each window, each cut in its own blocks."""
        layers = []
        for k in range(self.lease.model.blocks):
            blocks = range(max(0, k + 1 - self.width), k + 1)
            cut = [replace(row, blocks=blocks) for row in self.rows]
            layers.append(read_batch(self.lease, self.trunk, cut)[:, k])
        return torch.stack(layers, dim=1)


def make_windows(lease: Lease, size: Size, width: int) -> Windows:
    """The rows of these questions under `window:width`, on their trunk."""
    prompts = make_prompts(size)
    prefix = read_prefix(lease, prompts[0][: size.prefix])
    trunk = grow_trunk(lease, prefix, prompts, room=0, head=False).trunk
    window = Intervention(name="window", layers=f"window:{width}")
    how = {"blocks": lease.model.blocks, "turn_at": size.prefix, "seed": 0}
    answer = tuple(range(1, size.answer + 1))
    marked = [mark(size, prompt, answer, n) for n, prompt in enumerate(prompts)]
    rows = [row_for(m, n, window, **how) for n, m in enumerate(marked)]
    return Windows(lease, trunk, rows, width)
