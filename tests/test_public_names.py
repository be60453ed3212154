"""`import anchorscope`: names in dir and help while torch waits, types, short reprs, no bars."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from importlib import resources
from importlib.metadata import version

import pytest
from kit.show_fixture import make_run
from kit.tiny import save_tiny, tiny_lm, tiny_tokenizer

import anchorscope as anc


def test_the_public_names_are_listed_before_anything_slow_is_imported():
    code = "import sys, anchorscope; print(*dir(anchorscope)); print('torch' in sys.modules)"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert listed.splitlines() == [" ".join(sorted([*anc.__all__, "__version__"])), "False"]
    assert anc.__version__ == version("anchorscope")


def test_help_shows_every_public_name_and_its_docstring():
    page = pydoc.plain(pydoc.render_doc(anc))
    for name in anc.__all__:
        value = getattr(anc, name)
        assert f"class {name}" in page or f"{name}(" in page
        assert value.__doc__ and value.__doc__.splitlines()[0] in page


FUNCTIONS = [getattr(anc, name) for name in anc.__all__ if inspect.isfunction(getattr(anc, name))]


@pytest.mark.parametrize("function", [*FUNCTIONS, anc.Detector.train, anc.RunView.open],
                         ids=lambda f: f.__qualname__)  # fmt: skip
def test_docstrings_name_every_argument_and_the_result(function):
    text = inspect.getdoc(function) or ""
    assert "\nReturns:\n" in text
    for name in inspect.signature(function).parameters:
        assert f"\n    {name}: " in text, name


def test_type_checkers_find_the_types():
    assert (resources.files("anchorscope") / "py.typed").is_file()


def test_values_are_one_short_line_in_a_console(tmp_path):
    model = anc.load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    assert repr(model) == f"Model('{model.name}', {model.blocks} blocks, torch.float32 on cpu)"
    run = anc.RunView.open(make_run(tmp_path / "run", n=20, layers=2))
    names = ", ".join(run.datasets)
    assert repr(run) == f"RunView('{tmp_path / 'run'}', {run.model_name} on {names})"
    questions = anc.load_questions("atlas", limit=3)
    assert repr(questions) == "QuestionSet('atlas', 3 questions)"
    assert questions[0] == questions.questions[0] and questions[-1] == questions.questions[2]


def test_no_bar_of_another_library_is_drawn_and_theirs_are_on_again(tmp_path, capfd):
    from transformers.utils import logging

    save_tiny(tmp_path)
    capfd.readouterr()
    logging.enable_progress_bar()
    anc.load_model(tmp_path, device="cpu", dtype="float32")
    assert capfd.readouterr().err == ""
    assert logging.is_progress_bar_enabled()
