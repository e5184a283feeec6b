# SPDX-License-Identifier: BSD-3-Clause
# The callable model: structures, names, several methods, saving; on models from the compiler.

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from torchette._compile import _agree  # noqa: E402
from torchette.errors import InputError, InputTypeError, ModelNotFoundError, RuntimeLoadError  # noqa: E402
from torchette.runtime import Program, Runtime  # noqa: E402


class Nest(torch.nn.Module):
    def forward(self, image: Any, pair: Any, *, scale: Any) -> dict[str, Any]:
        return {"sum": image + pair[0], "rest": (pair[1]["h"] * scale, [image - 1], None)}


class Double(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2


def arguments() -> tuple[tuple, dict]:
    return (torch.randn(2, 3), (torch.randn(2, 3), {"h": torch.randn(4)})), {"scale": torch.randn(4)}


@pytest.fixture(scope="module")
def nest() -> torchette.Model:
    args, kwargs = arguments()
    return torchette.compile(Nest().eval(), args, kwargs)


def test_structures_come_back(nest: torchette.Model, tmp_path: Path) -> None:
    nest.save(tmp_path / "nest.pte")
    args, kwargs = arguments()
    expected = Nest()(*args, **kwargs)
    for model in (nest, torchette.load(tmp_path / "nest.pte"), torchette.load(bytes(nest))):
        actual = model(*args, **kwargs)
        assert list(actual) == ["sum", "rest"] and type(actual["rest"]) is tuple and actual["rest"][2] is None
        torch.testing.assert_close(actual, expected)
    numpy = nest(
        args[0].numpy(), (args[1][0].numpy(), {"h": args[1][1]["h"].numpy()}), scale=kwargs["scale"].numpy()
    )
    assert isinstance(numpy["sum"], np.ndarray) and np.allclose(numpy["sum"], expected["sum"])


class Best(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.sum(), {"best": torch.topk(x, 2), "largest": x.max(0)}


def test_results_with_names_keep_them(tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    compiled = torchette.compile(Best().eval(), (x,))
    _, result = compiled(x)
    torch.testing.assert_close(result, Best()(x)[1], check_stride=False)
    assert type(result["best"]) is torch.return_types.topk
    compiled.save(tmp_path / "best.pte")
    assert torchette.load(tmp_path / "best.pte")(x.numpy())[1]["largest"].indices.shape == (6,)


@dataclasses.dataclass
class Found:
    box: Any
    score: Any
    mask: Any = None


torch.export.register_dataclass(Found)


class Finds(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return Found(x + 1, [x.sum()])


def test_dataclasses_come_back(tmp_path: Path) -> None:
    compiled = torchette.compile(Finds().eval(), (torch.ones(2),))
    result = compiled(torch.ones(2))
    assert type(result) is Found and result.mask is None and float(result.score[0]) == 2
    compiled.save(tmp_path / "finds.pte")
    code = (
        f"import numpy, torchette; found = torchette.load({str(tmp_path / 'finds.pte')!r})(numpy.ones(2, 'f'));"
        "assert list(found) == ['box', 'score'] and found['box'][1] == 2, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_arguments_by_name(nest: torchette.Model) -> None:
    args, kwargs = arguments()
    expected = Nest()(*args, **kwargs)["sum"]
    model = torchette.compile(Double().eval(), (torch.ones(3),))
    assert torch.equal(model(x=torch.ones(3)), 2 * torch.ones(3))
    assert torch.equal(nest(*args, **kwargs)["sum"], expected)


def test_invalid_arguments_are_rejected(nest: torchette.Model) -> None:
    (image, pair), kwargs = arguments()
    for args, call_kwargs, words in [
        ((image,), kwargs, "requires 2 positional arguments, 1"),
        ((image, pair), {}, "requires the argument 'scale'"),
        ((image, pair), {**kwargs, "middle": image}, "no argument 'middle'"),
        ((image, image), kwargs, "must be a tuple, got Tensor"),
        ((image, (pair[0], {"g": image})), kwargs, r"\['h'\] missing.*\['g'\] unknown"),
        ((image, (pair[0], {"h": image})), kwargs, r"\[1\]\['h'\].*\(2, 3\).*\(4,\)"),
        ((image, pair), {"scale": torch.ones(4, dtype=torch.int64)}, r"scale.*int64.*float32"),
    ]:
        with pytest.raises(InputError, match=words):
            nest(*args, **call_kwargs)


def test_methods_by_name() -> None:
    model = torchette.compile(
        {"double": (Double().eval(), (torch.ones(3),)), "nest": (Nest().eval(), *arguments())}
    )
    assert list(model.methods) == ["double", "nest"] and "double" in dir(model)
    assert torch.equal(model.double(torch.ones(3)), 2 * torch.ones(3))
    with pytest.raises(RuntimeLoadError, match="no method 'forward'"):
        model(torch.ones(3))
    with pytest.raises(AttributeError, match=r"'triple'.*double, nest"):
        _ = model.triple
    contents = bytes(model)
    assert torch.equal(torchette.load(contents, method="double")(torch.ones(3)), 2 * torch.ones(3))
    with pytest.raises(RuntimeLoadError, match=r"'triple'.*double, nest"):
        torchette.load(contents, method="triple")


@pytest.mark.parametrize("name", [None, "forward"])
def test_threads_are_those_of_each_method(
    nest: torchette.Model, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    num_threads: list[Any] = []
    load = Program.load_method
    monkeypatch.setattr(
        Program,
        "load_method",
        lambda self, name, **of: num_threads.append(of["threads"]) or load(self, name, **of),
    )
    torchette.load(bytes(nest), name, threads=2)
    assert num_threads == [2]
    with pytest.raises(InputError, match="threads must be an integer of at least 1, got 0"):
        torchette.load(bytes(nest), name, threads=0)


def test_representation(nest: torchette.Model, tmp_path: Path) -> None:
    path = tmp_path / "nest.pte"
    nest.save(path)
    text = repr(torchette.load(path))
    for part in ("nest.pte", "kB", "image: float32[2, 3]", "['h']: float32[4]", "scale: float32[4]", "arena"):
        assert part in text
    assert "0x" not in text and "nest" not in repr(nest).lower()


def test_save_is_atomic(nest: torchette.Model, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        nest.save(path)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["model.pte"]
    monkeypatch.undo()
    assert nest.save(path) == path
    assert path.read_bytes() == bytes(nest) and os.listdir(tmp_path) == ["model.pte"]
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_mapped_model_survives_its_files_replacement(tmp_path: Path) -> None:
    path = tmp_path / "model.pte"
    torchette.compile(Double().eval(), (torch.ones(3),)).save(path)
    model = torchette.load(path)
    model.save(path)  # overwrites the file that it was loaded from
    torchette.compile(Double().eval(), (torch.ones(5),)).save(path)
    assert torch.equal(model(torch.ones(3)), 2 * torch.ones(3))
    path.unlink()
    assert torch.equal(model(torch.ones(3)), 2 * torch.ones(3))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        torchette.load(tmp_path / "nowhere.pte")


def test_an_open_file_is_loaded(nest: torchette.Model, tmp_path: Path) -> None:
    path = nest.save(tmp_path / "nest.pte")
    with open(path, "rb") as file:
        assert torchette.load(file).methods.keys() == nest.methods.keys()


def test_copies_are_rejected_with_a_remedy(nest: torchette.Model, tmp_path: Path) -> None:
    loaded = torchette.load(nest.save(tmp_path / "nest.pte"))
    program = Runtime.get().load_program(tmp_path / "nest.pte")
    for original in (loaded, program, program.load_method("forward")):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(InputTypeError, match="cannot be pickled or copied") as caught:
                copied(original)
            assert "the path or the bytes of its file" in str(caught.value)


def test_quantized_outputs_agree_within_few_rounding_steps() -> None:
    torch.manual_seed(0)
    expected = (torch.randn(1000) * 10).round() / 10
    one_step = expected.clone()
    one_step[3] += 0.1
    all_steps = expected + 0.1
    assert [_agree(expected, ours, 1e-4, 1e-5, True) for ours in (expected, one_step, all_steps)] == [
        True,
        True,
        False,
    ]
    assert not _agree(expected, one_step, 1e-4, 1e-5, False)
    one_step[5] = torch.nan
    assert not _agree(expected, one_step, 1e-4, 1e-5, True)
