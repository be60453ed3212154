"""Workers as processes of this machine, talked to through their standard input and output.

Messages go through Python's own connections over the two pipes, which nobody else can open: what
comes out of them was put in by this process or by its child. A worker whose run is gone reads the
end of its input, and ends at once.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from anchorscope.errors import UserError
from anchorscope.pipeline.spread.hands import Lost
from anchorscope.pipeline.spread.tasks import Job, Task
from anchorscope.pipeline.spread.worker import Worker

_COMMAND = "from anchorscope.pipeline.spread.local import serve; serve()"


class Process:
    """One worker process; it loads its libraries while it waits for its job.

    `job` says what the run is when the first task comes.
    """

    def __init__(
        self, job: Callable[[], Job], environment: dict[str, str], begun: Callable[[int], None]
    ) -> None:
        self._job: Callable[[], Job] | None = job
        self._begun = begun  # hears the process's number when it is ready
        path = os.pathsep.join(part for part in sys.path if part)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, **environment},
            start_new_session=True,  # Ctrl-C is for the run, which then ends its workers
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._to = Connection(os.dup(self.process.stdin.fileno()), readable=False)
        self._from = Connection(os.dup(self.process.stdout.fileno()), writable=False)
        self.process.stdin.close()  # the worker's input ends with the one end that is left
        self.process.stdout.close()

    def do(self, task: Task) -> Any:
        """What the worker answers; before its first task it loads the model and proves itself."""
        if self._job is not None:
            self._ask(self._job())
            self._job = None
            self._begun(self.process.pid)
        return self._ask(task)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._to.close()
        self._from.close()

    def _ask(self, message: Job | Task) -> Any:
        try:
            self._to.send(message)
            kind, content = self._from.recv()
        except (EOFError, OSError) as error:
            self.process.kill()
            raise Lost(f"process {self.process.pid}, exit {self.process.wait()}") from error
        return answer_of(kind, content)


def answer_of(kind: str, content: Any) -> Any:
    """What a worker said: its result, or its error in this process."""
    if kind == "mistake":
        raise UserError(content)
    if kind == "error":
        raise RuntimeError(f"A worker failed:\n{content}")
    return content


def answer(worker: Worker | None, message: Job | Task) -> tuple[Worker | None, tuple[str, Any]]:
    """The worker after a message, and what it says."""
    try:
        if isinstance(message, Job):
            return Worker(message), ("done", None)
        assert worker is not None, "a job comes before its tasks"
        return worker, ("done", worker.do(message))
    except UserError as error:
        return worker, ("mistake", str(error))
    except Exception:
        return worker, ("error", traceback.format_exc())


def serve() -> None:
    """The worker's side: messages in, answers out, until the input ends."""
    answers = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    be_quiet()
    messages: queue.Queue[Job | Task] = queue.Queue()
    threading.Thread(target=_listen, args=(messages,), daemon=True).start()
    worker: Worker | None = None
    while True:
        worker, said = answer(worker, messages.get())
        answers.send(said)


def _listen(messages: queue.Queue[Job | Task]) -> None:
    asked = Connection(os.dup(0), writable=False)
    while True:
        try:
            messages.put(asked.recv())
        except (EOFError, OSError):
            os._exit(1)  # whoever asked is gone, and nobody waits for what is under way


def be_quiet() -> None:
    """Stops the progress bars of the libraries underneath: the run has its own."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
