"""anchorscope: where a language model's sense of its own truthfulness comes from.

The public names are imported when they are first used, so that drawing a figure or asking for
help does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorscope.config import Config
    from anchorscope.datasets import load_questions
    from anchorscope.detect.deployed.detector import Detector
    from anchorscope.detect.deployed.exchanges import Exchange
    from anchorscope.engine.check import check_model
    from anchorscope.errors import UserError
    from anchorscope.inspection.inspect import inspect
    from anchorscope.models import Model, load_model
    from anchorscope.pipeline.own_states.analyse import analyse
    from anchorscope.pipeline.run import run
    from anchorscope.pipeline.study.study import study
    from anchorscope.probes.linear_probe import LinearProbe
    from anchorscope.records import Question, QuestionSet
    from anchorscope.run_folder.view import RunView
    from anchorscope.show import plot_delta_p

_HOME = {
    "Config": "config",
    "Detector": "detect.deployed.detector",
    "Exchange": "detect.deployed.exchanges",
    "LinearProbe": "probes.linear_probe",
    "Model": "models",
    "Question": "records",
    "QuestionSet": "records",
    "RunView": "run_folder.view",
    "UserError": "errors",
    "analyse": "pipeline.own_states.analyse",
    "check_model": "engine.check",
    "inspect": "inspection.inspect",
    "load_model": "models",
    "load_questions": "datasets",
    "plot_delta_p": "show",
    "run": "pipeline.run",
    "study": "pipeline.study.study",
}

__all__ = [
    "Config",
    "Detector",
    "Exchange",
    "LinearProbe",
    "Model",
    "Question",
    "QuestionSet",
    "RunView",
    "UserError",
    "analyse",
    "check_model",
    "inspect",
    "load_model",
    "load_questions",
    "plot_delta_p",
    "run",
    "study",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'anchorscope' has no attribute '{name}'")
    return getattr(import_module(f"anchorscope.{_HOME[name]}"), name)
