"""The page: its controls, its two panels, and which step each control takes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Any

import gradio as gr
from gradio.themes import Base

from anchorscope.app import visit as steps
from anchorscope.app.controls import Asking, Changing, asking, changing
from anchorscope.app.desk import Desk
from anchorscope.app.visit import CHANGES, Switches, Visit
from anchorscope.inspection.panel import own
from anchorscope.notebook.visible import visible
from anchorscope.records import MODES

KEPT = 3600  # seconds that a visitor's answers are kept without a step
QUEUE = 16  # visitors' steps that may wait; further ones are told to come back
_ONE = {"concurrency_id": "model", "concurrency_limit": 1, "api_visibility": "private"}
_STEP = {**_ONE, "show_progress": "minimal"}
# gradio drops what is clicked while the same step still runs. A switch turned then must count when
# that step ends; of clicks on tokens every one must.
_LAST = {**_STEP, "trigger_mode": "always_last"}
_EACH = {**_STEP, "trigger_mode": "multiple"}


def page(desk: Desk) -> gr.Blocks:
    """The page of a desk, with its queue."""
    with gr.Blocks(analytics_enabled=False, title="anchorscope app", fill_width=True) as blocks:
        visit = gr.State(Visit(), time_to_live=KEPT)
        gr.HTML(_head(desk), elem_id="head", apply_default_css=False, js_on_load=None)
        of, cut = asking(desk), changing(desk)
        with gr.Row(elem_id="panels"):
            panels = [
                gr.HTML(
                    text, elem_id=name, min_width=330, apply_default_css=False,
                    js_on_load=_own("panel.js"),
                )
                for name, text in zip(("first", "second"), Visit().said, strict=True)
            ]  # fmt: skip
        switches = [cut.changes, of.subject, cut.window, cut.heads, cut.mode]
        shown = [*panels, visit]
        _on_questions(desk, of, switches, shown)
        _on_changes(desk, cut, switches, shown)
    blocks.queue(max_size=QUEUE, default_concurrency_limit=1)
    return blocks


def _on_questions(desk: Desk, of: Asking, switches: list, shown: list) -> None:
    visit = shown[-1]

    def ask(text: str, name: str, now: Visit, *values: Any) -> Iterator[tuple]:
        for step in steps.ask(desk, now, text or "", name, _switches(*values)):
            yield _show(step)

    def ask_beside(now: Visit, *values: Any) -> Iterator[tuple]:
        for step in steps.ask_beside(desk, now, _switches(*values)):
            yield _show(step)

    inputs = [of.question, of.dataset, visit, *switches]
    gr.on([of.ask.click, of.question.submit], ask, inputs, shown, **_STEP)
    # In the browser alone; then asked as if it had been typed.
    of.picked.input(
        None, of.picked, of.question, js="text => text", api_visibility="private",
        trigger_mode="always_last",
    ).then(ask, inputs, shown, **_LAST)  # fmt: skip
    gr.on([of.beside.click, of.subject.submit], ask_beside, [visit, *switches], shown, **_STEP)
    of.dataset.input(
        lambda name: gr.Dropdown(desk.questions(name), value=None), of.dataset, of.picked, **_STEP
    )


def _on_changes(desk: Desk, cut: Changing, switches: list, shown: list) -> None:
    visit = shown[-1]

    def redraw(now: Visit, *values: Any) -> tuple:
        return _show(steps.redraw(desk, now, _switches(*values)))

    def restore(now: Visit, *values: Any) -> tuple:
        return _show(steps.restore(desk, now, _switches(*values)))

    def toggle(side: Any) -> Any:
        def click(event: gr.EventData, now: Visit, *values: Any) -> tuple:
            token = getattr(event, "token", None)
            return _show(steps.toggle(desk, now, token, _switches(*values), side))

        return click

    inputs = [visit, *switches]
    turned = [cut.changes.input, cut.window.input, cut.heads.submit, cut.mode.input]
    gr.on(turned, redraw, inputs, shown, **_LAST)
    cut.again.click(restore, inputs, shown, **_LAST)
    for side, panel in enumerate(shown[:2]):
        panel.select(toggle(side), inputs, shown, **_EACH)


def _switches(changes: Any, subject: Any, window: Any, heads: Any, mode: Any) -> Switches:
    """What the controls hold; a visitor may send anything."""
    return Switches(
        changes=tuple(name for name in CHANGES if name in (changes or ())),
        subject=str(subject or "")[:200],
        window=window if isinstance(window, int) else 0,
        heads=str(heads or "")[:400],
        mode=mode if mode in MODES else "strict",
    )


def _show(visit: Visit) -> tuple[str, str, Visit]:
    return (*visit.said, visit)


def _head(desk: Desk) -> str:
    run = desk.run
    findings = []
    for name, title in run.titles.items():
        of = desk.inspector(name).answers
        words = f"finding {of.finding['finding']}, " if of.finding else ""
        findings.append(f"<b>{visible(title)}</b>: {words}read at layer {of.layer}")
    judge = "no detector" if desk.detector is None else f"detector {desk.detector.name}"
    return (
        '<header class="anchorscope"><p class="brand">anchorscope</p>'
        f"<h1>{visible(run.model_name)}, asked live</h1>"
        f'<p class="quiet">run {visible(str(run.path))} · {visible(judge)} · '
        f"{' · '.join(findings)}</p></header>"
    )


def style() -> str:
    """The style of the panels, for light and dark pages, and of what stands around them."""
    dark = f".dark .anchorscope {{ {own('dark.css')} }}"
    return own("panel.css") + dark + _own("app.css")


def theme() -> Base:
    """A theme with the machine's own fonts: none is fetched."""
    sans = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Arial", "sans-serif"]
    mono = ["ui-monospace", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace"]
    return Base(primary_hue="blue", neutral_hue="gray", font=sans, font_mono=mono)


def _own(name: str) -> str:
    folder = resources.files("anchorscope.app").joinpath("web")
    return folder.joinpath(name).read_text(encoding="utf-8")
