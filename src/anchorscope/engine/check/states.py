"""Check that hidden states written by another program are this model's, row by row.

The files are safetensors as vLLM's hidden-states connector writes them, one file a row: `token_ids`
[token] and `hidden_states` [token, layer, width], layer k after block k, before the final norm. A
sample of the files is compared with plain passes of the model over the same tokens. Where states
differ, each known fault is tried in turn, and the one that explains them is named.
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
from anchorscope.engine.lease import apart
from anchorscope.errors import UserError, user_path
from anchorscope.models import Model

_SAMPLE = 16  # files, from both ends: those of one batch are neighbours
_LONGEST = 1024  # tokens of a row that are read
_LAST = 32  # tokens that are compared: prompts may all begin alike
_ALIKE = 0.1  # mean share of a value by which states may differ: 0.02 in bfloat16, 1 for other rows
_ODD = 0.9  # share of the tokens that must agree: rounding moves an outlier further
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
    """The tokens and states of one file, and the states of the model itself."""

    name: str
    ids: tuple[int, ...]
    states: Tensor  # [token, layer, width]
    own: Tensor  # [token, 0..L and the last one behind the final norm, width]


def check_states(model: Model, folder: str | Path) -> Iterator[Check]:
    """Check the states in a folder; a fault that explains a difference fails its check."""
    files = states_files(folder)
    half = _SAMPLE // 2
    chosen = files if len(files) <= _SAMPLE else [*files[:half], *files[-half:]]
    rows = [_read(model, file) for file in chosen]
    kept = rows[0].states.shape[1]
    if any(row.states.shape[1] != kept for row in rows):
        raise UserError(f"The files of {folder} hold unlike numbers of layers. Give one kind.")
    yield Check(
        "states can be read", True, f"{len(rows)} of {len(files)} files, {kept} layers each"
    )
    layers = _layers(rows, model.blocks)
    faults: dict[str, list[str]] = {name: [] for name in _FAULTS}
    furthest, strange = 0.0, []
    bos, usual = model.tokenizer.bos_token_id, model.tokenizer("a")["input_ids"]
    for row in rows:
        if bos is not None and usual[0] == bos and row.ids[0] != bos:
            faults["bos"].append(f"{row.name} has no {model.tokenizer.bos_token!r}")
        if (other := _other_dtype(row.states, model.dtype)) is not None:
            faults["dtype"].append(f"{row.name}: {other}")
        explanations = list(_explanations(model, row, rows, layers))
        fault, detail, far = min(explanations, key=lambda found: found[2])
        if far > _ALIKE:
            strange.append(row.name)
        elif fault:
            faults[fault].append(f"{row.name}: {detail}")
        furthest = max(furthest, explanations[0][2])
    for fault, name in _FAULTS.items():
        where = faults[fault]
        more = f", and {len(where) - 1} more" if len(where) > 1 else ""
        yield Check(name, not where, where[0] + more if where else f"{len(rows)} rows")
    wrong = any(faults[fault] for fault in ("rows", "positions", "layers", "norm"))
    whole = layers == list(range(layers[0], layers[-1] + 1))
    named = f"{layers[0]} to {layers[-1]}" if whole else ", ".join(map(str, layers))
    seen = f"layers {named}, furthest {furthest:.1e}"
    if strange:
        seen = (
            f"no fault known here explains {strange[0]}: other weights, or rows not in this folder"
        )
    yield Check("states are this model's", not strange and not wrong, seen)


def _explanations(
    model: Model, row: _Row, rows: Sequence[_Row], layers: list[int]
) -> Iterator[tuple[str, str, float]]:
    """Yield each fault, a detail, and the distance of the states from the model's with that fault.

    The first is no fault, "".
    """
    right = row.own[:, layers]
    yield "", "", _distance(row.states, right)
    for shift in (-1, 1):
        far = _distance(row.states, right, shift)
        yield "positions", f"each is that of the token {shift:+}", far
        moved = [layer + shift for layer in layers]
        if min(moved) >= 0 and max(moved) <= model.blocks:
            detail = f"layer {layers[0]} holds layer {moved[0]}"
            yield "layers", detail, _distance(row.states, row.own[:, moved])
    normed = row.own[:, [*layers[:-1], -1]]
    yield "norm", "the last layer is behind the final norm", _distance(row.states, normed)
    for other in rows:
        if other is not row:
            far = _distance(row.states, other.own[:, layers])
            yield "rows", f"it holds the states of {other.name}", far
    bos = model.tokenizer.bos_token_id
    if bos is not None and row.ids[0] != bos:
        far = _distance(row.states, _own_states(model, (bos, *row.ids))[:, layers], 1)
        yield "bos", "states were read with the first token", far
    elif bos is not None and len(row.ids) > 1:
        far = _distance(row.states[1:], _own_states(model, row.ids[1:])[:, layers])
        yield "bos", "states were read without the first token", far


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


def _layers(rows: Sequence[_Row], blocks: int) -> list[int]:
    """The layers that the files hold: all, or the nearest ones by the median over rows."""
    kept = rows[0].states.shape[1]
    if kept >= blocks:
        return list(range(blocks + 1))[-kept:]
    votes = []
    for row in rows:
        end = min(len(row.states), len(row.own))
        pairs = (apart(row.states[:end, k : k + 1], row.own[:end, :-1]) for k in range(kept))
        votes.append([int(far.median(dim=0).values.argmin()) for far in pairs])
    return torch.tensor(votes).median(dim=0).values.tolist()


def _other_dtype(states: Tensor, dtype: torch.dtype) -> str | None:
    """Describe how the states' dtype differs from the model's; None where it does not."""
    if not states.isfinite().all():
        return f"{str(states.dtype)[6:]} with values that are not finite"
    if states.dtype != dtype:
        return f"{str(states.dtype)[6:]}, the model in {str(dtype)[6:]}"
    if dtype == torch.float32:
        half = (kind for kind in _HALVES if torch.equal(states, states.to(kind).float()))
        return next((f"float32 that holds {str(kind)[6:]} values" for kind in half), None)
    return None


def states_files(folder: str | Path) -> list[Path]:
    """The files of a folder of states; a UserError where there are none."""
    files = sorted(user_path(str(folder)).glob("*.safetensors"))
    if not files:
        raise UserError(
            f"The folder {folder} holds no .safetensors files. Give one as vLLM's hidden-states "
            "connector writes it: a file a row, with token_ids and hidden_states."
        )
    return files


def read_tensors(file: Path, *names: str) -> list[Tensor]:
    """Read tensors of a file of states; a UserError where it lacks one, or is not whole."""
    try:
        with safe_open(file, "pt") as tensors:
            return [tensors.get_tensor(name) for name in names]
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{file} could not be read: {error}. Needed: token_ids [token] and hidden_states "
            "[token, layer, width]. Wait until it is written to its end."
        ) from error


def read_states_file(model: Model, file: Path) -> tuple[tuple[int, ...], Tensor]:
    """Read a file's tokens and states [token, layer, width]; a UserError if they do not fit."""
    ids, states = read_tensors(file, "token_ids", "hidden_states")
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
    return tuple(ids.tolist()), states


def _read(model: Model, file: Path) -> _Row:
    """Read a file's first tokens and states, and the model's own states of these tokens."""
    ids, states = read_states_file(model, file)
    kept, cut = ids[:_LONGEST], len(states) - max(0, len(ids) - _LONGEST)
    return _Row(file.name, kept, states[:cut], _own_states(model, kept))
