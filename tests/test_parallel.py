"""Work in several processes: the order of the results, and the folder they are asked from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anchorscope.parallel import in_parallel


def test_results_come_in_the_order_of_the_items() -> None:
    assert in_parallel(lambda n: (n * n, n), range(5), workers=2) == [(n * n, n) for n in range(5)]


def test_workers_follow_the_caller_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are kept from call to call: a relative path must mean the caller's folder of now."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "here.txt").write_text(name, encoding="utf-8")
    for name in ("one", "two"):
        monkeypatch.chdir(tmp_path / name)
        read = in_parallel(lambda _: (os.getpid(), Path("here.txt").read_text()), [0, 1], workers=2)
        assert {text for _, text in read} == {name}
        assert os.getpid() not in {process for process, _ in read}
