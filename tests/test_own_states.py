"""Own states: the same tables as a run of them, and a sentence for everything that can be wrong."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pandas as pd
import pytest
import torch
from kit.evidence_fixture import simulated as run_of_world
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

import anchorscope as anc
from anchorscope.cli import app
from anchorscope.config import Config
from anchorscope.datasets.state_arrays import blocks_of, check_arrays, facts_of, open_arrays
from anchorscope.probes.folds import entity_folds
from anchorscope.simulate import Truth, simulate_states

TRUTH = Truth(samples=160, layers=2, width=8, seed=3)
N = TRUTH.samples
QUICK = ["--resamples", "100", "--fold-seeds", "1", "--folds", "3"]
ENTITY = np.array([f"thing {i // 2}" for i in range(N)])


def made() -> dict[str, np.ndarray]:
    """A complete set of arrays."""
    world = simulate_states(TRUTH)
    states = {name: world.states[name] for name in ("clean", "knockout", "neutral")}
    return states | {"answer_only": world.states["answer-only"], "z": world.z, "entity": ENTITY}


def last_line(result: tuple[int, str, str]) -> tuple[int, str]:
    """Exit code and last line of a command."""
    code, out, error = result
    return code, (error if code else out).strip().splitlines()[-1]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory) -> anc.RunView:
    return run_of_world(tmp_path_factory.mktemp("world") / "run", TRUTH, seed=3, folds=3)


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> anc.RunView:
    """The command on a .npz file, with everything known of the samples."""
    home = tmp_path_factory.mktemp("own")
    kind, relation = np.array(["name", "date"] * (N // 2)), np.array(["rel"] * N)
    texts = {"question": np.array([f"What is <b>{i}</b>?" for i in range(N)]),
             "answer": np.array(["Paris"] * N), "kind": kind, "relation": relation,
             "popularity": np.arange(N) + 1.0, "length": np.arange(N) % 7 + 8.0}  # fmt: skip
    np.savez(home / "my states.npz", **made(), **texts, note=np.zeros(3))
    words = ["analyse", str(home / "my states.npz"), "--out", str(home / "run")]
    app([*words, "--title", "Mine", "--seed", "3", *QUICK], standalone_mode=False)
    return anc.RunView.open(home / "run")


@pytest.mark.usefixtures("no_pictures")
def test_flipped_labels_of_a_fold_leave_every_reading_of_that_fold_bit_for_bit(own, tmp_path):
    given, fold = made(), entity_folds(ENTITY.tolist(), folds=3, seed=3)
    z = np.where(fold == 1, 1 - given["z"], given["z"])
    config = Config(seed=3, resamples=100, fold_seeds=1, folds=3, evidence=())
    flipped = anc.analyse({**given, "z": z}, out=tmp_path / "run", config=config).pathways
    columns = ["layer", "mode", "prediction", "logit_clean", "logit_knockout", "pathway"]
    number = own.pathways["id"].str.rsplit(":", n=1).str[-1].astype(int).to_numpy()
    assert flipped["z"].tolist() == z[number].tolist()
    mine = fold[number] == 1
    assert flipped[columns][mine].equals(own.pathways[columns][mine])
    others = ~mine & (flipped["mode"] == "paper")
    assert (flipped["logit_clean"][others] != own.pathways["logit_clean"][others]).all()


def test_the_tables_are_those_of_a_run_of_the_same_states(simulated, own):
    for table, key in (("layers", "delta_p"), ("probes", "auroc"), ("strict", "strict_gap")):
        mine, theirs = getattr(own, table), getattr(simulated, table)
        assert len(mine) == len(theirs)
        numbers = theirs.select_dtypes("number").columns
        assert key in numbers
        # What the covariates have a say in is another matter: the simulation draws its own.
        theirs_alone = ("adds", "null", "dip", "bic", "reliability", "kinds")
        kept = [name for name in numbers if not any(part in name for part in theirs_alone)]
        pd.testing.assert_frame_equal(mine[kept], theirs[kept], rtol=1e-9)
    assert own.findings["finding"].tolist() == simulated.findings["finding"].tolist()
    assert set(own.controls["intervention"]) == {"knockout", "neutral", "answer-only"}
    tables = {"answer_only", "boundary", "boundary_model", "awareness", "awareness_gap"}
    assert set(own.evidence) == tables
    assert len(own.claims) == len(simulated.claims)


def test_the_folder_is_a_whole_run(own):
    assert (own.model_name, own.datasets) == ("Mine", ["my-states"])
    assert (own.path / "figures" / "delta_p.svg").is_file()
    assert own.info["finished"] is True
    samples = own.samples.set_index("id").loc["my-states:own:1"]
    assert samples[["entity", "kind", "relation", "verdict"]].tolist() == [
        "thing 0", "date", "rel", "wrong" if made()["z"][1] else "right",
    ]  # fmt: skip
    page = (own.path / "report.html").read_text(encoding="utf-8")
    assert "kind of answer: name" in page
    assert "What is &lt;b&gt;" in page and "<b>1</b>?" not in page
    again = shlex.split(own.info["command"])
    assert again[:2] == ["anchorscope", "analyse"] and "--folds" in again


def test_the_same_command_again_takes_no_work(own, cli):
    before = (own.path / "report.html").stat().st_mtime_ns
    code, line = last_line(cli(*shlex.split(own.info["command"])[1:]))
    assert code == 0 and line.startswith("Next: ")
    assert (own.path / "report.html").stat().st_mtime_ns == before
    other = [*shlex.split(own.info["command"])[1:], "--C", "0.5"]
    code, line = last_line(cli(*other))
    assert code == 2 and "holds another run" in line


def test_other_commands_read_the_folder_but_detectors_need_answers(own, cli):
    home = own.path.parent
    code, line = last_line(cli("view", own.path, "--no-open", "--out", home / "v.html"))
    assert code == 0 and (home / "v.html").stat().st_size > 10_000
    code, line = last_line(cli("detect", "eval", own.path, "--out", home / "detectors"))
    assert code == 2 and "was made from states alone" in line


def test_every_kind_of_file_holds_the_same(tmp_path):
    arrays = made()
    text = {"entity": json.dumps(ENTITY.tolist())}
    numbers = {name: of for name, of in arrays.items() if name != "entity"}
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "small.npz", **arrays)
    columns = {n: np.asfortranarray(of) for n, of in numbers.items()}
    np.savez(tmp_path / "columns.npz", **columns, entity=ENTITY.astype("S"))
    save_file(numbers, tmp_path / "a.safetensors", metadata=text)
    hashes = {check_arrays(open_arrays(file)) for file in tmp_path.iterdir()}
    assert hashes == {check_arrays(open_arrays(arrays))}
    coded = numbers | {"entity": np.arange(N) // 2}
    save_file(coded, tmp_path / "codes.safetensors")
    facts = facts_of(open_arrays(tmp_path / "codes.safetensors"), dataset="d")
    assert list(facts["entity"][:4]) == ["0", "0", "1", "1"]


def test_bfloat16_is_read_as_it_is(tmp_path):
    tensors = {n: torch.tensor(of) for n, of in made().items() if n != "entity"}
    tensors |= {n: of.to(torch.bfloat16) for n, of in tensors.items() if n != "z"}
    save_tensors(tensors, tmp_path / "half.safetensors")
    read = open_arrays(tmp_path / "half.safetensors")
    check_arrays(read)
    ((_, rows),) = blocks_of(read["clean"])
    assert np.array_equal(rows, tensors["clean"].float().numpy())


def broken(**changes) -> dict[str, np.ndarray]:
    arrays = made() | changes
    return {name: of for name, of in arrays.items() if of is not None}


def spoilt(name: str, value: float, dtype: str = "float32") -> dict[str, np.ndarray]:
    states = made()[name].astype(dtype)
    with np.errstate(over="ignore"):
        states[[7, 9], 1, 3] = np.array(value).astype(dtype)
    return broken(**{name: states})


CLEAN = made()["clean"]
SHAPES = "states are [sample, layer, width] of float16, bfloat16, float32, float64, all of the same"
AGAIN = "Extract these states again, or leave the samples out."
WRONG = {
    "missing": (broken(knockout=None, z=None), "There is no array knockout and no array z."),
    "clean alone": (broken(knockout=None), "Clean states alone are enough for a detector"),
    "shape": (broken(neutral=CLEAN[:, :1]), "neutral is [160, 1, 8] of float32 and clean [160, 2"),
    "flat": (broken(clean=CLEAN[:, 0]), f"of float32 and clean [160, 8]; {SHAPES}"),
    "integers": (broken(knockout=CLEAN.astype(int)), "knockout is [160, 2, 8] of int64 and clean"),
    "length": (broken(entity=ENTITY[:9]), "entity is [9]; expected one entry for each of the 160"),
    "nan": (spoilt("knockout", np.nan), "knockout holds NaN or inf for 2 of 160 samples (first: "
            f"sample 7 counted from 0, layer 2). {AGAIN}"),
    "overflow": (spoilt("clean", 1e6, "float16"), "(first: sample 7 counted from 0, layer 2). "
                 "float16 overflows above 65504: extract them in bfloat16 or float32."),
    "double": (spoilt("clean", 1e300, "float64"), "clean holds NaN or inf for 2 of 160 samples"),
    "few": (broken(z=np.arange(N) < 3), "3 wrong and 157 right"),
    "z": (broken(z=np.arange(N) % 3), "z holds 2; accepted: 1 (wrong) and 0 (right)."),
    "z text": (broken(z=np.array(["wrong"] * N)), "z holds 'wrong'; accepted: 1 (wrong) and 0"),
    "no knockout": (broken(knockout=CLEAN), "knockout and clean are identical. Give knockout's"),
    "no control": (broken(neutral=CLEAN), "neutral and clean are identical. Give neutral's own"),
    "same control": (broken(neutral=made()["knockout"]), "neutral and knockout are identical."),
    "constant": (broken(clean=np.ones_like(CLEAN)), "clean is the same for every sample; a probe"),
    "ids": (broken(id=np.array(["a", *map(str, range(N - 2)), "a"])), "The id 'a' is there 2"),
    "popularity": (broken(popularity=np.array(["high"] * N)), "popularity holds str128; expected"),
    "entities": (broken(entity=np.array(["one", "two"] * (N // 2))), "The questions are about 2 "
                 "entities, fewer than the 5 folds. Ask about more entities or use fewer folds."),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_one_sentence_and_leaves_no_table(mistake, tmp_path, cli):
    arrays, expected = WRONG[mistake]
    np.savez(tmp_path / "x.npz", **arrays)
    code, line = last_line(cli("analyse", tmp_path / "x.npz", "--out", tmp_path / "run"))
    assert code == 2 and line.startswith("Error ") and expected in line
    assert not (tmp_path / "run" / "tables").exists()


def test_what_is_no_file_of_arrays_is_said(tmp_path, cli):
    np.savez(tmp_path / "objects.npz", **made(), kind=np.array([{}] * N, dtype=object))
    whole = tmp_path / "whole.npz"
    np.savez(whole, **made())
    (tmp_path / "torn.npz").write_bytes(whole.read_bytes()[:5000])
    (tmp_path / "torn.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    for name, words in (
        ("objects.npz", "is damaged or no .npz file of numbers and texts (Object arrays"),
        ("torn.npz", "is damaged or no .npz file"),
        ("torn.safetensors", "is damaged or no .safetensors file"),
        ("x.pt", "Accepted: a file that ends in .npz or .safetensors"),
        ("none.npz", "States cannot be read from"),
    ):
        code, line = last_line(cli("analyse", tmp_path / name, "--out", tmp_path / "run"))
        assert code == 2 and words in line
    code, line = last_line(cli("analyse", whole, "--evidence", "patching,boundary"))
    assert (code, line) == (
        2,
        "Error patching cannot be read from states alone: the model is needed. Accepted as "
        "evidence: none, or of answer-only, boundary, awareness.",
    )


@pytest.mark.usefixtures("no_pictures")
def test_one_layer_without_extras_is_enough(tmp_path):
    arrays = {n: array[:, :1] for n, array in made().items() if array.ndim == 3}
    config = Config(resamples=100, fold_seeds=1, folds=3, evidence=())
    run = anc.analyse(arrays, made()["z"], out=tmp_path / "run", config=config, entity=ENTITY)
    assert set(run.layers["layer"]) == {1}
    assert run.samples["kind"].tolist() == [""] * N
    with pytest.raises(anc.UserError, match="Nothing is known of subject"):
        anc.analyse(arrays, made()["z"], out=tmp_path / "other", subject=ENTITY)


@pytest.mark.usefixtures("no_pictures")
def test_clean_and_knockout_are_enough(tmp_path, cli):
    np.savez(tmp_path / "two.npz", **{n: made()[n] for n in ("clean", "knockout", "z")})
    code, _, error = cli("analyse", tmp_path / "two.npz", *QUICK, "--out", tmp_path / "run")
    assert code == 0, error
    controls = pd.read_csv(tmp_path / "run" / "tables" / "controls.csv")
    assert set(controls["intervention"]) == {"knockout"}


@pytest.mark.usefixtures("no_pictures")
def test_every_pass_of_a_run_may_be_brought(tmp_path, cli):
    """NaN says that a sample has no state."""
    arrays, rng = made(), np.random.default_rng(0)
    jolted = {
        name: (arrays["clean"] + rng.normal(0, 0.3, CLEAN.shape)).astype(np.float32)
        for name in ("content", "question", "retest", "retest-knockout")
    }
    jolted["content"][:40], jolted["retest"][100:], jolted["retest-knockout"][100:] = (np.nan,) * 3
    arrays |= jolted | {"exact_tokens": np.arange(N) % 4}
    np.savez(tmp_path / "all.npz", **arrays)
    code, _, error = cli("analyse", tmp_path / "all.npz", *QUICK, "--out", tmp_path / "run")
    assert code == 0, error
    counted = pd.read_csv(tmp_path / "run" / "tables" / "controls.csv")
    counts = counted.drop_duplicates("intervention").set_index("intervention")["n"]
    assert counts.to_dict() == {
        "knockout": 160, "neutral": 160, "content": 120, "question": 160, "answer-only": 160,
        "retest": 100, "retest-knockout": 100,
    }  # fmt: skip


def test_a_state_that_is_broken_in_part_is_no_missing_one(tmp_path, cli):
    content = made()["clean"] + 1
    content[3] = np.nan
    content[5, 1, 2] = np.nan
    np.savez(tmp_path / "part.npz", **made(), content=content)
    code, _, error = cli("analyse", tmp_path / "part.npz", *QUICK, "--out", tmp_path / "run")
    assert code and "content holds NaN or inf for 1 of 160 samples (first: sample 5" in error
