"""The controls of the page, in the order in which they stand there."""

from __future__ import annotations

from typing import Any, NamedTuple

import gradio as gr

from anchorscope.app.desk import Desk
from anchorscope.app.visit import CHANGES
from anchorscope.records import MODES


class Asking(NamedTuple):
    """What a visitor asks with."""

    question: Any
    ask: Any
    dataset: Any
    picked: Any
    subject: Any
    beside: Any


class Changing(NamedTuple):
    """What a visitor cuts and changes with."""

    changes: Any
    window: Any
    heads: Any
    mode: Any
    again: Any


def asking(desk: Desk) -> Asking:
    """The question, the run's own ones, and another subject."""
    datasets = [(title, name) for name, title in desk.run.titles.items()]
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
    return Asking(question, button, dataset, picked, subject, beside)


def changing(desk: Desk) -> Changing:
    """The switches of what is cut, where, and by which probes it is read."""
    widths = [("off", 0), *((f"the last {w}", w) for w in range(1, desk.model.blocks + 1))]
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
            list(MODES), value="strict", label="Probes of", scale=1, min_width=140, elem_id="mode"
        )
        again = gr.Button("Reset the cut", min_width=130, elem_id="again")
    return Changing(changes, window, heads, mode, again)
