"""The options of a run; each field says whether it changes the results."""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from anchorscope.errors import UserError, unknown
from anchorscope.run_folder.table_columns import PIECES

PromptStyle = Literal["auto", "chat", "text"]
Finder = Literal["auto", "given", "rules", "model", "spacy", "all"]
Where = Literal["pre", "post"]
Keys = Literal["exact", "question", "neutral", "content"]
Delta = Literal["points", "relative", "logit"]
Balance = Literal["weights", "none"]
EVIDENCE = tuple(PIECES)  # what --evidence may name
CHEAP = ("answer-only", "boundary", "awareness")  # they read no further states
_CHOICES: dict[str, Any] = {
    "prompt": PromptStyle, "finder": Finder, "keys": Keys, "where": Where, "delta": Delta,
    "balance": Balance,
}  # fmt: skip
_SHAPES = {
    "layers": (
        r"cumulative|single|window:[1-9]\d*",
        "cumulative, single, window:w with w of 1 or more",
    ),
    "grouping": (
        r"per-layer|majority|fixed:[1-9]\d*",
        "per-layer, majority, fixed:k with k of 1 or more",
    ),
}

_KINDS: dict[str, tuple[Any, str]] = {
    "str": (str, "a text"), "bool": (bool, "true or false"), "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
}  # fmt: skip
_ODD = re.compile("[\x00\ud800-\udfff]")  # a lone surrogate, or what no path can hold
# Least and most; the most are far above any use, and below what fills a machine.
_RANGES: dict[str, tuple[int, float]] = {
    "limit": (1, math.inf), "seed": (0, 2**32 - 1), "shots": (0, 4), "max_tokens": (1, 100_000),
    "folds": (3, 1000), "fold_seeds": (1, 1000), "resamples": (100, 1_000_000),
    "shard": (1, math.inf), "batch_tokens": (1, math.inf), "workers": (1, math.inf),
    "threads": (1, math.inf), "gpus_per_worker": (1, math.inf),
}  # fmt: skip


def _field(default: Any, *, changes: bool, help: str) -> Any:
    """A config field that says whether it changes the results, and what it is in one line."""
    return field(default=default, metadata={"changes": changes, "help": help})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The choices behind a run; saved in run.json beside the results.

    Examples:
        >>> import anchorscope as anc
        >>> anc.Config(limit=1000, evidence=("patching", "windows")).folds
        5
        >>> anc.Config(folds=2)
        Traceback (most recent call last):
        ...
        anchorscope.errors.UserError: folds is 2. Accepted: 3 or more.

    """

    model: str = _field(
        "bundled",
        changes=True,
        help="A hub id, a folder, a .gguf file, `bundled`, or a name that `get` knows.",
    )
    revision: str | None = _field(None, changes=True, help="The revision of a hub model.")
    adapter: str | None = _field(
        None, changes=True, help="A PEFT adapter of the model: a folder or a hub id."
    )
    data: tuple[str, ...] = _field(
        ("atlas", "atlas-compare"), changes=True, help="Names of question sets, or files."
    )
    columns: str | None = _field(
        None,
        changes=True,
        help="Names of the columns of files and hub: sets: question=...,answers=...",
    )
    skip_bad_rows: bool = _field(  # the questions count by their content
        False, changes=False, help="Leave out rows of a file that cannot be used, and say how many."
    )
    limit: int | None = _field(400, changes=True, help="Questions of each set; None is all.")
    seed: int = _field(0, changes=True, help="Seed of sampling, folds, controls and intervals.")
    prompt: PromptStyle = _field(
        "auto",
        changes=True,
        help="chat, text, or auto: whichever makes the model answer with the entity alone.",
    )
    shots: int = _field(4, changes=True, help="Worked examples in front of the question, 0 to 4.")
    max_tokens: int = _field(16, changes=True, help="Tokens an answer may have.")
    verdicts: str | None = _field(
        None, changes=True, help="A file (id, right) whose verdicts replace the judge's."
    )
    reuse: str | None = _field(
        None,
        changes=False,
        help="A finished run that differs in its verdicts alone; its answers and states are used.",
    )
    finder: Finder = _field(
        "auto",
        changes=True,
        help="How exact question tokens are found: auto, given, rules, model, spacy, all.",
    )
    keys: Keys = _field(
        "exact", changes=True, help="What the knockout cuts: exact, question, neutral, content."
    )
    where: Where = _field("pre", changes=True, help="Cut before or after the softmax.")
    layers: str = _field("cumulative", changes=True, help="cumulative, single, or window:w.")
    grouping: str = _field(
        "per-layer", changes=True, help="per-layer, fixed:k (the groups of layer k), majority."
    )
    delta: Delta = _field(
        "points", changes=True, help="Unit of ΔP in the tables: points, relative, or logit."
    )
    folds: int = _field(5, changes=True, help="Folds, disjoint by entity; 3 or more.")
    fold_seeds: int = _field(
        3, changes=True, help="Repetitions with other folds, combined into the finding."
    )
    C: float = _field(
        3.0, changes=True, help="Inverse strength of the probes' L2 penalty, per training answer."
    )
    balance: Balance = _field(
        "weights",
        changes=True,
        help="weights: right and wrong answers count alike in training; none: as they come.",
    )
    resamples: int = _field(1000, changes=True, help="Bootstrap resamples behind each interval.")
    dtype: str = _field("auto", changes=True, help="auto, float32, bfloat16, or float16.")
    ablate: tuple[str, ...] = _field(
        (),
        changes=False,
        help="Repeat the analysis with another choice of each of: spans, where, layers.",
    )
    robust: bool = _field(False, changes=False, help="Also test the finding under other choices.")
    evidence: tuple[str, ...] = _field(
        CHEAP,
        changes=False,
        help=f"Further evidence: all, none, or of {', '.join(EVIDENCE)}.",
    )
    device: str = _field(
        "auto",
        changes=False,
        help="auto, balanced (over all devices), cpu, cuda, cuda:N, or mps.",
    )
    shard: int | None = _field(
        None,
        changes=False,
        help="Questions saved together; None: 4 to 64, on a GPU 1024 to 4096.",
    )
    batch_tokens: int | None = _field(
        None, changes=False, help="Tokens in one forward pass; None: chosen by the device's memory."
    )
    trust_remote_code: bool = _field(
        False, changes=False, help="Run code that comes with a hub model."
    )
    workers: int | None = _field(
        None,
        changes=False,
        help="Processes that share the questions, each with its own copy of the model.",
    )
    threads: int | None = _field(
        None, changes=False, help="Threads of each process on a CPU; None: cores / workers."
    )
    ray: str | None = _field(
        None, changes=False, help="Workers under Ray: local, auto, or a cluster's address."
    )
    gpus_per_worker: int | None = _field(
        None, changes=False, help="GPUs of each worker; None: one, where there are GPUs."
    )
    rank: int | None = _field(
        None, changes=False, help="Compute only the shards of this rank, from 0, and stop."
    )
    world_size: int | None = _field(
        None, changes=False, help="How many ranks there are; needed with the rank."
    )

    def __post_init__(self) -> None:
        for one in fields(self):
            _check_kind(one.name, one.type, getattr(self, one.name))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise unknown(name, getattr(self, name), get_args(choices))
        for piece in self.evidence:
            if piece not in EVIDENCE:
                raise unknown("evidence", piece, ("all", "none", *EVIDENCE))
        for name, (shape, accepted) in _SHAPES.items():
            if not re.fullmatch(shape, getattr(self, name)):
                raise UserError(f"Unknown {name} '{getattr(self, name)}'. Accepted: {accepted}.")
        if not self.data:
            raise UserError("No questions were asked for. Give --data one name or file at least.")
        for name, (least, most) in _RANGES.items():
            number = getattr(self, name)
            if number is not None and not least <= number <= most:
                raise UserError(
                    f"{name} is {_short(number)}. Accepted: {_range(number, least, most)}."
                )
        if not 0 < self.C < math.inf:
            raise UserError(f"C is {self.C}. Accepted: a number above 0.")

    @classmethod
    def restore(cls, values: dict[str, Any]) -> Config:
        """The config that run.json holds: JSON knows no tuples.

        Whether a model's code is run is never taken from a file.
        """
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name != "trust_remote_code"
        }
        names = [one.name for one in cls.__dataclass_fields__.values()]
        if other := [name for name in fields if name not in names]:
            raise unknown("option of a run", other[0], names, "Another version wrote it.")
        return cls(**fields)

    def identity(self) -> dict[str, Any]:
        """The fields that change results, ready for JSON: alike in them, two runs are the same."""
        values = asdict(self) | {"data": list(self.data)}
        return {f.name: values[f.name] for f in fields(self) if f.metadata["changes"]}


def unit_of(delta: Delta) -> Delta:
    """The unit of ΔP in the tables: points, unless it is relative.

    Under "logit" too: the change of the logit has columns of its own beside it.
    """
    return "relative" if delta == "relative" else "points"


def default_of(name: str) -> Any:
    """The default of a config field, so that the command line cannot have another one."""
    (one,) = [f for f in fields(Config) if f.name == name]
    assert one.default is not MISSING
    return one.default


def help_of(name: str) -> str:
    """The line that explains a config field."""
    (one,) = [f for f in fields(Config) if f.name == name]
    return one.metadata["help"]


def _check_kind(name: str, kind: Any, value: object) -> None:
    """Raise a UserError where a value is of another kind than its field."""
    plain, _, none = str(kind).partition(" | ")
    if value is None and none:
        return
    several = plain.startswith("tuple")
    values = value if several and isinstance(value, tuple) else (value,)
    types, accepted = _KINDS.get("str" if several else plain, _KINDS["str"])
    is_truth = isinstance(value, bool) and plain != "bool"
    if is_truth or not all(isinstance(each, types) for each in values):
        accepted = f"a list, each {accepted}" if several else accepted
        raise UserError(f"{name} is {_short(value)}. Accepted: {accepted}.")
    if any(isinstance(each, str) and _ODD.search(each) for each in values):
        raise UserError(f"{name} is {_short(value)}, which holds a character that no text has.")


def _range(number: float, least: int, most: float) -> str:
    if most < 10:
        return f"{least} to {most}"
    return f"{least} or more" if number < least else f"{most} or less"


def _short(value: object) -> str:
    try:
        text = str(value) if isinstance(value, int) else repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list in lists
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= 60 else text[:57] + "..."
