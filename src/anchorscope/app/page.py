"""The page: its controls, its two panels, and which step each control takes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Any

import gradio as gr
from gradio.themes import Base

from anchorscope.app import visit as steps
from anchorscope.app.desk import Desk
from anchorscope.app.visit import CHANGES, Switches, Visit
from anchorscope.inspection.panel import own
from anchorscope.notebook.visible import visible
from anchorscope.records import MODES

QUEUE = 16  # visitors' steps that may wait; further ones are told to come back
_ONE = {"concurrency_id": "model", "concurrency_limit": 1, "api_visibility": "private"}
_STEP = {**_ONE, "show_progress": "minimal"}


def page(desk: Desk) -> gr.Blocks:
    """The page of a desk, with its queue."""
    datasets = [(title, name) for name, title in desk.run.titles.items()]
    with gr.Blocks(analytics_enabled=False, title="anchorscope app", fill_width=True) as blocks:
        visit = gr.State(Visit())
        gr.HTML(_head(desk), elem_id="head", apply_default_css=False, js_on_load=None)
        with gr.Row(equal_height=True):
            question = gr.Textbox(
                label="Question", placeholder="What is the capital of France?", lines=1,
                max_lines=3, max_length=2000, scale=5, min_width=260, autofocus=True,
                elem_id="question",
            )  # fmt: skip
            button = gr.Button("Ask", variant="primary", scale=1, min_width=100, elem_id="ask")
        with gr.Row():
            dataset = gr.Dropdown(
                datasets, value=desk.run.datasets[0], label="As the questions of",
                visible=len(datasets) > 1, min_width=200, filterable=False, elem_id="dataset",
            )  # fmt: skip
            picked = gr.Dropdown(
                desk.questions(desk.run.datasets[0]), value=None, scale=2, min_width=260,
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
                [("off", 0), *((f"the last {w}", w) for w in range(1, desk.model.blocks + 1))],
                value=0, label="Cut in some blocks only", scale=2, min_width=180,
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
            again = gr.Button("Reset the cut", min_width=130, elem_id="again")
        with gr.Row(elem_id="panels"):
            panels = [
                gr.HTML(
                    text, elem_id=name, min_width=330, apply_default_css=False,
                    js_on_load=_own("panel.js"),
                )
                for name, text in zip(("first", "second"), Visit().said, strict=True)
            ]  # fmt: skip
        switches = [changes, subject, window, heads, mode]
        shown = [*panels, visit]
        _on_questions(desk, (button, question, picked, beside, subject), dataset, switches, shown)
        _on_changes(desk, (again, changes, window, heads, mode), switches, shown)
        dataset.input(
            lambda name: gr.Dropdown(desk.questions(name), value=None), dataset, picked, **_STEP
        )
    blocks.queue(max_size=QUEUE, default_concurrency_limit=1)
    return blocks


def _on_questions(desk: Desk, controls: tuple, dataset: Any, switches: list, shown: list) -> None:
    button, question, picked, beside, subject = controls
    visit = shown[-1]

    def ask(text: str, name: str, now: Visit, *values: Any) -> Iterator[tuple]:
        for step in steps.ask(desk, now, text or "", name, _switches(*values)):
            yield _show(step)

    def ask_beside(now: Visit, *values: Any) -> Iterator[tuple]:
        for step in steps.ask_beside(desk, now, _switches(*values)):
            yield _show(step)

    inputs = [question, dataset, visit, *switches]
    gr.on([button.click, question.submit], ask, inputs, shown, **_STEP)
    # In the browser alone; then asked as if it had been typed.
    picked.input(None, picked, question, js="text => text", api_visibility="private").then(
        ask, inputs, shown, **_STEP
    )
    gr.on([beside.click, subject.submit], ask_beside, [visit, *switches], shown, **_STEP)


def _on_changes(desk: Desk, controls: tuple, switches: list, shown: list) -> None:
    again, changes, window, heads, mode = controls
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
    gr.on([changes.input, window.input, heads.submit, mode.input], redraw, inputs, shown, **_STEP)
    again.click(restore, inputs, shown, **_STEP)
    for side, panel in enumerate(shown[:2]):
        panel.select(toggle(side), inputs, shown, **_STEP)


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
