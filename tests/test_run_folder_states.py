"""A layer at a time from the shards of a run folder, against the arrays that went into them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anchorscope.errors import UserError
from anchorscope.run_folder.states import StateBank, save_states, shard_name
from anchorscope.run_folder.store import Store


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A folder of three shards, the second one of another dataset; and each question's states."""
    store = Store.open(tmp_path / "run", {"of": "a test"})
    draw, states = np.random.default_rng(0), {}
    for number, dataset in enumerate(("north", "south", "north")):
        ids = [f"{dataset}:{number}{row}" for row in range(4)]
        of = draw.normal(size=(4, 3, 5)).astype(np.float16)
        save_states(store, shard_name("clean", number), ids, of)
        states |= dict(zip(ids, of, strict=True))
    return store.path, states


def test_a_layer_is_read_in_the_order_asked_for(stored):
    path, states = stored
    ids = [id for id in reversed(states) if id.startswith("north")]
    bank = StateBank(path, [*ids, "north:none"])
    for layer in (1, 2, 3):
        read = bank.layer("clean", layer)
        assert np.array_equal(read[:-1], [states[id][layer - 1] for id in ids])
        assert np.isnan(read[-1]).all()


def test_a_shard_of_another_dataset_is_opened_once(stored):
    path, states = stored
    ids = [id for id in states if id.startswith("north")]
    bank = StateBank(path, ids)
    assert bank.layer("clean", 1).shape == (8, 5)
    (path / shard_name("clean", 1)).write_bytes(b"something else")
    assert np.array_equal(bank.layer("clean", 2), [states[id][1] for id in ids])
    with pytest.raises(UserError, match="00001"):
        StateBank(path, ids).layer("clean", 1)


def test_shards_of_two_precisions_are_read_in_the_wider_one(tmp_path):
    """A value beyond the range of halves makes its shard single; the shard before it is not."""
    store = Store.open(tmp_path / "run", {"of": "a test"})
    small, large = np.ones((2, 1, 3), np.float16), np.full((2, 1, 3), 1e5, np.float32)
    save_states(store, shard_name("clean", 0), ["a", "b"], small)
    save_states(store, shard_name("clean", 1), ["c", "d"], [large[:1], small[:1]])
    read = StateBank(store.path, list("abcde")).layer("clean", 1)
    assert read.dtype == np.float32
    assert np.array_equal(read[:4, 0], [1, 1, 1e5, 1]) and np.isnan(read[4]).all()


def test_states_in_several_arrays_are_those_in_one(tmp_path):
    store = Store.open(tmp_path / "run", {"of": "a test"})
    of = np.random.default_rng(1).normal(size=(5, 2, 3)).astype(np.float16)
    save_states(store, "one.safetensors", list("abcde"), of)
    save_states(store, "several.safetensors", list("abcde"), [of[:2], of[2:2], of[2:]])
    one, several = (store.file(f"{name}.safetensors").read_bytes() for name in ("one", "several"))
    assert one == several
    broken = of.copy()
    broken[3, 1, 2] = np.nan
    with pytest.raises(UserError, match=r"1 states for broken.*first: d"):
        save_states(store, "broken.safetensors", list("abcde"), [broken[:2], broken[2:]])
    assert not store.file("broken.safetensors").exists()
