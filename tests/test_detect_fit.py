"""Detectors fitted in processes of their own, and the states they read from a run folder."""

from __future__ import annotations

import pickle

import numpy as np
from kit.detect_worlds import plain, two_pathways, write_run

from anchorscope import parallel
from anchorscope.detect.evaluate import fit_all, fit_each
from anchorscope.detect.material import from_run
from anchorscope.progress import Quiet
from anchorscope.run_folder.view import RunView

NAMES = ("min-log-prob", "tfidf-both", "probe", "mop", "pr", "auto")


class Counted(Quiet):
    """A listener that counts."""

    count = 0

    def advance(self, count: int = 1) -> None:
        self.count += count


def test_fitted_elsewhere_is_fitted_here(tmp_path, monkeypatch):
    """Two processes, whatever this machine has: what comes back scores as a fit in this one."""
    monkeypatch.setattr(parallel, "default_workers", lambda: 2)
    run = RunView.open(write_run(tmp_path / "run", [two_pathways(n=240)]))
    whole = from_run(run, "made-up")
    parts = [whole.take(np.arange(240) % 3 != left) for left in range(3)]
    heard = Counted()
    found = fit_each([(part, NAMES) for part in parts], heard)
    assert heard.count == 3
    for part, fitted in zip(parts, found, strict=True):
        assert tuple(fitted) == NAMES
        for name, here in fit_all(part, NAMES).items():
            np.testing.assert_array_equal(
                fitted[name].decision_function(whole), here.decision_function(whole), err_msg=name
            )


def test_a_bank_travels_without_what_it_read(tmp_path):
    made = plain(n=240, layers=6)
    read = from_run(RunView.open(write_run(tmp_path / "run", [made])), made.name)
    bare = len(pickle.dumps(read))
    first = read.layer("clean", 1)
    assert len(pickle.dumps(read)) == bare
    again = pickle.loads(pickle.dumps(read))
    np.testing.assert_array_equal(again.layer("clean", 1), first)
