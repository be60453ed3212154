"""Show where a language model's sense of its own truthfulness comes from: question or answer.

    import anchorscope as anc

    model = anc.load_model("bundled")            # a hub id, a folder, a .gguf file, or a model
    questions = anc.load_questions("atlas", limit=400)
    run = anc.run(model, questions, out="runs/atlas")
    run.findings                                 # what was found, as a DataFrame
    anc.plot_delta_p(run)                        # the figure

`run` makes or continues a run folder, and `RunView.open` opens a finished one; `analyse` takes
states that were extracted elsewhere, `inspect` examines one question, `Detector.train` trains a
detector of wrong answers on a run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from anchorscope.config import Config as Config
    from anchorscope.datasets import load_questions as load_questions
    from anchorscope.detect.detector import Detector as Detector
    from anchorscope.detect.prompts import Exchange as Exchange
    from anchorscope.engine.check import check_model as check_model
    from anchorscope.errors import UserError as UserError
    from anchorscope.inspection.inspect import inspect as inspect
    from anchorscope.models import Model as Model
    from anchorscope.models import load_model as load_model
    from anchorscope.pipeline.own_states import analyse as analyse
    from anchorscope.pipeline.run import run as run
    from anchorscope.pipeline.study.study import study as study
    from anchorscope.probes.linear_probe import LinearProbe as LinearProbe
    from anchorscope.records import Question as Question
    from anchorscope.records import QuestionSet as QuestionSet
    from anchorscope.run_folder.view import RunView as RunView
    from anchorscope.show import plot_delta_p as plot_delta_p

# Imported on first use: drawing a figure or printing help does not wait for torch.
_HOME = {
    "Config": "config",
    "Detector": "detect.detector",
    "Exchange": "detect.prompts",
    "LinearProbe": "probes.linear_probe",
    "Model": "models",
    "Question": "records",
    "QuestionSet": "records",
    "RunView": "run_folder.view",
    "UserError": "errors",
    "analyse": "pipeline.own_states",
    "check_model": "engine.check",
    "inspect": "inspection.inspect",
    "load_model": "models",
    "load_questions": "datasets",
    "plot_delta_p": "show",
    "run": "pipeline.run",
    "study": "pipeline.study.study",
}
__all__ = [*_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("anchorscope")
    if name not in _HOME:
        raise AttributeError(f"module 'anchorscope' has no attribute '{name}'")
    return getattr(import_module(f"anchorscope.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
