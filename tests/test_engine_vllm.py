"""The engine vllm without vLLM: whole runs against a plain server, and its parts one by one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from kit.engine_samples import CLOSE, PREFIX, SAMPLES, SEED, engine_states
from kit.evidence_fixture import without_pictures
from kit.plain import eager_mass
from kit.reference_server import ReferenceServer, changes, served
from kit.rivers import half_right, main_in, rivers, stored_states
from kit.tiny import save_tiny, tiny_lm, tiny_tokenizer
from safetensors.torch import save
from torch import Tensor, nn

from anchorscope.config import Config
from anchorscope.engine.batches import Budget
from anchorscope.engine.check import check_served
from anchorscope.engine.decode import Sampling, grow_trunk, read_prefix, write_answers
from anchorscope.engine.interventions import CLEAN, Intervention, keys_of, passes_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.read import with_mass
from anchorscope.engine_vllm import ReadRequest, VllmServer, plugin, server
from anchorscope.engine_vllm.recorder import Recorder
from anchorscope.errors import UserError
from anchorscope.models import load_model

RUN = ("run", "--model", "model", "--data", "half.jsonl", "--max-tokens", "4", "--shard", "24",
       "--resamples", "100", "--fold-seeds", "1", "--folds", "3", "--dtype", "float32",
       "--prompt", "text", "--shots", "1", "--verdicts", "v.jsonl",
       "--threads", "1")  # fmt: skip
PLAIN, SERVED = ("--device", "cpu"), ("--engine", "vllm")

# --- Whole runs ---


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Runs by both engines: on own answers with more evidence, and on given answers."""
    place = rivers(tmp_path_factory.mktemp("vllm"))
    half_right(place, short=True)
    ids = pd.read_parquet(place / "first/samples.parquet")["id"]
    _write(place / "v.jsonl", [{"id": id, "right": n % 2} for n, id in enumerate(ids)])
    with without_pictures(), served():
        for name, engine in (("own", PLAIN), ("own-served", SERVED)):
            main_in(place, *RUN, *engine, "--evidence", "windows,answer-only", "--out", name)
        answers = pd.read_parquet(place / "own/samples.parquet")["token_ids"].map(list)
        # Every other one as no model would write it.
        rows = [{"id": id, "token_ids": [*map(int, own[:: 1 if n % 2 else -1])]}
                for n, (id, own) in enumerate(zip(ids, answers, strict=True))]  # fmt: skip
        _write(place / "given.jsonl", rows)
        given = ("--answers", "given.jsonl", "--evidence", "none")
        for name, engine in (("given", PLAIN), ("given-served", SERVED)):
            main_in(place, *RUN, *engine, *given, "--out", name)
    return place


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


@pytest.mark.parametrize("name", ["own", "given"])
def test_a_run_by_a_server_is_the_run_by_transformers(place, name):
    own, other = place / name, place / f"{name}-served"

    def same(file: str, tolerance: float, by: str | None = None) -> pd.DataFrame:
        read = pd.read_parquet if file.endswith("parquet") else pd.read_csv
        a, b = (read(run / file) for run in (own, other))
        if by:
            a, b = (frame.sort_values(by).reset_index(drop=True) for frame in (a, b))
        pd.testing.assert_frame_equal(a, b, atol=tolerance, rtol=0)
        return a

    samples = same("samples.parquet", 1e-4)
    assert set(samples["verdict"]) == {"right", "wrong"}
    assert samples["off_greedy"].any() == (name == "given")
    passes = {folder.name for folder in (own / "states").iterdir()}
    assert passes == {folder.name for folder in (other / "states").iterdir()}
    assert {"clean", "question-only", "knockout", "neutral", "retest-knockout"} < passes
    assert ("window-5" in passes) == (name == "own")
    for cut in sorted(passes):
        states, others = stored_states(own, cut), stored_states(other, cut)
        assert states.keys() == others.keys() and states
        for id, each in states.items():  # stored in half precision: one step of it may differ
            room = 1e-4 + np.spacing(np.abs(each).astype(np.float16)).astype(np.float32)
            assert (np.abs(each.astype(np.float32) - others[id]) <= room).all(), (cut, id)
    outputs = {str(file.relative_to(own)) for file in (own / "outputs").rglob("*.parquet")}
    assert len(outputs) > 10
    for file in outputs:
        same(file, 1e-4, by="id")
    same("tables/output.csv", 1e-3)
    same("tables/findings.csv", 0.05)


def test_vllms_run_says_so_and_has_its_weights_under_another_hash(place):
    facts = [json.loads((place / run / "run.json").read_text()) for run in ("own", "own-served")]
    assert "by vLLM" in facts[1]["model"]["why"] and "vLLM" not in facts[0]["model"]["why"]
    assert facts[0]["model"]["weights"] != facts[1]["model"]["weights"]


# --- Requests ---


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[Any, Any]:
    """A tiny model with all of its weights, and one that only a server has."""
    folder = str(save_tiny(tmp_path_factory.mktemp("tiny") / "model"))
    with served():
        model = load_model(folder, engine="vllm", dtype="float32")
    assert {weight.device.type for weight in model.lm.parameters()} == {"meta"}
    return load_model(folder, device="cpu", dtype="float32"), model


CUTS = [
    CLEAN,
    *passes_of(Config())[:5],
    *(Intervention(name=layers, layers=layers) for layers in ("window:2", "single")),
    *(Intervention(name=f"boost {beta}", boost=beta) for beta in (-1.0, 2.0)),
]


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name)
def test_each_intervention_is_read_alike_by_both_engines(both, cut):
    plain, model = both
    samples = [replace(s, exact_answer=(s.answer_at, len(s.ids) - 1)) for s in SAMPLES]
    own, clean = (engine_states(plain, samples, each) for each in (cut, CLEAN))
    assert torch.allclose(engine_states(model, samples, cut), own, **CLOSE)
    assert cut is CLEAN or ((own - clean).abs().amax(dim=(1, 2)) > 1e-2).any()
    if cut.keys == "neutral":  # some keys are in the prefix, whose own tokens still see them
        keys = [keys_of(sample, "neutral", seed=SEED) for sample in samples]
        assert any(0 < key < len(PREFIX) - 1 for each in keys for key in each)


def test_attention_mass_of_each_question_is_its_own(both):
    plain, model = both
    marks = [SAMPLES[0], None, *SAMPLES[1:]]
    with Lease(model) as lease:
        trunk = grow_trunk(lease, read_prefix(lease, PREFIX), [s.ids for s in SAMPLES]).trunk
        found = with_mass(lease, trunk, marks, budget=Budget(64))
    assert found[1] is None
    for mark in filter(None, found):
        assert mark.mass == pytest.approx(eager_mass(plain, mark.ids), abs=1e-6)


def test_answers_stop_where_they_do_in_transformers(both):
    prompts, extra = [s.ids[: s.answer_at] for s in SAMPLES], [15, 14, 12, 16, 13]
    read = []
    stop = torch.tensor([-1])
    for _ in range(2):  # without a token that stops, then with one that some answer has second
        for model in both:
            with Lease(model) as lease:
                prefix = read_prefix(lease, PREFIX)
                batch = write_answers(
                    lease, prefix, prompts, stop_ids=stop, limit=5, extra_position=extra
                )
                at = torch.arange(len(prompts))
                read.append((batch.answers, batch.states[at, at * 0], batch.extra))
        stop = torch.tensor([read[0][0][1].token_ids[1]])
    for (own, states, more), (others, their_states, their_more) in (read[:2], read[2:]):
        assert torch.allclose(more, their_more, **CLOSE)
        for answer, other in zip(own, others, strict=True):
            assert (answer.token_ids, answer.finished) == (other.token_ids, other.finished)
            assert answer.log_probs == pytest.approx(other.log_probs, abs=1e-4)
            assert answer.entropies == pytest.approx(other.entropies, abs=1e-4)
        begun = torch.tensor([len(answer.token_ids) > 0 for answer in own])
        assert torch.allclose(states[begun], their_states[begun], **CLOSE)
    assert {answer.finished for answer in read[3][0]} == {True, False}


def test_what_a_server_does_not_offer_is_refused(both):
    _, model = both
    with Lease(model) as lease:
        prompts = [SAMPLES[0].ids]
        sampling = Sampling(1.0, torch.rand(1, 2, 3))
        for more in ({"sampling": sampling}, {"on_token": print}):
            with pytest.raises(UserError, match="Accepted there: greedy"):
                write_answers(
                    lease, read_prefix(lease, ()), prompts, stop_ids=torch.tensor([-1]), limit=3,
                    **more,
                )  # fmt: skip
    for part in ({"where": "post"}, {"heads": ((1, 0),)}):
        with pytest.raises(UserError, match="cuts before the softmax, in all heads"):
            engine_states(model, SAMPLES, Intervention(name="part", **part))
    for given in (tiny_lm("llama"), model):
        with pytest.raises(UserError, match="a loaded model, and --engine vllm loads"):
            load_model(given, tokenizer=tiny_tokenizer(), engine="vllm")


# --- The command line refuses before it loads ---


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("run", "needs vLLM, and it is not installed: pip install 'anchorscope[vllm]'"),
        ("doctor", "needs vLLM, and it is not installed: pip install 'anchorscope[vllm]'"),
        ("run --where post", "does not offer a cut after the softmax. Accepted"),
        ("run --ablate where", "does not offer a cut after the softmax. Accepted"),
        ("run --evidence heads", "does not offer the evidence heads. Accepted"),
        ("run --evidence windows,saliency,patching", "the evidence saliency, patching. Accepted"),
        ("run --device cpu", "Accepted: auto, cuda; or --engine transformers"),
        ("run --adapter some/lora", "Accepted: none: merge it into the weights"),
        ("doctor --device cuda:1", "Accepted: auto, cuda; or --engine transformers"),
        ("detect collect --samples 3", "--samples draws answers"),
    ],
)
def test_options_that_vllm_lacks_are_refused(cli, monkeypatch, tmp_path, words, error):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr("anchorscope.models.load.find_model", pytest.fail)
    more = () if "doctor" in words else ("--data", "atlas", "--limit", "50", "--out", "out")
    code, _, seen = cli(*words.split(), "--engine", "vllm", "--model", "bundled", *more)
    assert code == 2 and error in seen and "Traceback" not in seen


@pytest.mark.parametrize("version", ["0.23.9", "0.25.0", "1.24.0", "0.3.24", "dev"])
def test_a_vllm_that_was_not_tried_is_refused(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "vllm", fake_vllm(version))
    with pytest.raises(UserError, match=f"{version} is installed.*tried with 0.24"):
        server.find_vllm()


# --- vLLM's answers as one reading ---


def fake_vllm(version: str = "0.24.2rc1+cu130", llm: Any = None) -> Any:
    vllm: Any = ModuleType("vllm")
    vllm.__version__, vllm.LLM, vllm.SamplingParams = version, llm, SimpleNamespace
    return vllm


class FakeLLM:
    """Four processes, two for each half of four blocks; every value says whose it is."""

    def __init__(self, **options: Any) -> None:
        self.options, self.given, self.asked = options, [], []

    def generate(self, given: list, params: Any, use_tqdm: bool) -> list[Any]:
        self.given = [each["prompt_token_ids"] for each in given]
        if isinstance(params, list):
            self.asked = [each.extra_args[plugin.ARGUMENT] for each in params]
        return [  # each prompt again, after which 4 is a stop token
            SimpleNamespace(outputs=[SimpleNamespace(
                token_ids=ids, finish_reason="stop" if ids[-1] == 4 else "length"
            )])
            for ids in self.given
        ]  # fmt: skip

    def collective_rpc(self, name: str, args: tuple = ()) -> list[Any]:
        if name == "anchorscope_attach":
            return [{"blocks": [n, n + 1]} for n in (0, 0, 2, 2)]
        if name == "anchorscope_scores":
            rows = [[n, token, 0, 0] for n, c in zip(*args, strict=True) for token in range(c)]
            own = torch.tensor(rows, dtype=torch.float32)
            return [save({"scores": each}) for each in (own[:0], own[:0], own * torch.nan, own)]
        if name == "anchorscope_mass":
            pairs = zip(self.asked, self.given, strict=True)
            sizes = {asked["number"]: len(ids) for asked, ids in pairs}
            own = torch.cat([n + torch.arange(sizes[n]) / 100 for n in args[0]])
            return [save({"mass": own * share}) for share in (1, 3, 4, 0)]  # of two heads, 4 blocks
        if name == "anchorscope_states":
            pairs = zip(*args, strict=True)
            own = torch.tensor([[[n, at, b] for b in range(4)] for n, at in pairs])
            return [
                save({"states": own[:, :2].clone()}),
                b"",
                save({"states": own[:, 2:].clone()}),
                b"",
            ]
        return []


@pytest.fixture
def fake_server(monkeypatch) -> VllmServer:
    monkeypatch.setitem(sys.modules, "vllm", fake_vllm(llm=FakeLLM))
    monkeypatch.setattr(plugin, "register", lambda: None)
    return VllmServer("some/model", dtype=torch.float16, tensor_parallel=2, longest=300)


def test_each_reading_has_its_own_numbers(fake_server):
    assert fake_server.blocks == 4
    fake_server.read([ReadRequest(ids=(1, 2))] * 3)
    requests = [
        ReadRequest(ids=(1, 2, 3), scored=2, mass=True),
        ReadRequest(ids=(1, 2), keys=(1,), blocks=(0, 2)),
        ReadRequest(ids=(5, 6, 7, 8), scored=3, queries=(3,), added=0.5),
        ReadRequest(ids=(9, 9), mass=True, scored=1),
    ]
    read = fake_server.read(requests)
    llm = fake_server._llm
    numbers = [each["number"] for each in llm.asked]
    assert len(set(numbers)) == 4 and llm.given == [list(request.ids) for request in requests]
    for request, asked in zip(requests, llm.asked, strict=True):
        lists = json.loads(json.dumps({k: v for k, v in vars(request).items() if k != "ids"}))
        assert asked == lists | {"number": asked["number"]}
    for number, request, scores in zip(numbers, requests, read.scores, strict=True):
        assert scores.tolist() == [[number, token, 0, 0] for token in range(request.scored)]
    for n, mass in zip((0, 3), read.mass, strict=True):
        assert mass == pytest.approx(numbers[n] + np.arange(len(requests[n].ids)) / 100)
    states = read.states([3, 0, 0], [1, 0, 2])
    pairs = ((numbers[3], 1), (numbers[0], 0), (numbers[0], 2))
    assert states.tolist() == [[[n, at, b] for b in range(4)] for n, at in pairs]


def test_vllm_is_given_what_the_recorder_needs(fake_server):
    given = fake_server._llm.options
    wanted = {"model": "some/model", "dtype": "float16", "tensor_parallel_size": 2,
              "max_model_len": 300, "attention_backend": "CUSTOM", "enforce_eager": True,
              "enable_prefix_caching": False, "async_scheduling": False}  # fmt: skip
    assert wanted.items() <= given.items()
    written = fake_server.write([[7, 4], [4, 9]], stop_ids=[4, 3], limit=9)
    assert [tuple(answer) for answer in written] == [((7,), True), ((4, 9), False)]


# --- The recorder, step by step ---

WIDTH, BLOCKS = 6, 3


class Block(nn.Module):
    """A block that leaves the addition of its output to the next one, as vLLM's do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        residual = hidden if residual is None else hidden + residual
        return self.inner(residual).tanh(), residual


class Decoder(nn.Module):
    """A model whose states at a token depend on that token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, ids: Tensor) -> Tensor:
        hidden, residual = self.embed(ids), None
        for block in self.layers:
            hidden, residual = block(hidden, residual)
        return hidden + residual

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.embed.weight.T

    def plain(self, id: int) -> list[Tensor]:
        states = [self.embed.weight[id]]
        for block in self.layers:
            states.append(states[-1] + block.inner(states[-1]).tanh())
        return states[1:]


def _ids(number: int, size: int) -> tuple[int, ...]:
    return tuple(range(100 * number, 100 * number + size))  # no token is in two requests


REQUESTS = {
    7: ReadRequest(ids=_ids(7, 9), keys=(2, 3), begin=6, positions=(8, 2), scored=3),
    2: ReadRequest(ids=_ids(2, 12), keys=(4,), queries=(9, 10), added=0.5, positions=(3, 11)),
    5: ReadRequest(ids=_ids(5, 6), keys=(1, 2), begin=2, blocks=(1, 3), positions=(5,), scored=2,
                   mass=True),
    4: ReadRequest(ids=_ids(4, 8), positions=(0, 7), scored=2, mass=True),
    1: ReadRequest(ids=_ids(1, 7), keys=(3,), begin=0, blocks=(0, 1), positions=(6,), scored=1),
}  # fmt: skip
X, Y = 8, 9  # requests of somebody else
# What each step computes: request, first position, tokens.
STEPS = [
    [(2, 0, 5), (X, 0, 3), (7, 0, 9)],
    [(5, 0, 4), (Y, 0, 2), (2, 5, 4)],
    [(X, 3, 1), (4, 0, 5)],  # no edge changes; request 2 was preempted
    [(4, 5, 3), (2, 0, 12), (5, 4, 2)],  # which is computed again
    [(X, 4, 1), (Y, 2, 1), (1, 0, 7)],
    [(1, 0, 7), (X, 5, 1), (Y, 3, 1)],
]


def _runner(model: nn.Module) -> Any:
    own = {str(number): SimpleNamespace(
        prompt_token_ids=[*request.ids],
        sampling_params=SimpleNamespace(
            extra_args={plugin.ARGUMENT: {"number": number} | server._arguments(request)}
        ),
    ) for number, request in REQUESTS.items()}  # fmt: skip
    others = {
        str(X): SimpleNamespace(
            prompt_token_ids=[*_ids(X, 3)], sampling_params=SimpleNamespace(extra_args=None)
        ),
        str(Y): SimpleNamespace(prompt_token_ids=[*_ids(Y, 2)], sampling_params=None),
    }
    return SimpleNamespace(
        get_model=lambda: model, device=torch.device("cpu"), max_num_reqs=4, max_model_len=20,
        model_config=SimpleNamespace(
            hf_text_config=SimpleNamespace(num_hidden_layers=BLOCKS, hidden_size=WIDTH)
        ),
        input_batch=SimpleNamespace(), requests=own | others,
    )  # fmt: skip


def _begin(recorder: Recorder, runner: Any, step: list[tuple[int, int, int]]) -> Any:
    """Begin a step as vLLM does: once for each kind of attention; one row of the batch is old."""
    starts = [0, *accumulate(count for _, _, count in step)]
    runner.input_batch.req_ids = [*(str(number) for number, _, _ in step), "7"]
    runner.input_batch.num_computed_tokens_cpu = np.array([*(first for _, first, _ in step), 2])
    batch = SimpleNamespace(num_reqs=len(step), query_start_loc_cpu=torch.tensor(starts))
    recorder.begin_step(batch)
    return recorder.begin_step(batch)


@pytest.fixture
def recorded() -> tuple[Recorder, Decoder, list[set]]:
    """All steps through a recorder, and the edges that each of them changed."""
    model, recorder, edges = Decoder().double().requires_grad_(False), Recorder(), []
    runner = _runner(model)
    assert recorder.attach(runner) == {"blocks": [0, 1, 2]}
    for step in STEPS:
        tables, changed = _begin(recorder, runner, step), set()
        assert (tables is None) == all(not REQUESTS[n].keys for n, *_ in step if n in REQUESTS)
        for block in range(BLOCKS) if tables is not None else ():
            recorder.begin_block(block)
            for row, (number, first, count) in enumerate(step):
                changed |= {
                    (number, q, k, block, float(tables.added[row]))
                    for q in range(first, first + count)
                    for k in range(q + 1)
                    if tables.is_key[row, k] & tables.is_query[row, q] & tables.active[row]
                }
        edges.append(changed)
        model(torch.tensor([100 * n + at for n, a, count in step for at in range(a, a + count)]))
    return recorder, model, edges


def test_each_step_changes_the_edges_of_its_requests_and_no_others(recorded):
    for step, edges in zip(STEPS, recorded[2], strict=True):
        assert edges == {
            (number, q, k, block, -np.inf if request.added is None else request.added)
            for number, first, count in step
            if (request := REQUESTS.get(number)) is not None
            for q in range(first, first + count)
            for k in range(q + 1)
            for block in range(BLOCKS)
            if changes(request, block, q, k)
        }
    assert sum(map(len, recorded[2])) > 20


def test_each_position_of_each_request_gives_its_own_state_and_score(recorded):
    recorder, model, _ = recorded
    pairs = [(n, at) for n in (4, 7, 1, 5, 2) for at in reversed(REQUESTS[n].positions)]
    states = recorder.states(*map(list, zip(*pairs, strict=True)))
    for (number, at), state in zip(pairs, states, strict=True):
        wanted = torch.stack(model.plain(100 * number + at))
        assert torch.allclose(state, wanted, atol=1e-12, rtol=0)
    order, scores = [5, 2, 7, 1, 4], []
    for number in order:
        ids = REQUESTS[number].ids
        for at in range(len(ids) - REQUESTS[number].scored, len(ids)):
            spread = model.compute_logits(model.plain(ids[at - 1])[-1]).log_softmax(-1)
            rank = 1 + int((spread > spread[ids[at]]).sum())
            scores.append([spread[ids[at]], rank, -(spread.exp() * spread).sum(), rank == 1])
    found = recorder.scores(order, [REQUESTS[number].scored for number in order])
    assert torch.allclose(found, torch.tensor(scores).float(), atol=1e-4) and len(found) == 8
    with pytest.raises(KeyError):  # which nobody asked for
        recorder.states([2], [4])
    recorder.forget()
    with pytest.raises(KeyError):
        recorder.states([4], [0])


def test_attention_mass_is_measured_at_the_last_token_of_each_request(recorded):
    recorder, model = recorded[0], Decoder()
    runner = recorder._runner = _runner(model)
    for step, wanted in ((STEPS[3], {4: (2, 0), 5: (16, 2)}), (STEPS[2], {}), (STEPS[1], {})):
        _begin(recorder, runner, step)
        assert [(token, row) for token, row, _ in recorder.mass_rows] == [*wanted.values()]
        for number, (_, _, mass) in zip(wanted, recorder.mass_rows, strict=True):
            mass += torch.arange(float(len(mass))) + number
    for number in (5, 4):
        mass = number + torch.arange(float(len(REQUESTS[number].ids)))
        assert torch.equal(recorder.mass([number]), mass)


# --- vLLM itself ---


def test_vllm_reads_as_transformers_does(tmp_path):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    if not torch.cuda.is_available():
        pytest.skip("vLLM needs a GPU")
    folder = str(save_tiny(tmp_path / "model"))
    served_by = load_model(folder, engine="vllm", dtype="float32")
    own, rng = ReferenceServer(folder), np.random.default_rng(0)
    requests = []
    for n in range(300):  # more than vLLM computes at once
        size = int(rng.integers(20, 90))
        keys = tuple(sorted(map(int, rng.choice(np.arange(1, size - 2), 4, replace=False))))
        kinds: list[dict[str, Any]] = [
            {}, {"keys": keys, "begin": keys[1]}, {"keys": keys, "blocks": (n % 3, n % 3 + 2)},
            {"keys": keys, "queries": (size - 2, size - 1), "added": 0.7}, {"mass": True},
        ]  # fmt: skip
        ids = tuple(map(int, rng.integers(1, 290, size)))
        positions = (size // 2, size - 1)
        requests.append(ReadRequest(ids=ids, positions=positions, scored=3, **kinds[n % 5]))
    places = [[n for n in range(300) for _ in range(2)], [p for r in requests for p in r.positions]]
    assert served_by.server is not None
    read, wanted = served_by.server.read(requests), own.read(requests)
    assert torch.allclose(read.states(*places), wanted.states(*places), **CLOSE)
    for mine, theirs in ((read.scores, wanted.scores), (read.mass, wanted.mass)):
        assert np.allclose(np.concatenate(mine), np.concatenate(theirs), atol=1e-4)
    prompts = [request.ids for request in requests[:20]]
    assert served_by.server.write(prompts, stop_ids=[7], limit=5) == own.write(
        prompts, stop_ids=[7], limit=5
    )
    assert all(check.ok for check in check_served(served_by, load_model(folder, dtype="float32")))
