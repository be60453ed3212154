"""Headers of safetensors and .npz files that lie: lengths, offsets, shapes, kinds."""

from __future__ import annotations

import io
import json
import tempfile
import tracemalloc
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from anchorscope.pipeline.own_states.arrays import check_arrays, open_arrays
from anchorscope.run_folder.states import StateBank
from torture.fuzz.target import Target
from torture.fuzz.texts import part, seeded, value

PLACE = Path(tempfile.mkdtemp(prefix="fuzz-tensors-"))
MOST = 64 << 20  # bytes that a file of some kilobytes may make us hold
KINDS = ("F32", "F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "C64", "x", "f32", None, 3)
SIZES = (0, 1, 2, 3, 10**9, 10**18, 2**63 - 1, 2**64, -1, 1.5, "2")
NAMES = ("clean", "knockout", "random", "z", "states", "id", "popularity", "answer_only")


def _safetensors(r: Random) -> bytes:
    tensors: dict[str, Any] = {}
    for name in r.sample(NAMES, r.randint(1, 5)):
        shape = [
            r.choice(SIZES) if r.random() < 0.15 else r.randint(1, 3)
            for _ in range(r.choice((1, 3, 3)))
        ]
        start = r.choice((0, 0, 8, 36, -8, 10**18))
        size = 4 * int(np.prod([s for s in shape if isinstance(s, int) and 0 < s < 9] or [1]))
        tensors[name] = {
            "dtype": r.choice(KINDS) if r.random() < 0.3 else "F32",
            "shape": shape,
            "data_offsets": [start, start + r.choice((size, size, 4, 2**62))],
        }
    said = r.choice(('["a", "b"]', "[", "[1, [2]]", "{}", "9", '["a"'))
    tensors["__metadata__"] = value(r) if r.random() < 0.1 else {"ids": said, "id": said}
    if r.random() < 0.3:  # one that is right in itself, so that what is behind it is reached
        tensors = {
            "states": {"dtype": "F32", "shape": [2, 2, 3], "data_offsets": [0, 48]},
            "__metadata__": {"ids": said},
        }
    head = json.dumps(tensors).encode()
    length = len(head) if r.random() < 0.85 else r.choice((0, 1, 10**6, 2**40, 2**63, 2**64 - 1))
    return length.to_bytes(8, "little") + head + bytes(r.choice((0, 36, 48, 48, 108)))


def _npz(r: Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in r.sample(NAMES, r.randint(1, 5)):
            file = io.BytesIO()
            shape = tuple(r.randint(0, 3) for _ in range(r.choice((0, 1, 3, 3))))
            kind = r.choice(
                (np.float32, np.float16, np.int64, bool, "U3", "S2", "datetime64[s]", complex)
            )
            np.save(file, np.zeros(shape, dtype=kind))
            data = file.getvalue()
            if r.random() < 0.4:
                lie = str((r.choice(SIZES), 2, 3)).encode()
                data = data.replace(str(shape).encode(), lie)
            if r.random() < 0.1:
                data = data[: r.randint(0, len(data))]
            archive.writestr(f"{name}.npy" if r.random() < 0.95 else "x" + part(r), data)
    data = bytearray(out.getvalue())
    if r.random() < 0.2:
        data[r.randrange(len(data))] = r.randint(0, 255)
    return bytes(data)


def check_arrays_of(given: tuple[bytes, str]) -> None:
    """Arrays that are checked, or a sentence; in memory that the file's own size allows."""
    data, ending = given
    file = PLACE / f"states{ending}"
    file.write_bytes(data)
    tracemalloc.start()
    try:
        check_arrays(open_arrays(file))
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < MOST, f"{most} bytes for a file of {len(data)}"


def check_shard(given: bytes) -> None:
    """States of a run folder whose file lies."""
    folder = PLACE / "run"
    file = folder / "states" / "clean" / "00000.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(given)
    try:
        states = StateBank(folder, ["a", "b"]).all_layers("clean")
        assert states.shape[0] == 2
    finally:
        bank = StateBank(folder, ["a", "b"])
        assert len(bank.layer("clean", min(1, bank.layers))) == 2


def _of_either(r: Random) -> tuple[bytes, str]:
    return (_safetensors(r), ".safetensors") if r.random() < 0.5 else (_npz(r), ".npz")


TARGETS = (
    Target(name="states of others", inputs=seeded(_of_either), check=check_arrays_of, share=4),
    Target(name="states of runs", inputs=seeded(_safetensors), check=check_shard, share=4),
)
