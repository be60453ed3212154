"""Compare a file of a run with its recomputed version: byte for byte, or to rounding."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

from anchorscope.run_folder.manifest import REMAKE, Checked

_ROUNDING = 1e-6  # relative; a larger difference is not rounding


def compare_files(path: Path, again: Path, name: str) -> Checked:
    """Compare a file of the run with its recomputed version."""
    if not (path / name).is_file():
        return Checked(name=name, wrong="computed again, it is not in the folder", do=REMAKE)
    if (path / name).read_bytes() == (again / name).read_bytes():
        return Checked(name=name, note="computed again, the same bytes")
    if _same_but_for_rounding(path / name, again / name):
        return Checked(name=name, note="computed again, equal to rounding")
    return Checked(
        name=name,
        wrong="computed again from answers and states, it comes out otherwise",
        do="if versions are the same, the folder was tampered with: make the run again",
    )


def _same_but_for_rounding(one: Path, other: Path) -> bool:
    """Whether two files differ only in the last digits of their numbers."""
    if one.suffix == ".safetensors":
        a, b = load_file(one), load_file(other)
        if {n: own.shape for n, own in a.items()} != {n: own.shape for n, own in b.items()}:
            return False
        # By the largest number of a tensor: small weights are sums in which large ones cancel.
        return all(np.abs(a[n] - b[n]).max() <= _ROUNDING * np.abs(a[n]).max() for n in a)
    if one.suffix == ".json":  # its checksum of the weights changes with rounding
        facts = [json.loads(f.read_text(encoding="utf-8")) | {"sha256": ""} for f in (one, other)]
        return facts[0] == facts[1]
    read = {".csv": pd.read_csv, ".parquet": pd.read_parquet}.get(one.suffix)
    if read is None:
        return False
    try:
        pd.testing.assert_frame_equal(read(one), read(other), rtol=_ROUNDING, atol=_ROUNDING)
    except AssertionError:
        return False
    return True
