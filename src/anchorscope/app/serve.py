"""The app behind its guard: gradio's page, and the only paths of gradio that it needs."""

from __future__ import annotations

import re

import fastapi
import gradio as gr

from anchorscope.app.desk import Desk
from anchorscope.app.page import page, style, theme
from anchorscope.web.guard import Access, Guard
from anchorscope.web.server import LOCAL, host_header

USER = "anchorscope"
_PATHS = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt|login/?|logout)"
    r"|/(assets|static|svelte)/[\w./~+-]+"
    r"|/gradio_api/(queue/(join|data)|heartbeat/\w+|startup-events|cancel|reset)"
)
# gradio's own scripts are inside its page; nothing is loaded from, or sent to, anywhere else.
_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'none'"
)


def guarded_app(desk: Desk, *, host: str, port: int, password: str | None = None) -> Guard:
    """The page as an ASGI app, served to its own address alone."""
    app = fastapi.FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    mounted = gr.mount_gradio_app(
        app, page(desk), path="/", server_name=host, server_port=port, footer_links=[],
        auth=None if password is None else (USER, password), allowed_paths=[], ssr_mode=False,
        show_error=False, max_file_size=0, enable_monitoring=False, pwa=False, mcp_server=False,
        theme=theme(), css=style(),
    )  # fmt: skip
    names = [host, "localhost"] if host == LOCAL else [host]
    hosts = [host_header(name, port) for name in names]
    return Guard(mounted, Access(hosts=hosts, paths=_PATHS, browser=True, policy=_POLICY))
