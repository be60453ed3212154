"""Progress in the terminal: one bar a stage, or plain lines where there is no terminal."""

from __future__ import annotations

import logging
import os
import sys
from types import TracebackType

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from anchorscope.cli.terminal import Terminal


class Bar:
    """A listener that draws on standard error."""

    def __init__(self) -> None:
        self.console = Terminal(stderr=True)
        self._rich = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = None

    def __enter__(self) -> Bar:
        quiet_libraries()
        self._rich.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rich.stop()

    def start(self, stage: str, total: int) -> None:
        if not self.console.is_terminal:
            self.console.print(f"{stage} (0/{total})", markup=False)
        self._task = self._rich.add_task(stage, total=total)

    def advance(self, count: int = 1) -> None:
        if self._task is not None:
            self._rich.advance(self._task, count)

    def note(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False)


def quiet_libraries() -> None:
    """Stops the progress bars and advice of the libraries underneath: ours is the one to see."""
    # Every core; unset, tokenizers warns of each process that is started after it used several.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # Read when it is imported, which takes long, and only sets of the hub need it.
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging as transformers_logging

    if "datasets" in sys.modules:
        from datasets.utils.logging import disable_progress_bar

        disable_progress_bar()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
