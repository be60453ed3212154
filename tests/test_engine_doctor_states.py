"""Hidden states that another program wrote: each way to be wrong is named by `doctor --states`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit.tiny import tiny_lm, tiny_tokenizer
from safetensors.torch import save_file

from anchorscope.engine.check import check_states
from anchorscope.errors import UserError
from anchorscope.models import Model, load_model

ROWS = [tuple(torch.randint(20, 250, (18 + n % 3,)).tolist()) for n in range(6)]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(tiny_lm("qwen3"), tokenizer=tiny_tokenizer())


@torch.no_grad()
def plain(model: Model, ids) -> torch.Tensor:
    """States [token, layer, width] by transformers alone, 0 to L, and the last one normed."""
    kept = []
    hook = model.lm.model.norm.register_forward_pre_hook(lambda _, args: kept.append(args[0][0]))
    out = model.lm(torch.tensor([ids]), output_hidden_states=True).hidden_states
    hook.remove()
    return torch.stack([*(layer[0] for layer in out[:-1]), *kept, out[-1][0]], dim=1)


def write(folder: Path, rows, states) -> Path:
    """Files as vLLM's hidden-states connector writes them."""
    folder.mkdir()
    for n, (ids, hidden) in enumerate(zip(rows, states, strict=True)):
        tensors = {"token_ids": torch.tensor(ids), "hidden_states": hidden.contiguous()}
        save_file(tensors, folder / f"{n}-a.safetensors")
    return folder


def failed(model: Model, folder: Path) -> dict[str, str]:
    return {check.name: check.seen for check in check_states(model, folder) if not check.ok}


def kept(layers: slice | list[int]):
    return lambda model, ids: plain(model, ids)[:, layers]


@pytest.mark.parametrize(
    ("layers", "seen"), [(slice(1, 5), "1 to 4"), (slice(0, 5), "0 to 4"), ([2, 4], "2, 4")]
)
def test_own_states_pass_whatever_layers_are_kept(model, tmp_path, layers, seen):
    folder = write(tmp_path / "s", ROWS, [kept(layers)(model, ids) for ids in ROWS])
    checks = list(check_states(model, folder))
    assert all(check.ok for check in checks), checks
    assert checks[-1].seen.startswith(f"layers {seen},")


FAULTS = {
    "rows": (lambda all: [all[3], *all[1:3], all[0], *all[4:]], "holds the states of 3-a"),
    "positions": (lambda all: [x.roll(1, dims=0) for x in all], "the token -1"),
    "later": (lambda all: [x.roll(-1, dims=0) for x in all], "the token +1"),
    "layers": (lambda all: all, "layer 1 holds layer 0"),
    "norm": (lambda all: all, "behind the final norm"),
    "dtype": (lambda all: [x.bfloat16() for x in all], "bfloat16, the model in float32"),
    "rounded": (lambda all: [x.half().float() for x in all], "float32 that holds float16 values"),
}
KEPT = {"layers": slice(0, 4), "norm": [1, 2, 3, 5]}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_and_no_other(model, tmp_path, fault):
    change, message = FAULTS[fault]
    states = [plain(model, ids)[:, KEPT.get(fault, slice(1, 5))] for ids in ROWS]
    found = failed(model, write(tmp_path / "s", ROWS, change(states)))
    found.pop("states are this model's", None)
    (seen,) = found.values()
    assert message in seen


def test_missing_first_token_is_named(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<end>")
    from tokenizers.processors import TemplateProcessing

    tokenizer.bos_token = "<end>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<end> $A", special_tokens=[("<end>", 0)]
    )
    model = load_model(tiny_lm("llama"), tokenizer=tokenizer)
    name = "rows begin with the token that the tokenizer puts in front"
    begun = [(0, *ids) for ids in ROWS]
    whole, bare = ([plain(model, ids)[:, 1:5] for ids in rows] for rows in (begun, ROWS))
    assert not failed(model, write(tmp_path / "right", begun, whole))
    assert "has no '<end>'" in failed(model, write(tmp_path / "bare", ROWS, bare))[name]
    padded = [torch.cat([x[:1], y]) for x, y in zip(whole, bare, strict=True)]
    seen = failed(model, write(tmp_path / "read", begun, padded))[name]
    assert "were read without the first token" in seen


def test_other_weights_are_explained_by_nothing(model, tmp_path):
    other = load_model(tiny_lm("qwen3", seed=1), tokenizer=tiny_tokenizer())
    folder = write(tmp_path / "s", ROWS, [plain(other, ids)[:, 1:5] for ids in ROWS])
    assert failed(model, folder).keys() == {"states are this model's"}


def test_folders_that_are_no_such_states_are_refused(model, tmp_path):
    with pytest.raises(UserError, match="holds no"):
        list(check_states(model, tmp_path))
    for n, (ids, shape) in enumerate(
        [((1, 2), (2, 4, 9)), ((1, 2), (2, 9, 48)), ((999,), (1, 4, 48))]
    ):
        with pytest.raises(UserError, match=r"needs|lacks"):
            list(check_states(model, write(tmp_path / str(n), [ids], [torch.zeros(shape)])))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "0.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(UserError, match="could not be read"):
        list(check_states(model, tmp_path / "torn"))


def test_doctor_says_which_check_of_the_states_failed(model, tmp_path, cli):
    model.lm.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    states = [plain(model, ids)[:, 1:5] for ids in ROWS]
    for name, given in (("good", states), ("bad", states[::-1])):
        folder = write(tmp_path / name, ROWS, given)
        named = ("doctor", "--model", tmp_path / "model", "--dtype", "float32")
        code, out, _ = cli(*named, "--states", folder)
        ends = "checks passed: this model can be run." if name == "good" else "begin with no."
        assert code == (0 if name == "good" else 2) and out.strip().endswith(ends)
