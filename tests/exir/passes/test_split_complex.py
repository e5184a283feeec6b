# SPDX-License-Identifier: BSD-3-Clause
# Complex tensors inside a model with real inputs, compared with eager mode.

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import torchette
from torchette.errors import FormatError
from torchette.exir import EdgeCompileConfig, to_edge
from torchette.exir.decompositions import complex_numbers, fourier
from torchette.format import pte
from torchette.runtime import Runtime

fft, pairs = torch.fft, torch.view_as_real
aten = torch.ops.aten
WAVES = torch.randn(2, 6, 8)


class Function(nn.Module):
    def __init__(self, *functions: Callable, **buffers: torch.Tensor) -> None:
        super().__init__()
        self.functions = functions
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, *xs: torch.Tensor) -> list[Any]:
        return [function(*xs, *self.buffers()) for function in self.functions]


def check(functions: dict[str, Callable], *xs: torch.Tensor, tolerance: float = 1e-4, **buffers: Any) -> Any:
    """Compiles all functions as one model, which is faster, and compares each result with eager mode."""
    model = Function(*functions.values(), **buffers).eval()
    compiled = torchette.compile(model, xs)
    other_inputs = tuple(torch.randn_like(x) for x in xs)
    for name, ours, eager in zip(functions, compiled(*other_inputs), model(*other_inputs), strict=True):
        torch.testing.assert_close(
            ours, eager, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
    return compiled


TRANSFORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fnet": lambda x: fft.fftn(x, dim=(1, 2)).real,
    "power": lambda x: fft.rfft(x, norm="ortho").abs() ** 2,
    "phase": lambda x: torch.angle(fft.rfft2(x + 3)[..., 1:3]),
    "low pass": lambda x: fft.irfft(fft.rfft(x) * torch.linspace(1, 0, 5), n=8),
    "filter": lambda x: fft.irfft2(fft.rfft2(x, norm="ortho") * fft.rfft2(x.flip(0)), s=(6, 8), norm="forward"),
    "round trip": lambda x: torch.real(fft.ifftn(fft.fftn(x, norm="forward"), norm="forward")),
    "padded": lambda x: pairs(fft.fft(x, n=11, dim=1)),
    "cut": lambda x: fft.ifft2(x, s=(4, -1)).imag,
    "whole numbers": lambda x: fft.rfftn((x * 4).to(torch.int64), s=(4, 10)).real,
    "odd": lambda x: fft.irfftn(fft.rfftn(x[..., :7]), s=(2, 6, 7)),
    "hermitian": lambda x: fft.hfft(torch.complex(x, x.flip(-1)), n=11),
    "hermitian back": lambda x: pairs(fft.ihfft2(x)),
    "shifted": lambda x: pairs(fft.fftshift(fft.fft(x))),
}  # fmt: skip


def test_transforms() -> None:
    check(TRANSFORMS, WAVES)


# Split into factors: 96 = 8 x 12, 1000 = 25 x 40, 194 = 2 x 97; 101 has none.
@pytest.mark.parametrize("length", [96, 101, 194, 1000])
def test_long_transforms(length: int) -> None:
    signal = torch.randn(2, length)
    transforms: dict[str, Callable] = {
        "real": lambda x: pairs(fft.rfft(x)),
        "complex": lambda x: pairs(fft.ifft(torch.complex(x, x.flip(0)))),
        "to real": lambda x: fft.irfft(torch.complex(x, x.flip(0))[..., : length // 2 + 1], n=length),
    }
    check(transforms, signal, tolerance=1e-3)
    check({"real": transforms["real"]}, signal.double(), tolerance=1e-11)


def test_long_transform_needs_small_tables() -> None:
    compiled = check({"power": lambda x: fft.rfft(x).abs()}, torch.randn(1, 512), tolerance=1e-3)
    assert compiled.nbytes < 32_000  # 16 x 32; one matrix multiplication with all waves would need 1 MB
    assert not [op for op in compiled.program.operators() if "cos" in op or "arange" in op]


def test_spectrogram_and_back() -> None:
    window = torch.hann_window(64)

    def there(x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 64, 16, window=window, return_complex=True)

    check(
        {
            "spectrogram": lambda x, w: there(x, w).abs() ** 2,
            "and back": lambda x, w: torch.istft(there(x, w) * 2, 64, 16, window=w),
        },
        torch.randn(2, 320),
        window=window,
    )


def test_angles_of_real_frequencies_are_exact() -> None:
    """The first and the middle frequency of a real signal have the angle 0 or pi, not -pi by rounding."""
    model = Function(lambda x: fft.rfft(x).angle()[:, [0, -1]]).eval()
    x = torch.randn(40, 20)
    torch.testing.assert_close(torchette.compile(model, (x,))(x), model(x), rtol=0, atol=1e-6)


def test_rotary_embedding_of_complex_numbers() -> None:
    angles = torch.outer(torch.arange(6.0), 100.0 ** -(torch.arange(0, 8, 2) / 8))

    def rotated(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        numbers = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return pairs(numbers * turns).flatten(-2)

    check({"rotated": rotated}, WAVES, turns=torch.polar(torch.ones_like(angles), angles))


def z(x: torch.Tensor) -> torch.Tensor:
    """Returns complex values in all four quadrants."""
    return torch.complex(x, x.roll(1, -1))


OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sums": lambda x: pairs(z(x) + x - 2j + (1 - z(x)) * 3),
    "scaled sum": lambda x: pairs(torch.add(z(x), z(x.flip(0)), alpha=2 - 1j)),
    "products": lambda x: pairs(z(x) * z(x.flip(1)) * x * (2 + 1j)),
    "real times complex": lambda x: pairs(x * 1j),
    "quotients": lambda x: pairs(z(x) / z(x.flip(1)) / 2 + 1 / z(x) + z(x) / x),
    "by large ones": lambda x: pairs(z(x) * 1e30 / (z(x.flip(1)) * 1e30)),
    "powers": lambda x: pairs(z(x) ** 2 + z(x) ** -1.5 + z(x) ** z(x).conj() + 2 ** z(x)),
    "roots": lambda x: pairs(z(x).sqrt() + z(x).rsqrt()),
    "roots of reals": lambda x: pairs(torch.complex(x, torch.zeros_like(x)).sqrt()),
    "exponentials": lambda x: pairs(z(x).exp() + z(x).log()),
    "circular": lambda x: pairs(z(x).sin() + z(x).cos() + z(x).tan()),
    "hyperbolic": lambda x: pairs(z(x).sinh() + z(x).cosh() + z(x).tanh()),
    "far out": lambda x: pairs((z(x) * 200).tanh()),
    "inverses": lambda x: pairs(z(x).asin() + z(x).asinh() + z(x).atan() + z(x / 4).atanh()),
    "other logarithms": lambda x: pairs(z(x).log2() + z(x).log10()),
    "gates": lambda x: pairs(torch.sigmoid(z(x)) + nn.functional.silu(z(x))),
    "multiplied": lambda x: pairs(z(x).prod() + z(x).prod(1)),
    "zero or not": lambda x: torch.logical_and(z(x.relu()), x > 0) & z(x).all(1, keepdim=True) & z(x).any(),
    "signs": lambda x: pairs(z(x.clamp(min=0)).sgn()),
    "lengths and angles": lambda x: z(x).abs() + z(x).angle() + z(x).conj().imag + (-z(x)).real,
    "norms": lambda x: torch.linalg.vector_norm(z(x), dim=1) + z(x).var(1),
    "sums along": lambda x: pairs(z(x).sum(1) + z(x).mean(1) + z(x).cumsum(0)[0, :1]),
    "matrices": lambda x: pairs(z(x) @ z(x).mT.conj() + z(x[0]) @ z(x[1]).T),
    "linear": lambda x: pairs(torch.addmm(z(x[0, :, :6]), z(x[0]), z(x[1]).T, alpha=2)),
    "convolution": lambda x: pairs(nn.functional.conv1d(z(x), z(x[:, :3, :3].mT).mT[:, :, :2].repeat(1, 2, 1), z(x[0, :2, 0]))),
    "layouts": lambda x: pairs(torch.cat([z(x), x], 1).permute(2, 0, 1)[1:].flip(0).reshape(-1, 3).unsqueeze(0)),
    "stacked": lambda x: pairs(torch.stack([z(x), x * 2j], -1).squeeze(0)),
    "split": lambda x: pairs(z(x).split(2, 1)[1] * z(x).unbind(0)[0][:2]),
    "chosen": lambda x: pairs(torch.where(x > 0, z(x), 1.0).masked_fill(x > 1, 0.5j)),
    "indexed": lambda x: pairs(z(x)[:, [0, 2]].gather(2, torch.zeros(2, 2, 1, dtype=torch.int64))),
    "written": lambda x: pairs(torch.slice_scatter(z(x), z(x[:, :2]) * 2, 1, 0, 2)),
    "padded": lambda x: pairs(nn.functional.pad(z(x), (1, 2))),
    "made": lambda x: pairs(z(x) + torch.full((8,), 2j) + torch.ones_like(z(x)) + torch.zeros(8, dtype=torch.complex64)),
    "cast": lambda x: pairs(x.to(torch.complex128) * z(x)).float() + pairs(x.to(torch.int64).to(torch.complex64)),
    "compared": lambda x: (z(x) == z(x).clone()).float() + (z(x) != 1j).float() + torch.isnan(z(x)).float(),
}  # fmt: skip


def test_operations() -> None:
    check(OPERATIONS, WAVES)


def test_every_rule_is_of_an_operator() -> None:
    assert all(isinstance(op, torch._ops.OpOverload) for op in (*complex_numbers.RULES, *fourier.RULES))


def test_dynamic_sizes() -> None:
    model = Function(lambda x: pairs(fft.fft(x) * 1j)).eval()
    compiled = torchette.compile(
        model, (torch.randn(5, 8),), dynamic_shapes=(({0: Dim("n", min=2, max=20)},),)
    )
    for length in (2, 9, 20):
        x = torch.randn(length, 8)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_precision() -> None:
    x = torch.randn(3, 200, dtype=torch.float64)
    check({"fft": lambda x: pairs(fft.fft(x))}, x, tolerance=200 * torch.finfo(torch.float64).eps)


RESULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "fft": fft.fft,
    "rfft": fft.rfft,
    "view_as_complex": lambda x: torch.view_as_complex(x.reshape(-1, 2)),
    "cfloat": lambda x: x.cfloat(),
    "cdouble": lambda x: x.cdouble(),
    "conjugate": lambda x: fft.fft(x).conj(),
    "nothing": lambda x: None,
    "nested": lambda x: {"both": (x + 1, [fft.ifft(x)]), "twice": (z(x), z(x))},
    "a number": lambda x: z(x).sum(),
    "empty": lambda x: fft.fft(x)[:0],
}


def test_complex_results() -> None:
    compiled = check(RESULTS, WAVES)
    model = Function(*RESULTS.values())
    for loaded in (compiled, torchette.load(bytes(compiled))):
        actual, expected = loaded(WAVES), model(WAVES)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        numpy = loaded(WAVES.numpy())
        assert numpy[4].dtype == "complex128" and numpy[0].dtype == "complex64"
        torch.testing.assert_close(torch.from_numpy(numpy[0]), expected[0], rtol=1e-4, atol=1e-4)
    assert compiled.verify() < 1e-4
    assert "-> [0]: float32[2, 6, 8, 2] as complex" in repr(compiled)


class One(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return fft.rfft(x)


def test_file_stores_the_real_view() -> None:
    compiled = torchette.compile(One().eval(), (WAVES,), edge=EdgeCompileConfig(check_passes=True))
    method = Runtime.get().load_program(bytes(compiled)).load_method("forward")
    (real_view,) = method.execute([WAVES], real_view=True)
    torch.testing.assert_close(real_view, pairs(fft.rfft(WAVES)), rtol=1e-4, atol=1e-4)
    text = method.metadata.encoded_outputs
    assert pytree.treespec_loads(text) == pytree.tree_structure(0)  # torch and ExecuTorch see a plain tensor


def test_each_python_interface_returns_complex_results(tmp_path: Path) -> None:
    from torchette.devtools.bundle import BundledModule, BundledProgram, MethodTestCase, MethodTestSuite
    from torchette.extension import portable_lib

    file, expected = bytes(torchette.compile(One().eval(), (WAVES,))), fft.rfft(WAVES)
    suite = MethodTestSuite("forward", [MethodTestCase([WAVES], [expected])])
    bundle = BundledModule(BundledProgram(file, [suite]).serialize())
    path = tmp_path / "model.pte"
    path.write_bytes(file)
    method = Runtime.get().load_program(file).load_method("forward")
    results = {
        "torchette.load": torchette.load(file)(WAVES),
        "Method": method.execute([WAVES])[0],
        "Module": portable_lib._load_for_executorch_from_buffer(file).forward([WAVES])[0],
        "ExecuTorchMethod": portable_lib._load_program(str(path)).load_method("forward")([WAVES])[0],
        "BundledModule": bundle.verify_result_with_bundled_expected_output("forward", 0, 1e-4, 1e-4)[0],
    }
    for name, output in results.items():
        assert output.dtype == torch.complex64, name
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    (array,) = method.execute([WAVES.numpy()])
    assert array.dtype == "complex64"
    torch.testing.assert_close(torch.from_numpy(array), expected, rtol=1e-4, atol=1e-4)


def test_a_signature_tells_which_outputs_are_complex() -> None:
    file = bytes(torchette.compile(Function(lambda x: x + 1, fft.rfft).eval(), (WAVES,)))
    meta = Runtime.get().load_program(file).metadata("forward")
    assert [meta.output_is_complex(i) for i in range(2)] == [False, True]
    assert meta.output_tensor_meta(1).sizes() == pairs(fft.rfft(WAVES)).shape
    assert repr(meta).endswith("float32[2, 6, 5, 2] as complex")
    with pytest.raises(IndexError, match="output 2 does not exist, outputs: 2"):
        meta.output_is_complex(2)


@pytest.mark.parametrize(("suffix", "is_marked"), [("", True), (" ", True), ("]", False)])
def test_a_file_that_marks_a_real_output_as_complex(suffix: str, is_marked: bool) -> None:
    read = pte.read(bytes(torchette.compile(Function(lambda x: x + 1).eval(), (WAVES,), backend="portable")))
    leaf = '{"type": null, "context": null, "children_spec": [], "complex": true}'
    read.program.execution_plan[0].container_meta_type.encoded_out_str = f"[1, {leaf}]{suffix}"
    offsets = read.program.constant_segment.offsets
    constants = [b"", *(bytes(read.constant(i)) for i in range(1, len(offsets)))]
    method = Runtime.get().load_program(bytes(pte.write(read.program, constants))).load_method("forward")
    if is_marked:
        with pytest.raises(FormatError, match=r"output 0 of method 'forward' .* is float32\[2, 6, 8\]"):
            method.execute([WAVES])
    else:  # a tree that cannot be read
        torch.testing.assert_close(method.execute([WAVES])[0], WAVES + 1)


def test_lowering_does_not_modify_the_program() -> None:
    exported = torch.export.export(One().eval(), (WAVES,))
    for _ in range(2):
        edge = to_edge(exported)
        assert exported.call_spec.out_spec == pytree.tree_structure(0)
        pte = edge.to_executorch().buffer
        torch.testing.assert_close(torchette.load(pte)(WAVES), fft.rfft(WAVES), rtol=1e-4, atol=1e-4)
    (again,) = (program.module()(WAVES) for program in (edge.exported_program(),))
    torch.testing.assert_close(again, fft.rfft(WAVES), rtol=1e-4, atol=1e-4)


def test_complex_results_with_dynamic_sizes() -> None:
    compiled = torchette.compile(
        One().eval(), (torch.randn(5, 8),), dynamic_shapes=({0: Dim("n", min=2, max=20)},)
    )
    for length in (2, 9, 20):
        x = torch.randn(length, 8)
        torch.testing.assert_close(compiled(x), fft.rfft(x), rtol=1e-4, atol=1e-4)


class Sum(nn.Module):
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.full((8,), 1 - 2j))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(fft.fft(x))
        return self.total * 2


def test_complex_state() -> None:
    x = torch.randn(8)
    compiled, model = torchette.compile(Sum().eval(), (x,)), Sum()
    for _ in range(3):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


class Unnameable:
    def __init__(self, members: list[Any]) -> None:
        self.members = members


pytree.register_pytree_node(
    Unnameable, lambda u: (u.members, None), lambda members, _: Unnameable(list(members))
)


class Custom(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Unnameable([x, fft.fft(x)])


def test_complex_results_in_an_unserializable_class() -> None:
    result = torchette.compile(Custom().eval(), (WAVES,))(WAVES)
    assert type(result) is tuple  # the flat leaves
    torch.testing.assert_close(result, (WAVES, fft.fft(WAVES)), rtol=1e-4, atol=1e-4)


def test_operator_without_a_rule_is_rejected() -> None:
    function = lambda x: torch.linalg.eigvals(torch.complex(x[0, :, :6], x[0, :, :6])).real  # noqa: E731
    with pytest.raises(torchette.TorchetteError, match="complex"):
        torchette.compile(Function(function).eval(), (WAVES,))


def test_complex_input_is_rejected() -> None:
    with pytest.raises(torchette.TorchetteError, match=r"torch\.view_as_complex"):
        torchette.compile(Function(torch.abs).eval(), (z(WAVES),))
