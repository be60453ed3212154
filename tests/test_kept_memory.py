"""Memory that was freed is not asked for anew, by the process that a command runs in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# What the blocks of a pass take and free.
TAKES_AND_FREES = """
import resource, torch
tokens, up, down = torch.ones(1700, 576), torch.ones(1536, 576), torch.ones(576, 1536)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    inner = torch.relu(tokens @ up.T) * (tokens @ up.T)
    tokens = (tokens + inner @ down.T).view(1700, 9, 64).transpose(0, 1).contiguous().view(1700, -1)
    keys = torch.ones(200, 3, 100, 64)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
KEPT = "from anchorscope.kept_memory import keep_freed_memory; keep_freed_memory()\n"
MINE = ("MIMALLOC_PURGE_DELAY", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def told(code: str, **more: str) -> str:
    """What a fresh Python prints, with nothing of its memory set but this."""
    clean = {name: value for name, value in os.environ.items() if name not in MINE}
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, env=clean | more, text=True).strip()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other allocators")
def test_arrays_of_the_same_size_find_the_memory_of_those_before():
    without, kept = (int(told(before + TAKES_AND_FREES)) for before in ("", KEPT))
    if without < 10_000:
        pytest.skip(f"{without} pages are brought in any case: this system keeps freed memory")
    assert kept < without / 4


def test_what_the_user_has_set_stays():
    show = KEPT + "import os; print(os.environ['MIMALLOC_PURGE_DELAY'])"
    assert told(show) == "60000"
    assert told(show, MIMALLOC_PURGE_DELAY="10") == "10"


def test_a_command_keeps_memory_before_it_imports_torch():
    code = """
import sys
import anchorscope.cli as cli
cli.keep_freed_memory = lambda: print("torch" in sys.modules)
sys.argv = ["anchorscope", "--version"]
cli.main()
"""
    assert told(code).splitlines()[0] == "False"
