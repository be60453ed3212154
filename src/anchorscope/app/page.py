"""The page of `anchorscope app` in gradio, behind its guard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import fastapi
import gradio as gr
from gradio.themes import Base

from anchorscope.app import state as steps
from anchorscope.app.state import CHANGES, AppState, Switches, Visit
from anchorscope.records import MODES
from anchorscope.show.html import panel_style, web_file
from anchorscope.show.words import visible
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
KEPT = 3600  # seconds that a visitor's answers are kept without a step
QUEUE = 16  # visitors' steps that may wait; further ones are told to come back
_ONE = {"concurrency_id": "model", "concurrency_limit": 1, "api_visibility": "private"}
_STEP = {**_ONE, "show_progress": "minimal"}
# gradio drops what is clicked while the same step still runs. A switch turned then must count when
# that step ends; of clicks on tokens every one must.
_LAST = {**_STEP, "trigger_mode": "always_last"}
_EACH = {**_STEP, "trigger_mode": "multiple"}


def guarded_app(state: AppState, *, host: str, port: int, password: str | None = None) -> Guard:
    """The page as an ASGI app, served to its own address alone."""
    app = fastapi.FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    mounted = gr.mount_gradio_app(
        app, page(state), path="/", server_name=host, server_port=port, footer_links=[],
        auth=None if password is None else (USER, password), allowed_paths=[], ssr_mode=False,
        show_error=False, max_file_size=0, enable_monitoring=False, pwa=False, mcp_server=False,
        theme=theme(), css=style(),
    )  # fmt: skip
    names = [host, "localhost"] if host == LOCAL else [host]
    hosts = [host_header(name, port) for name in names]
    return Guard(mounted, Access(hosts=hosts, paths=_PATHS, browser=True, policy=_POLICY))


def page(state: AppState) -> gr.Blocks:
    """The page of a model and a run: controls, two panels, and the step each control takes."""
    datasets = [(title, name) for name, title in state.run.titles.items()]
    widths = [("off", 0), *((f"the last {w}", w) for w in range(1, state.model.blocks + 1))]
    with gr.Blocks(analytics_enabled=False, title="anchorscope app", fill_width=True) as blocks:
        visit = gr.State(Visit(), time_to_live=KEPT)
        gr.HTML(_head(state), elem_id="head", apply_default_css=False, js_on_load=None)
        with gr.Row(equal_height=True):
            question = gr.Textbox(
                label="Question", placeholder="What is the capital of France?", lines=1,
                max_lines=3, max_length=2000, scale=5, min_width=260, autofocus=True,
                elem_id="question",
            )  # fmt: skip
            ask_button = gr.Button("Ask", variant="primary", scale=1, min_width=100, elem_id="ask")
        with gr.Row():
            dataset = gr.Dropdown(
                datasets, value=state.run.datasets[0], label="As the questions of",
                visible=len(datasets) > 1, min_width=200, filterable=False, elem_id="dataset",
            )  # fmt: skip
            picked = gr.Dropdown(
                state.questions(state.run.datasets[0]), value=None, scale=2, min_width=260,
                label="or one of the run's questions", elem_id="picked",
            )  # fmt: skip
            subject = gr.Textbox(
                label="Another subject", placeholder="Japan", scale=2, min_width=160,
                max_length=200, elem_id="subject",
            )  # fmt: skip
            beside = gr.Button("Ask the same about it", min_width=270, elem_id="beside")
        with gr.Accordion("What is cut and changed", open=True, elem_id="changes"), gr.Row():
            changes = gr.CheckboxGroup(
                list(CHANGES), value=list(CHANGES[:2]), label="Beside the cut", scale=6,
                min_width=260, elem_id="switches",
            )  # fmt: skip
            window = gr.Dropdown(
                widths, value=0, label="Cut in some blocks only", scale=2, min_width=180,
                filterable=False, elem_id="window",
            )  # fmt: skip
            heads = gr.Textbox(
                label="Cut in single heads", placeholder="12.3, 14.0", scale=2, min_width=140,
                max_length=400, elem_id="heads",
            )  # fmt: skip
            mode = gr.Radio(
                list(MODES), value="strict", label="Probes of", scale=1, min_width=140,
                elem_id="mode",
            )  # fmt: skip
            reset = gr.Button("Reset the cut", min_width=130, elem_id="again")
        with gr.Row(elem_id="panels"):
            panels = [
                gr.HTML(
                    text, elem_id=name, min_width=330, apply_default_css=False,
                    js_on_load=web_file("app.js"),
                )
                for name, text in zip(("first", "second"), Visit().panels, strict=True)
            ]  # fmt: skip

        def ask(text: str, name: str, now: Visit, *values: Any) -> Iterator[tuple]:
            for step in steps.ask(state, now, text or "", name, _switches(*values)):
                yield _outputs(step)

        def ask_beside(now: Visit, *values: Any) -> Iterator[tuple]:
            for step in steps.ask_beside(state, now, _switches(*values)):
                yield _outputs(step)

        def redraw(now: Visit, *values: Any) -> tuple:
            return _outputs(steps.redraw(state, now, _switches(*values)))

        def restore(now: Visit, *values: Any) -> tuple:
            return _outputs(steps.restore(state, now, _switches(*values)))

        def toggle(side: Any) -> Any:
            def click(event: gr.EventData, now: Visit, *values: Any) -> tuple:
                token = getattr(event, "token", None)
                return _outputs(steps.toggle(state, now, token, _switches(*values), side))

            return click

        inputs = [visit, changes, subject, window, heads, mode]
        all_inputs, outputs = [question, dataset, *inputs], [*panels, visit]
        gr.on([ask_button.click, question.submit], ask, all_inputs, outputs, **_STEP)
        # In the browser alone; then asked as if it had been typed.
        picked.input(
            None, picked, question, js="text => text", api_visibility="private",
            trigger_mode="always_last",
        ).then(ask, all_inputs, outputs, **_LAST)  # fmt: skip
        gr.on([beside.click, subject.submit], ask_beside, inputs, outputs, **_STEP)
        dataset.input(
            lambda name: gr.Dropdown(state.questions(name), value=None), dataset, picked, **_STEP
        )
        turned = [changes.input, window.input, heads.submit, mode.input]
        gr.on(turned, redraw, inputs, outputs, **_LAST)
        reset.click(restore, inputs, outputs, **_LAST)
        for side, panel in enumerate(panels):
            panel.select(toggle(side), inputs, outputs, **_EACH)
    blocks.queue(max_size=QUEUE, default_concurrency_limit=1)
    return blocks


def _switches(changes: Any, subject: Any, window: Any, heads: Any, mode: Any) -> Switches:
    """What the controls hold; a visitor may send anything."""
    return Switches(
        changes=tuple(name for name in CHANGES if name in (changes or ())),
        subject=str(subject or "")[:200],
        window=window if isinstance(window, int) else 0,
        heads=str(heads or "")[:400],
        mode=mode if mode in MODES else "strict",
    )


def _outputs(visit: Visit) -> tuple[str, str, Visit]:
    return (*visit.panels, visit)


def _head(state: AppState) -> str:
    run = state.run
    findings = []
    for name, title in run.titles.items():
        answers = state.inspector(name).answers
        words = f"finding {answers.finding['finding']}, " if answers.finding else ""
        findings.append(f"<b>{visible(title)}</b>: {words}read at layer {answers.layer}")
    judge = "no detector" if state.detector is None else f"detector {state.detector.name}"
    return (
        '<header class="anchorscope"><p class="brand">anchorscope</p>'
        f"<h1>{visible(run.model_name)}, asked live</h1>"
        f'<p class="quiet">run {visible(str(run.path))} · {visible(judge)} · '
        f"{' · '.join(findings)}</p></header>"
    )


def style() -> str:
    """The style of the panels, for light and dark pages, and of the page around them."""
    return panel_style(".dark .anchorscope {}") + web_file("app.css")


def theme() -> Base:
    """A theme with the machine's own fonts: none is fetched."""
    sans = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Arial", "sans-serif"]
    mono = ["ui-monospace", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace"]
    return Base(primary_hue="blue", neutral_hue="gray", font=sans, font_mono=mono)
