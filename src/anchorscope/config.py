"""The options of a run; each field says whether it changes the results."""

from __future__ import annotations

import math
import re
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from anchorscope.errors import UserError, short, unknown
from anchorscope.run_folder.table_columns import PIECES

PromptStyle = Literal["auto", "chat", "text"]
Finder = Literal["auto", "given", "rules", "model", "spacy", "all"]
Where = Literal["pre", "post"]
Engine = Literal["transformers", "vllm"]
Keys = Literal["exact", "question", "neutral", "content"]
Delta = Literal["points", "relative", "logit"]
Balance = Literal["weights", "none"]
KeptStates = Literal["all", "learnt", "none"]
EVIDENCE = tuple(PIECES)  # what --evidence may name
CHEAP = ("answer-only", "boundary", "awareness")  # evidence that reads no further states
_KINDS: dict[str, tuple[Any, str]] = {
    "str": (str, "a text"),
    "bool": (bool, "true or false"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
}
_ODD = re.compile("[\x00\ud800-\udfff]")  # a lone surrogate, or what no path can hold


def _result(default: Any, help: str, **accepted: Any) -> Any:
    """Define a config field that changes the results: default, line of help, accepted values.

    `least` and `most` bound a number; `choices` lists the accepted texts, `shape` is their pattern.
    """
    return field(default=default, metadata={"changes": True, "help": help, **accepted})


def _other(default: Any, help: str, **accepted: Any) -> Any:
    """Define a config field that does not change the results."""
    return field(default=default, metadata={"changes": False, "help": help, **accepted})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options of a run; saved in run.json beside the results.

    Examples:
        >>> import anchorscope as anc
        >>> anc.Config(limit=1000, evidence=("patching", "windows")).folds
        5
        >>> anc.Config(folds=2)
        Traceback (most recent call last):
        ...
        anchorscope.errors.UserError: folds is 2. Accepted: 3 or more.

    """

    model: str = _result(
        "bundled", "A hub id, a folder, a .gguf file, `bundled`, or a name that `get` knows."
    )
    revision: str | None = _result(None, "The revision of a hub model.")
    adapter: str | None = _result(None, "A PEFT adapter of the model: a folder or a hub id.")
    data: tuple[str, ...] = _result(("atlas", "atlas-compare"), "Names of question sets, or files.")
    columns: str | None = _result(
        None, "Names of the columns of files and hub: sets: question=...,answers=..."
    )
    skip_bad_rows: bool = _other(  # the identity of a run holds its questions' content
        False, "Leave out rows of a file that cannot be used, and say how many."
    )
    limit: int | None = _result(400, "Questions of each set; None is all.", least=1)
    seed: int = _result(
        0, "Seed of sampling, folds, controls and intervals.", least=0, most=2**32 - 1
    )
    prompt: PromptStyle = _result(
        "auto",
        "chat, text, or auto: whichever makes the model answer with the entity alone.",
        choices=PromptStyle,
    )
    shots: int = _result(4, "Worked examples in front of the question, 0 to 4.", least=0, most=4)
    max_tokens: int = _result(16, "Tokens an answer may have.", least=1, most=100_000)
    answers: str | None = _result(
        None, "A file (id, answer or token_ids) of answers to read; the model writes none."
    )
    verdicts: str | None = _result(None, "A file (id, right) whose verdicts replace the judge's.")
    reuse: str | None = _other(
        None,
        "A finished run that differs in its verdicts alone; its answers and states are used.",
    )
    finder: Finder = _result(
        "auto",
        "How exact question tokens are found: auto, given, rules, model, spacy, all.",
        choices=Finder,
    )
    keys: Keys = _result(
        "exact", "What the knockout cuts: exact, question, neutral, content.", choices=Keys
    )
    where: Where = _result("pre", "Cut before or after the softmax.", choices=Where)
    layers: str = _result(
        "cumulative",
        "cumulative, single, or window:w.",
        shape=r"cumulative|single|window:[1-9]\d*",
        accepted="cumulative, single, window:w with w of 1 or more",
    )
    grouping: str = _result(
        "per-layer",
        "per-layer, fixed:k (the groups of layer k), majority.",
        shape=r"per-layer|majority|fixed:[1-9]\d*",
        accepted="per-layer, majority, fixed:k with k of 1 or more",
    )
    delta: Delta = _result(
        "points", "Unit of ΔP in the tables: points, relative, or logit.", choices=Delta
    )
    # Upper bounds are far above any real use, and below what exhausts a machine.
    folds: int = _result(5, "Folds, disjoint by entity; 3 or more.", least=3, most=1000)
    fold_seeds: int = _result(
        3, "Repetitions with other folds, combined into the finding.", least=1, most=1000
    )
    C: float = _result(3.0, "Inverse strength of the probes' L2 penalty, per training answer.")
    balance: Balance = _result(
        "weights",
        "weights: right and wrong answers count alike in training; none: as they come.",
        choices=Balance,
    )
    resamples: int = _result(
        1000, "Bootstrap resamples behind each interval.", least=100, most=1_000_000
    )
    dtype: str = _result("auto", "auto, float32, bfloat16, or float16.")
    ablate: tuple[str, ...] = _other(
        (), "Repeat the analysis with another choice of each of: spans, where, layers."
    )
    robust: bool = _other(False, "Also test the finding under other choices.")
    learn_from: int = _other(  # in the identity of a run with more questions
        20_000,
        "Questions of each set that probes and tables are made from; of the rest, readings.",
        least=1,
    )
    keep_states: KeptStates = _other(
        "learnt",
        "States on disk: all; learnt, those that probes learn from; none, once all is analysed.",
        choices=KeptStates,
    )
    evidence: tuple[str, ...] = _other(
        CHEAP, f"Further evidence: all, none, or of {', '.join(EVIDENCE)}."
    )
    device: str = _other("auto", "auto, balanced (over all devices), cpu, cuda, cuda:N, or mps.")
    engine: Engine = _other(
        "transformers", "What computes: transformers, or vllm for large models.", choices=Engine
    )
    tensor_parallel: int = _other(1, "GPUs that share a model under --engine vllm.", least=1)
    shard: int | None = _other(
        None, "Questions saved together; None: 4 to 64, on a GPU 1024 to 4096.", least=1
    )
    batch_tokens: int | None = _other(
        None, "Tokens in one forward pass; None: chosen by the device's memory.", least=1
    )
    trust_remote_code: bool = _other(False, "Run code that comes with a hub model.")
    workers: int | None = _other(
        None, "Processes that share the questions, each with its own copy of the model.", least=1
    )
    threads: int | None = _other(
        None, "Threads of each process on a CPU; None: cores / workers.", least=1
    )
    ray: str | None = _other(None, "Workers under Ray: local, auto, or a cluster's address.")
    gpus_per_worker: int | None = _other(
        None, "GPUs of each worker; None: one, where there are GPUs.", least=1
    )
    rank: int | None = _other(None, "Compute only the shards of this rank, from 0, and stop.")
    world_size: int | None = _other(None, "How many ranks there are; needed with the rank.")

    def __post_init__(self) -> None:
        for one in fields(self):
            _check(one, getattr(self, one.name))
        for piece in self.evidence:
            if piece not in EVIDENCE:
                raise unknown("evidence", piece, ("all", "none", *EVIDENCE))
        if not self.data:
            raise UserError("No questions were asked for. Give --data one name or file at least.")
        if not 0 < self.C < math.inf:
            raise UserError(f"C is {self.C}. Accepted: a number above 0.")

    @classmethod
    def restore(cls, values: dict[str, Any]) -> Config:
        """Restore a config from run.json, where tuples are lists.

        `trust_remote_code` is never taken from a file.
        """
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name != "trust_remote_code"
        }
        names = [one.name for one in fields(cls)]
        if other := [name for name in given if name not in names]:
            raise unknown("option of a run", other[0], names, "Another version wrote it.")
        return cls(**given)

    def identity(self) -> dict[str, Any]:
        """The fields that change results, ready for JSON; runs with equal ones are the same run."""
        values = asdict(self) | {"data": list(self.data)}
        return {one.name: values[one.name] for one in fields(self) if one.metadata["changes"]}


def words(text: str) -> tuple[str, ...]:
    """Split a comma-separated list."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def from_text(name: str, value: Any) -> Any:
    """Parse a config field from text: comma-separated lists, `all` and `none`."""
    if isinstance(value, list):
        return tuple(value)
    if name == "limit" and isinstance(value, str):
        if value != "all" and (not value.isdigit() or int(value) < 1):
            raise UserError(f"--limit is '{value}'. Accepted: a number of questions, or all.")
        return None if value == "all" else int(value)
    if name in ("data", "ablate", "evidence") and isinstance(value, str):
        named = {"all": EVIDENCE, "none": ()} if name == "evidence" else {}
        return named.get(value.strip(), words(value))
    return value


def unit_of(delta: Delta) -> Delta:
    """The unit of ΔP in the tables: "relative" or "points".

    "logit" gives points as well: the change of the logit has columns of its own.
    """
    return "relative" if delta == "relative" else "points"


def _check(one: Field[Any], value: Any) -> None:
    """Raise a UserError where a config field does not accept a value."""
    name, takes = one.name, one.metadata
    plain, _, none = str(one.type).partition(" | ")
    if value is None and none:
        return
    several = plain.startswith("tuple")
    types, accepted = _KINDS.get(plain, _KINDS["str"])
    values = value if several and isinstance(value, tuple) else (value,)
    is_truth = isinstance(value, bool) and plain != "bool"
    if is_truth or not all(isinstance(each, types) for each in values):
        accepted = f"a list, each {accepted}" if several else accepted
        raise UserError(f"{name} is {short(value)}. Accepted: {accepted}.")
    if any(isinstance(each, str) and _ODD.search(each) for each in values):
        raise UserError(f"{name} is {short(value)}, which holds a character that no text has.")
    if "choices" in takes and value not in get_args(takes["choices"]):
        raise unknown(name, value, get_args(takes["choices"]))
    if "shape" in takes and not re.fullmatch(takes["shape"], str(value)):
        raise UserError(f"Unknown {name} '{value}'. Accepted: {takes['accepted']}.")
    least, most = takes.get("least", -math.inf), takes.get("most", math.inf)
    if "least" in takes and not least <= value <= most:
        limits = f"{least} or more" if value < least else f"{most} or less"
        limits = f"{least} to {most}" if most < 10 else limits
        raise UserError(f"{name} is {short(value)}. Accepted: {limits}.")
