"""The app served from a thread of the test, on a port of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from anchorscope.app.page import guarded_app
from anchorscope.app.state import AppState
from anchorscope.web.server import Server, bind, start_listening


@contextmanager
def served(app_state: AppState, **options: str) -> Iterator[str]:
    """The address of the page while the block lasts."""
    listening = bind("127.0.0.1", 0)
    host, port = listening.getsockname()
    running = Server(guarded_app(app_state, host=host, port=port, **options))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    yield start_listening(listening)
    running.should_exit = True
    thread.join(timeout=10)
    listening.close()
