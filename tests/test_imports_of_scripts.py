"""Every file of benchmarks/ and scripts/ can be imported: no name that they use is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("scripts/**/*.py")])
# One process for all of them: torch is imported once. A file is imported as a module, so that its
# main() does not run; what it imports from beside itself is found there.
IMPORT_ALL = """
import json, runpy, sys, traceback
found = {}
for path in sys.argv[1:]:
    sys.path.insert(0, path.rpartition("/")[0])
    try:
        runpy.run_path(path, run_name="imported")
        found[path] = [None, ""]
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        found[path] = [missing, traceback.format_exc()]
    del sys.path[0]
print("\\n" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str | None, str]]:
    """By path: the package that was missing, and the error."""
    folders = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]  # for kit
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *map(str, FILES)],
        capture_output=True,
        text=True,
        cwd=tmp_path_factory.mktemp("imports"),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_file_can_be_imported(imports, file: Path) -> None:
    missing, error = imports[str(file)]
    if missing and missing.partition(".")[0] not in (
        "anchorscope",
        "kit",
        *(f.stem for f in FILES),
    ):
        pytest.skip(f"{missing} is not installed")
    assert not error
