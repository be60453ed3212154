"""Attempts to break anchorscope: faults in its folders (`torture.faults`), inputs (`torture.fuzz`).

`make torture` runs both. Neither is part of the installed package.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Before torch is imported: processes are forked, and a pool of threads does not survive that.
os.environ["OMP_NUM_THREADS"] = os.environ["LOKY_MAX_CPU_COUNT"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the tests' tiny models: `kit`
