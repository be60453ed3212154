"""Check hidden states that another program wrote: are they the model's, row by row?

Read are safetensors as vLLM's hidden-states connector writes them, one file a row: `token_ids`
[token] and `hidden_states` [token, layer, width], layer k after block k, before the final norm. A
sample of the files is compared with plain passes of the model over the same tokens. Where states
are others, each known fault is tried in turn, and the one that explains them is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from anchorscope.engine.check.checks import Check
from anchorscope.engine.check.stock import stock_pass
from anchorscope.engine.packs import apart
from anchorscope.errors import UserError, user_path
from anchorscope.models import Model

_SAMPLE = 16  # files, from both ends: those of one batch are neighbours
_LONGEST = 1024  # tokens of a row that are read
_LAST = 32  # tokens that are compared: prompts may all begin alike
_ALIKE = 0.1  # mean share of a value by which states may differ: 0.02 in bfloat16, 1 for other rows
_ODD = 0.9  # of the tokens must agree: rounding moves an odd one further
_HALVES = (torch.bfloat16, torch.float16)
_FAULTS = {
    "rows": "each row has its own states, none of another row",
    "positions": "states are at their own token, not one beside it",
    "layers": "layers are counted from the first block, none is shifted",
    "norm": "the last layer is before the final norm",
    "bos": "rows begin with the token that the tokenizer puts in front",
    "dtype": "states are in the model's dtype",
}


@dataclass(frozen=True)
class _Row:
    """The tokens and states of one file."""

    name: str
    ids: tuple[int, ...]
    states: Tensor  # [token, layer, width]


def check_states(model: Model, folder: str | Path) -> Iterator[Check]:
    """Each check of the states in a folder; a fault that explains them fails the check of it."""
    rows, total = _read_sample(model, user_path(str(folder)))
    kept = rows[0].states.shape[1]
    yield Check("states can be read", True, f"{len(rows)} of {total} files, {kept} layers each")
    own = [_own_states(model, row.ids) for row in rows]
    layers = _layers(rows, own, model.blocks)
    faults: dict[str, list[str]] = {name: [] for name in _FAULTS}
    furthest, strange = 0.0, []
    bos, usual = model.tokenizer.bos_token_id, model.tokenizer("a")["input_ids"]
    for row, mine in zip(rows, own, strict=True):
        if bos is not None and usual[0] == bos and row.ids[0] != bos:
            faults["bos"].append(f"{row.name} has no {model.tokenizer.bos_token!r}")
        if (other := _other_dtype(row.states, model.dtype)) is not None:
            faults["dtype"].append(f"{row.name}: {other}")
        found = dict(_explanations(model, row, mine, rows, own, layers))
        name, far = min(found.items(), key=lambda pair: pair[1])
        fault, _, detail = name.partition(":")
        if far > _ALIKE:
            strange.append(row.name)
        elif fault:
            faults[fault].append(f"{row.name}: {detail}")
        furthest = max(furthest, found[""])
    for fault, name in _FAULTS.items():
        where = faults[fault]
        more = f", and {len(where) - 1} more" if len(where) > 1 else ""
        yield Check(name, not where, where[0] + more if where else f"{len(rows)} rows")
    wrong = any(faults[fault] for fault in ("rows", "positions", "layers", "norm"))
    seen = f"layers {_in_words(layers)}, furthest {furthest:.1e}"
    if strange:
        seen = (
            f"no fault known here explains {strange[0]}: other weights, or rows not in this folder"
        )
    yield Check("states are this model's", not strange and not wrong, seen)


def _explanations(
    model: Model,
    row: _Row,
    mine: Tensor,
    rows: Sequence[_Row],
    own: Sequence[Tensor],
    layers: Sequence[int],
) -> Iterator[tuple[str, float]]:
    """How far a row's states are from what each fault would make of this model's; "" is none."""
    right = mine[:, layers]
    yield "", _distance(row.states, right)
    for shift in (-1, 1):
        yield f"positions:each is that of the token {shift:+}", _distance(row.states, right, shift)
        moved = [layer + shift for layer in layers]
        if min(moved) >= 0 and max(moved) <= model.blocks:
            name = f"layers:layer {layers[0]} holds layer {moved[0]}"
            yield name, _distance(row.states, mine[:, moved])
    normed = right.clone()
    normed[:, -1] = mine[:, -1]
    yield "norm:the last layer is behind the final norm", _distance(row.states, normed)
    for other, states in zip(rows, own, strict=True):
        if other is not row:
            far = _distance(row.states, states[:, layers])
            yield f"rows:it holds the states of {other.name}", far
    bos = model.tokenizer.bos_token_id
    if bos is not None:
        without = row.ids[0] == bos
        ids = row.ids[1:] if without else (bos, *row.ids)
        if ids:
            again = _own_states(model, ids)[:, layers]
            first = f"were read {'without' if without else 'with'} the first token"
            states = row.states[len(row.states) - len(ids) :] if without else row.states
            yield f"bos:states {first}", _distance(states, again, 0 if without else 1)


def _distance(states: Tensor, own: Tensor, shift: int = 0) -> float:
    """Compare states [token, layer, width] with the model's own ones `shift` tokens later."""
    begin, stop = max(0, -shift), min(len(states), len(own) - shift)
    if abs(len(states) - len(own)) > abs(shift) or stop <= begin:
        return torch.inf
    begin = max(begin, stop - _LAST)
    far = apart(states[begin:stop], own[begin + shift : stop + shift])
    return float(far.quantile(_ODD, dim=0).max())


def _own_states(model: Model, ids: Sequence[int]) -> Tensor:
    """The states of a row by transformers' own attention, [token, layer, width].

    The embedding first, then every layer, then the last one behind the final norm. Independent of
    the engine, which `check_model` compares with it.
    """
    stock = stock_pass(model, [ids])
    ends = stock.hidden[0][0][:, None], stock.hidden[-1][0][:, None]
    return torch.cat([ends[0], stock.states[0], ends[1]], dim=1).float().cpu()


def _layers(rows: Sequence[_Row], own: Sequence[Tensor], blocks: int) -> list[int]:
    """The layers that the files hold: all of them, or those that most rows are nearest to."""
    kept = rows[0].states.shape[1]
    if kept >= blocks:
        return list(range(blocks + 1))[-kept:]
    votes = []
    for row, mine in zip(rows, own, strict=True):
        end = min(len(row.states), len(mine))
        pairs = (apart(row.states[:end, k : k + 1], mine[:end, :-1]) for k in range(kept))
        votes.append([int(far.median(dim=0).values.argmin()) for far in pairs])
    return torch.tensor(votes).median(dim=0).values.tolist()


def _other_dtype(states: Tensor, dtype: torch.dtype) -> str | None:
    """In words, how states are in another dtype than the model; None where they are not."""
    if not states.isfinite().all():
        return f"{str(states.dtype)[6:]} with values that are not finite"
    if states.dtype != dtype:
        return f"{str(states.dtype)[6:]}, the model in {str(dtype)[6:]}"
    if dtype == torch.float32:
        half = (kind for kind in _HALVES if torch.equal(states, states.to(kind).float()))
        return next((f"float32 that holds {str(kind)[6:]} values" for kind in half), None)
    return None


def _in_words(layers: Sequence[int]) -> str:
    """Layers for a message: "1 to 4", or "2, 4"."""
    whole = list(layers) == list(range(layers[0], layers[-1] + 1))
    return f"{layers[0]} to {layers[-1]}" if whole else ", ".join(map(str, layers))


# --- The files ---


def _read_sample(model: Model, folder: Path) -> tuple[list[_Row], int]:
    """Rows from both ends of a folder, and how many files it has."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(
            f"The folder {folder} holds no .safetensors files. Give one as vLLM's hidden-states "
            "connector writes it: a file a row, with token_ids and hidden_states."
        )
    half = _SAMPLE // 2
    chosen = files if len(files) <= _SAMPLE else [*files[:half], *files[-half:]]
    rows = [_read(model, file) for file in chosen]
    counts = {row.states.shape[1] for row in rows}
    if len(counts) > 1:
        raise UserError(
            f"The files of {folder} hold {sorted(counts)} layers. Give one kind of them."
        )
    return rows, len(files)


def _read(model: Model, file: Path) -> _Row:
    """The row of a file; a UserError where it is no such file, or of another model."""
    try:
        with safe_open(file, "pt") as tensors:
            ids, states = (tensors.get_tensor(name) for name in ("token_ids", "hidden_states"))
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{file} could not be read: {error}. Needed: token_ids [token] and hidden_states "
            "[token, layer, width]. Wait until it is written to its end."
        ) from error
    size: Any = model.lm.config.get_text_config().vocab_size
    width, most = model.parts.width, model.blocks + 1
    right = ids.dim() == 1 and len(ids) and not ids.is_floating_point()
    right = right and states.dim() == 3 and states.is_floating_point() and len(states) > 0
    if not right or states.shape[2] != width or not 0 < states.shape[1] <= most:
        raise UserError(
            f"{file} has token_ids {list(ids.shape)} and hidden_states {list(states.shape)}. "
            f"{model.name} needs [token] and [token, layer, {width}], up to {most} layers."
        )
    if int(ids.min()) < 0 or int(ids.max()) >= size:
        raise UserError(f"{file} holds tokens that {model.name} lacks: it has {size}.")
    kept = tuple(ids[:_LONGEST].tolist())
    cut = len(states) - max(0, len(ids) - _LONGEST)
    return _Row(file.name, kept, states[:cut])
