"""Many texts at once: every core while they are coded, and everything as it was afterwards."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import weakref
from pathlib import Path
from types import ModuleType

import pytest

from anchorscope import bulk
from anchorscope.models.plain_text import Coded, Piece, _taken
from anchorscope.records import Span
from anchorscope.spans.characters import merged, occurrences, overlap, tokens_of

NAME = "TOKENIZERS_PARALLELISM"
SOURCE = Path(bulk.__file__).parents[1]


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_ours", False)
    monkeypatch.setenv(NAME, "kept for monkeypatch to put back")
    monkeypatch.delenv(NAME)


def test_many_texts_get_every_core_and_few_get_one(unset: None) -> None:
    bulk.settle_tokenizers()
    seen = []
    for texts in (1, 255, 256, 3000):
        with bulk.all_cores(texts):
            seen.append(os.environ[NAME])
        assert os.environ[NAME] == "false"
    assert seen == ["false", "false", "true", "true"]


def test_an_error_puts_the_variable_back(unset: None) -> None:
    bulk.settle_tokenizers()
    with pytest.raises(ZeroDivisionError), bulk.all_cores(1000):
        raise ZeroDivisionError
    assert os.environ[NAME] == "false"


@pytest.mark.parametrize("theirs", ["true", "false", "0", ""])
def test_what_the_user_set_stays(unset: None, monkeypatch, theirs: str) -> None:
    monkeypatch.setenv(NAME, theirs)
    bulk.settle_tokenizers()
    with bulk.all_cores(1000):
        assert os.environ[NAME] == theirs
    assert os.environ[NAME] == theirs


_PROCESSES = """
import os, subprocess, sys
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from anchorscope import bulk
from anchorscope.parallel import in_parallel
bulk.settle_tokenizers()
coder = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="b"))
coder.pre_tokenizer = Whitespace()
with bulk.all_cores(5000):
    together = [one.ids for one in coder.encode_batch(["a b a"] * 5000)]
assert together == [coder.encode("a b a").ids] * 5000
assert [one.ids for one in coder.encode_batch(["a b"] * 9)] == [[0, 1]] * 9
subprocess.run([sys.executable, "-c", "pass"], check=True)
assert in_parallel(abs, [-1, -2, -3], workers=2) == [1, 2, 3]
child = os.fork()
if not child:
    coder.encode_batch(["a"] * 5000)  # would wait for ever for threads that the child has not
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_processes_start_in_silence_after_every_core_was_used() -> None:
    told = {name: value for name, value in os.environ.items() if name != NAME}
    done = subprocess.run(
        [sys.executable, "-c", _PROCESSES],
        env={**told, "PYTHONPATH": str(SOURCE), "LOKY_MAX_CPU_COUNT": "2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""


def test_no_garbage_is_sought_for_a_while() -> None:
    assert gc.isenabled()
    with bulk.uncollected():
        assert not gc.isenabled()
        with bulk.uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


class _Named:
    """What a weak reference can point to."""


def circle(name: str, found: list[str]) -> None:
    """Garbage that only a search finds, and that then says its name."""
    one: list = []
    one.append(one)
    weakref.finalize(of := _Named(), found.append, name)
    one.append(of)


def test_what_is_imported_is_never_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A circle that was there stays, one that is made later is found."""
    found: list[str] = []
    try:
        with bulk.imported():
            circle("before", found)
            monkeypatch.setitem(sys.modules, "new_here", ModuleType("new_here"))
            assert not gc.isenabled()
        assert gc.isenabled()
        circle("after", found)
        gc.collect()
        assert found == ["after"]
    finally:
        gc.unfreeze()
    gc.collect()
    assert found == ["after", "before"]


def test_with_nothing_left_to_import_garbage_is_found() -> None:
    """Commands called one after the other in a process must not keep each other's models."""
    found: list[str] = []
    circle("a model", found)
    with bulk.imported():
        pass
    gc.collect()
    assert found == ["a model"]


_END = """
import atexit, gc, sys
class Circle:
    def __del__(self):
        print("the circle was found")
from anchorscope.bulk import end_soon
{say}
one = Circle(); one.self = one; del one
atexit.register(print, "at exit")
print("said", flush=False)
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("say", "said"),
    [("end_soon(); end_soon()", "said\nat exit\n"), ("", "said\nat exit\nthe circle was found\n")],
)
def test_a_process_ends_without_a_last_search(say: str, said: str) -> None:
    """Its exit code, what it prints and what others do at exit stay as they are."""
    done = subprocess.run(
        [sys.executable, "-c", _END.format(say=say)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, said, "")


def _some_spans(draw: random.Random, most: int) -> list[Span]:
    ends = [sorted(draw.choices(range(40), k=2)) for _ in range(draw.randint(0, most))]
    return [Span(start, stop) for start, stop in ends]


def test_tokens_are_those_that_share_a_character_with_a_span() -> None:
    draw = random.Random(0)
    for _ in range(3000):
        spans, offsets = _some_spans(draw, 3), _some_spans(draw, 9)
        marked = [set(range(7 + a, 7 + b)) for a, b in spans]
        by_hand = tuple(
            at
            for at, (first, stop) in enumerate(offsets)
            if any(
                of & set(range(first, stop)) if first < stop else of and min(of) < first <= max(of)
                for of in marked
            )
        )
        assert tokens_of(spans, offsets, start=7) == by_hand


def test_the_overlap_is_that_of_the_characters() -> None:
    draw = random.Random(1)
    for _ in range(3000):
        a, b = ([Span(3, 5), *_some_spans(draw, 4)] for _ in range(2))
        left, right = ({at for span in of for at in range(*span)} for of in (a, b))
        assert overlap(a, b) == len(left & right) / len(left | right)
        assert {at for span in merged(a) for at in range(*span)} == left


def test_occurrences_as_written_are_those_of_a_pattern() -> None:
    """A text of few letters: occurrences that overlap are counted as a pattern counts them."""
    draw = random.Random(2)
    for _ in range(3000):
        text = "".join(draw.choices("aab -", k=12))
        piece = "".join(draw.choices("ab-", k=draw.randint(1, 3)))
        assert occurrences(text, piece) == occurrences(text, piece.upper(), any_case=True)


def test_a_guarded_token_counts_where_it_touches_what_is_not_ours() -> None:
    draw = random.Random(3)
    for _ in range(3000):
        sizes = [draw.randint(0, 4) for _ in range(6)]
        pieces = [Piece("x" * size, draw.random() < 0.5) for size in sizes]
        spans = _some_spans(draw, 4)
        ids = tuple(draw.randint(0, 1) for _ in spans)
        owners = [piece.ours for piece in pieces for _ in piece.text]
        by_hand = any(
            not all(owners[start:stop])
            for id, (start, stop) in zip(ids, spans, strict=True)
            if id == 1
        )
        coded = Coded(ids, tuple((span.start, span.stop) for span in spans))
        assert _taken(pieces, coded, {1: "<s>"}) == by_hand
