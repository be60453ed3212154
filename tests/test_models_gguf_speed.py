"""What makes the first reading of a GGUF file fast changes no number and leaves nothing behind."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFEndian, GGUFWriter
from kit.tiny_gguf import write_gguf

from anchorscope.models.gguf import convert, read_once, unpack
from anchorscope.models.gguf.reader import Reader

KINDS = [
    "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0",
    "TQ2_0", "MXFP4",
]  # fmt: skip


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(unpack, "_SHORT", 1 << 12)
    monkeypatch.setattr(unpack, "_LONG", 1 << 13)
    with ThreadPoolExecutor(3) as pool:
        yield unpack.Threads(pool, 3)


def random_bytes(kind: GGMLQuantizationType, *shape: int) -> np.ndarray:
    """Weights of `shape` as a file may hold them: every byte by chance."""
    block, space = GGML_QUANT_SIZES[kind]
    size = (*shape[:-1], shape[-1] // block * space)
    return np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # bytes by chance are infinite now and then
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("shape", [(131, 768), (3, 43, 256), (1, 1 << 15), (1 << 15,)])
def test_slices_on_many_threads_are_the_bits_of_gguf(threads, name, shape):
    kind = getattr(GGMLQuantizationType, name, None)
    if kind is None:
        pytest.skip(f"this gguf knows no {name}")
    packed, calls = random_bytes(kind, *shape), []

    def plain(data: np.ndarray, asked: Any) -> np.ndarray:
        calls.append(data.size)
        return gguf.dequantize(data, asked)

    ours = unpack.unpack(packed, kind, plain=plain, threads=threads)
    expected = gguf.dequantize(packed, kind)
    assert ours.shape == expected.shape == shape and ours.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(ours.view(np.uint32), expected.view(np.uint32))
    assert len(calls) == -(-ours.size // (1 << 13)) and sum(calls) == packed.size


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_cannot_be_sliced_goes_to_gguf_as_it_came(threads):
    given: list[np.ndarray] = []

    def plain(data: np.ndarray, kind: Any) -> np.ndarray:
        given.append(data)
        return gguf.dequantize(data, kind)

    q8 = GGMLQuantizationType.Q8_0
    values = np.ones((256, 256), np.float32)
    wide = random_bytes(q8, 256, 512)
    for data, kind in [
        (values, GGMLQuantizationType.F32),  # lies in the file as it is needed
        (wide[:, : wide.shape[1] // 2], q8),  # a part of every row
        (np.zeros((0, 34), np.uint8), q8),
    ]:
        unpack.unpack(data, kind, plain=plain, threads=threads)
        assert given.pop() is data and not given
    assert (
        unpack.unpack(values, GGMLQuantizationType.F32, plain=plain, threads=threads).base is values
    )
    with pytest.raises(ValueError, match="not a multiple of Q8_0 type size"):
        unpack.unpack(np.zeros((512, 999), np.uint8), q8, plain=plain, threads=threads)


def test_rounding_to_float16_is_that_of_torch(threads):
    """Every half, what lies exactly and barely off the middle of two, and bits by chance."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = np.unique(halves[np.isfinite(halves)].astype(np.float32))
    middles = (finite[1:] + finite[:-1]) / 2
    by_chance = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype=np.uint32)
    edge = np.float32([65519.996, 65520, 1e9, np.inf, -np.inf, -0.0, 2**-25, 1e-30])
    values = np.concatenate([
        finite, middles, np.nextafter(middles, np.float32(np.inf)),
        np.nextafter(middles, np.float32(-np.inf)), edge, by_chance.view(np.float32),
    ])  # fmt: skip
    values = values[~np.isnan(values)]
    ours = unpack.rounded(values, threads)
    torchs = torch.from_numpy(values).to(torch.float16).numpy()
    np.testing.assert_array_equal(ours.view(np.uint16), torchs.view(np.uint16))
    assert np.isnan(unpack.rounded(np.float32([[np.nan]]), threads)).all()


def every_name() -> dict[str, Any]:
    """What gguf and transformers hold under every name of the modules that `read_once` touches."""
    names = ["gguf", read_once._LOOP, read_once._PARSER]
    modules = [module for name in names if (module := read_once._module(name)) is not None]
    return {f"{m.__name__}.{name}": value for m in modules for name, value in vars(m).items()}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_nothing_stays_replaced(half, error):
    every_name()  # imports what is imported late
    before = every_name()
    with contextlib.suppress(error or ()), read_once.read_once(half=half):
        inside = every_name()
        changed = {name for name, value in inside.items() if before[name] is not value}
        if error is not None:
            raise error
    assert {"gguf.GGUFReader", "gguf.dequantize", "gguf.get_tensor_name_map"} < changed
    assert {f"{read_once._LOOP}.{name}" for name in ("np", "tqdm", "_gguf_parse_value")} < changed
    after = every_name()
    assert after.keys() == before.keys()
    assert all(after[name] is value for name, value in before.items())


def test_a_copy_is_made_of_what_lies_in_the_file_alone(monkeypatch):
    monkeypatch.setattr(read_once, "_TORCH_IS_SLOW", False)
    loop = importlib.import_module(read_once._LOOP)
    fresh = np.ones((4, 6), np.float32)
    mapped = fresh.copy()
    mapped.flags.writeable = False
    with read_once.read_once(half=True):
        assert loop.np.copy(fresh) is fresh
        assert not np.shares_memory(loop.np.copy(mapped), mapped)
        assert loop.np.copy(mapped).flags.writeable
        turned = loop.np.copy(fresh.T)
        assert not np.shares_memory(turned, fresh) and turned.strides == np.copy(fresh.T).strides
        assert loop.np.stack is np.stack


def sums(folder: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()}


@pytest.mark.parametrize("slow_torch", [False, True])
@pytest.mark.parametrize("inside", ["as expected", "other names"])
@pytest.mark.parametrize("quantised", ["Q8_0", "Q4_0", "F16", None])
def test_the_folder_is_byte_for_byte_that_of_transformers(
    tmp_path, monkeypatch, slow_torch, inside, quantised
):
    kind = quantised and GGMLQuantizationType[quantised]
    file = write_gguf(tmp_path / "tiny.gguf", quantised=kind)
    with monkeypatch.context() as plain:
        plain.setattr(convert, "read_once", lambda **_: contextlib.nullcontext())
        convert._convert(file, tmp_path / "plain")
    monkeypatch.setattr(unpack, "_SHORT", 1 << 9)
    monkeypatch.setattr(read_once, "_TORCH_IS_SLOW", slow_torch)
    if inside == "other names":
        monkeypatch.setattr(read_once, "_LOOP", "transformers.of_another_release")
        monkeypatch.setattr(read_once, "_PARSER", "transformers.of_another_release")
    convert._convert(file, tmp_path / "ours")
    assert sums(tmp_path / "ours") == sums(tmp_path / "plain")
    assert {"model.safetensors", "tokenizer.json"} < sums(tmp_path / "ours").keys()


def same_header(ours: Any, own: Any) -> None:
    """Every field of two readers is the same, to the view on each item."""
    assert list(ours.fields) == list(own.fields)
    for name, field in own.fields.items():
        other = ours.fields[name]
        assert (other.offset, other.data, other.types) == (field.offset, field.data, field.types)
        assert [(p.dtype, p.tobytes()) for p in other.parts] == [
            (p.dtype, p.tobytes()) for p in field.parts
        ]
    for one, other in zip(ours.tensors, own.tensors, strict=True):
        assert (one.name, one.data_offset) == (other.name, other.data_offset)
        np.testing.assert_array_equal(one.data, other.data)


@pytest.mark.parametrize("endian", GGUFEndian)
def test_every_kind_of_field_is_read_as_gguf_reads_it(tmp_path, endian):
    writer = GGUFWriter(path := tmp_path / "fields.gguf", "llama", endianess=endian)
    for name, values in {
        "strings": ["one", "", "zwölf"], "whole": [1, -2, 1 << 20], "real": [0.5, -1e9],
        "truths": [True, False], "nested": [[1, 2], [3]], "nested_strings": [["a", "b"], ["c"]],
    }.items():  # fmt: skip
        writer.add_array(name, values)
    writer.add_string("text", "zwölf")
    writer.add_tensor("weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    same_header(Reader(path), gguf.GGUFReader(path))
    if endian == GGUFEndian.LITTLE:
        assert Reader(path).fields["strings"].contents() == ["one", "", "zwölf"]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_file_is_parsed_once_and_as_gguf_parses_it(tmp_path, kind):
    path = write_gguf(tmp_path / "tiny.gguf", kind=kind)
    loop = importlib.import_module(read_once._LOOP)
    plain = loop.load_gguf_checkpoint(path)
    with read_once.read_once():
        ours = gguf.GGUFReader(str(path), "r")
        assert gguf.GGUFReader(path) is ours
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
        assert gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2) is names
        assert gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 3).mapping != names.mapping
        parsed = loop.load_gguf_checkpoint(path)
    assert names.mapping == gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2).mapping
    assert repr(parsed) == repr(plain) and parsed == plain  # 1 is no True, and no 1.0
    same_header(ours, gguf.GGUFReader(path))
