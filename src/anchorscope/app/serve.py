"""The page on an address of this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from anchorscope.app.desk import Desk
from anchorscope.app.guard import Guard
from anchorscope.errors import UserError

LOCAL = "127.0.0.1"
USER = "anchorscope"


def guarded(desk: Desk, *, host: str, port: int, password: str | None = None) -> Guard:
    """The whole app: gradio's, behind the guard."""
    import fastapi
    import gradio as gr

    from anchorscope.app.page import page, style, theme

    app = fastapi.FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    mounted = gr.mount_gradio_app(
        app, page(desk), path="/", server_name=host, server_port=port, footer_links=[],
        auth=None if password is None else (USER, password), allowed_paths=[], ssr_mode=False,
        show_error=False, max_file_size=0, enable_monitoring=False, pwa=False, mcp_server=False,
        theme=theme(), css=style(),
    )  # fmt: skip
    names = [host, "localhost"] if host == LOCAL else [host]
    return Guard(mounted, hosts=[_written(name, port) for name in names])


def bind(host: str, port: int) -> socket.socket:
    """A socket with that address; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise UserError(
            f"{host}:{port} cannot be listened on ({error}). Give another --port, or 0 for any."
        ) from error
    return listening


def opened(listening: socket.socket) -> str:
    """The address, once the socket listens: who comes now waits, and is not turned away."""
    listening.listen()
    host, port = listening.getsockname()[:2]
    return f"http://{_written(host, port)}/"


def server(app: Any) -> Any:
    """The uvicorn server of an app, quiet about every request."""
    import uvicorn

    # A second for open pages at the end: their streams would last as long as the tabs.
    config = uvicorn.Config(
        app, log_level="warning", server_header=False, timeout_graceful_shutdown=1
    )
    logging.getLogger("uvicorn.error").addFilter(_worth_saying)
    return uvicorn.Server(config)


def _worth_saying(record: logging.LogRecord) -> bool:
    """Whether a line of the server's log is news: that open pages were left at the end is not."""
    kind = record.exc_info[0] if record.exc_info else None
    ended = isinstance(kind, type) and issubclass(kind, asyncio.CancelledError)
    return not (ended or "CancelledError" in str(record.msg) or str(record.msg)[:7] == "Cancel ")


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
