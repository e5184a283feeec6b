# SPDX-License-Identifier: BSD-3-Clause
# The Python sides of the comparison: each converts a module to its file, and calls it with the fewest operations that its API
# allows. This module runs in the side's virtual environment, so every import is local.
"""One class per side; `SIDES` contains them by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Call = Callable[[], Any]


class Side:
    """An engine. `convert` writes `file`. `requires` are the packages of its environment; () selects this environment."""

    requires: Sequence[str] = ()
    file = ""
    # Modules that are imported before the memory is measured.
    library = ""
    # The side with the file that this side reads instead of a module.
    source = ""
    # Whether a C++ program measures it, instead of `load`.
    native = False

    @staticmethod
    def convert(module: Any, args: tuple[Any, ...], path: Path) -> None:
        """Writes the file."""
        raise NotImplementedError

    @staticmethod
    def load(path: Path, threads: int, inputs: list[Any]) -> tuple[Call, Call]:
        """Returns two functions for numpy arrays: one executes a call, one returns the list of its results."""
        raise NotImplementedError


class Cpu(Side):
    file, native = "model.pte", True
    backend = "cpu"

    @classmethod
    def convert(cls, module, args, path):
        import torchette

        torchette.compile(module, args, backend=cls.backend).save(path)


class Portable(Cpu):
    backend = "portable"


class ExecuTorch(Side):
    file, native = "model.pte", True

    @staticmethod
    def convert(module, args, path):
        import torch
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        program = torch.export.export(module, args)
        manager = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
        with path.open("wb") as file:
            manager.write_to_file(file)


class OnnxRuntime(Side):
    requires = ("onnxruntime==1.32.0", "onnx==1.23.2", "onnxscript==0.7.2")
    file, library = "model.onnx", "onnxruntime"

    @staticmethod
    def convert(module, args, path):
        import onnx
        import torch

        torch.onnx.export(module, args, path, dynamo=True, external_data=False, optimize=True, verbose=False)
        model = onnx.load(path)
        _remove_softmax_guards(model.graph)
        onnx.save(model, path)

    @staticmethod
    def load(path, threads, inputs):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for port, array in zip(session.get_inputs(), inputs, strict=True):
            binding.bind_cpu_input(port.name, array)
        for port in session.get_outputs():
            binding.bind_output(port.name)
        return lambda: session.run_with_iobinding(binding), binding.copy_outputs_to_cpu


class OpenVino(Side):
    # NNCF quantizes the int8 variants.
    requires = ("openvino==2026.4.1", "nncf==3.4.0")
    file, library, source = "model.xml", "openvino", "onnxruntime"

    @staticmethod
    def read(module, args):
        """Returns OpenVINO's form of an ONNX file, or of a module if there is no file."""
        import openvino

        options = {} if isinstance(module, str) else {"example_input": args}
        return openvino.convert_model(module, **options)

    @classmethod
    def convert(cls, module, args, path):
        import openvino

        openvino.save_model(cls.read(module, args), path, compress_to_fp16=False)

    @staticmethod
    def load(path, threads, inputs):
        import openvino

        reduced = path.parents[1].name.endswith("_bfloat16")
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if reduced else "f32",
        }
        request = openvino.Core().compile_model(path, "CPU", options).create_infer_request()
        for index, array in enumerate(inputs):
            request.set_input_tensor(index, openvino.Tensor(array))

        def call():
            request.start_async()
            request.wait()

        return call, lambda: [tensor.data for tensor in request.output_tensors]


class LiteRt(Side):
    # Without their dependencies: xdsl 0.28 requires a typing-extensions that is too old for the other packages.
    requires = (
        "--no-deps",
        *(
            "litert-torch==0.10.0",
            "ai-edge-litert==2.3.0",
            "ai-edge-quantizer==0.10.0",
            "litert-converter==0.5.0",
        ),
        *("litert-lm-builder==0.18.1", "xdsl==0.28.0", "jax==0.10.2", "jaxlib==0.10.2", "jaxtyping==0.3.11"),
        *(
            "absl-py",
            "backports.strenum",
            "fire",
            "immutabledict",
            "kagglehub",
            "kagglesdk",
            "lark",
            "ml_dtypes",
        ),
        *("multipledispatch", "opt_einsum", "termcolor", "tomli", "wadler-lindig"),
    )
    file, library = "model.tflite", "ai_edge_litert.interpreter"

    @staticmethod
    def convert(module, args, path):
        import litert_torch

        litert_torch.convert(module, args).export(str(path))

    @staticmethod
    def load(path, threads, inputs):
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model_path=str(path), num_threads=threads)
        interpreter.allocate_tensors()
        name, ports = next(iter(interpreter.get_signature_list().items()))
        signature = interpreter.get_signature_runner(name)
        arguments, results = signature.get_input_details(), signature.get_output_details()
        for port, array in zip(ports["inputs"], inputs, strict=True):
            interpreter.set_tensor(arguments[port]["index"], array.astype(arguments[port]["dtype"]))
        indices = [results[port]["index"] for port in ports["outputs"]]
        return interpreter.invoke, lambda: [interpreter.get_tensor(index) for index in indices]


class Eager(Side):
    library = "torch"

    @staticmethod
    def load(path, threads, inputs):
        import torch

        from benchmarks.peers import models

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        module, args = models.build(path.parent.name)

        def results():
            outputs = module(*args)
            return outputs if isinstance(outputs, tuple) else (outputs,)

        return lambda: module(*args), results


SIDES: dict[str, type[Side]] = {
    "cpu": Cpu,
    "portable": Portable,
    "executorch": ExecuTorch,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "litert": LiteRt,
    "eager": Eager,
}
OURS = ("cpu", "portable")


def _remove_softmax_guards(graph: Any) -> None:
    """Replaces Where(IsNaN(x), 0, x) by x.

    The exporter writes it around every masked softmax, and engines then do not recognize attention. It has no effect here, because
    these models mask no complete row.
    """
    tested = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "IsNaN"}
    guards = {
        node.output[0]: node.input[2]
        for node in graph.node
        if node.op_type == "Where" and tested.get(node.input[0]) == node.input[2]
    }
    remaining = [node for node in graph.node if node.output[0] not in guards and node.op_type != "IsNaN"]
    if not guards:
        return
    for node in remaining:
        node.input[:] = [guards.get(name, name) for name in node.input]
    del graph.node[:]
    graph.node.extend(remaining)
