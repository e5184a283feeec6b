# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file or its bytes. Out: a model that is called like the compiled module. Requires only numpy. The runtime
# accepts flat lists of values; this module converts them from and to nested structures.
"""`torchette.load`, and the callable model that it and `torchette.compile` return."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from torchette import notebook, pytree
from torchette.errors import (
    InputError,
    InputTypeError,
    RuntimeLoadError,
    did_you_mean,
    not_copyable,
)
from torchette.files import replacing
from torchette.pytree import LEAF, Tree
from torchette.runtime import Method, MethodMeta, Program, Runtime
from torchette.runtime.program import checked_num_threads
from torchette.units import byte_text, counted


def load(
    source: str | os.PathLike[str] | bytes | BinaryIO,
    method: str | None = None,
    data_files: Sequence[str | os.PathLike[str]] = (),
    aten: bool = False,
    threads: int | None = None,
) -> Model:
    """Loads a compiled model.

    Args:
        source: the path of a .pte file, which is memory-mapped; its contents; or an open binary file. Files of ExecuTorch are
            supported.
        method: the default method of the model; by default ``forward``, or the only method.
        data_files: paths of the .ptd files with external weights.
        aten: whether to run on torch's own kernels, see `Runtime.get`.
        threads: the number of threads of each method; default: that of `Runtime.set_num_threads`.

    Returns:
        The model.

    Raises:
        InputError: if `threads` is not a positive integer.
        InputTypeError: if `source` is not a path, bytes or a binary file.
        ModelNotFoundError: if the file does not exist.
        FormatError: if the file is not a program, or is truncated or damaged.
        RuntimeLoadError: if the method does not exist, or if kernels or backends are missing; names all of them.

    Example:
        >>> outputs = torchette.load("model.pte")(x)
    """
    model = Model(source, method, data_files, aten, threads)
    if model.default is not None:
        model.methods[model.default].load()
    return model


class Model:
    """A compiled model. A call accepts and returns the same values as the module.

    All methods are attributes: ``model.decode(x)``; `methods` lists them. Buffers that a method updates keep their
    values between calls.

    Example:
        >>> model = torchette.load("model.pte", threads=1)
        >>> outputs = model(x)
        >>> model.forward.signature
        'forward(input: float32[1, 4]) -> float32[1, 2]'
    """

    default: str | None
    """The name of the method that a call of the model runs."""
    methods: Mapping[str, BoundMethod]
    """All methods by name."""

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | BinaryIO,
        method: str | None = None,
        data_files: Sequence[str | os.PathLike[str]] = (),
        aten: bool = False,
        threads: int | None = None,
    ) -> None:
        if hasattr(source, "read"):
            source = source.read()
        if not isinstance(source, (str, os.PathLike, bytes, bytearray, memoryview)):
            raise InputTypeError(
                f"a model is the path or the bytes of a .pte file, not {type(source).__name__}",
                hints=["torchette.load('model.pte')", "torchette.compile(module, (x,)) compiles a module"],
            )
        self._source = source if isinstance(source, (bytes, bytearray, memoryview)) else os.fspath(source)
        if threads is not None:
            checked_num_threads(threads)
        self._program: Program = Runtime.get(aten).load_program(self._source, data_files=data_files)
        self.methods = {
            name: BoundMethod(self._program, self._program.metadata(name), threads)
            for name in sorted(self._program.method_names)
        }
        if method is not None and method not in self.methods:
            raise RuntimeLoadError(
                f"the model has no method {method!r}; it has {', '.join(self.methods) or 'none'}"
                + did_you_mean(method, self.methods)
            )
        if method is None and "forward" in self.methods:
            method = "forward"
        self.default = method or (next(iter(self.methods)) if len(self.methods) == 1 else None)

    def __reduce__(self) -> Any:
        raise not_copyable(
            "a loaded model", "pass the path or the bytes of its file, and call torchette.load there"
        )

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Runs the default method.

        Args:
            *args, **kwargs: arguments with the structure of the example inputs; tensors of torch or numpy.

        Returns:
            The outputs with the structure of the module's outputs.

        Raises:
            RuntimeLoadError: if the model has several methods and none is ``forward``.
            InputError, ExecutionError: see `BoundMethod.__call__`.
        """
        if self.default is None:
            raise RuntimeLoadError(
                "the model has no method 'forward'",
                hints=[
                    f"call one of its methods: {', '.join(f'model.{name}(...)' for name in self.methods)}"
                ],
            )
        return self.methods[self.default](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        methods = self.__dict__.get("methods", {})
        if name in methods:
            return methods[name]
        near = did_you_mean(name, methods)
        raise AttributeError(
            f"the model has no method or attribute {name!r}; methods: {', '.join(methods)}{near}"
        )

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.methods})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the .pte file. An existing file is replaced atomically.

        Args:
            path: the file.

        Returns:
            The path.
        """
        with replacing(path) as file:
            if isinstance(self._source, str):
                with open(self._source, "rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            else:
                file.write(self._source)
        return Path(path)

    def __bytes__(self) -> bytes:
        """Returns the contents of the .pte file."""
        return Path(self._source).read_bytes() if isinstance(self._source, str) else bytes(self._source)

    @property
    def nbytes(self) -> int:
        """Size of the .pte file in bytes."""
        return (
            os.path.getsize(self._source)
            if isinstance(self._source, str)
            else memoryview(self._source).nbytes
        )

    def __repr__(self) -> str:
        name = f" {self._source}" if isinstance(self._source, str) else ""
        lines = [f"<Model{name}, {byte_text(self.nbytes)}"]
        lines += [
            f"  {method.signature}   arena {byte_text(sum(method.meta.planned_sizes))}"
            for method in self.methods.values()
        ]
        return "\n".join(lines) + ">"

    def _repr_html_(self) -> str:
        name = self._source if isinstance(self._source, str) else "Model"
        rows = [
            (method.signature, byte_text(sum(method.meta.planned_sizes))) for method in self.methods.values()
        ]
        return notebook.tables([("", ("method", "arena"), rows)], f"{name}, {byte_text(self.nbytes)}")


class BoundMethod:
    """One method of a model. It is loaded on the first call.

    Example:
        >>> model = torchette.load("model.pte")
        >>> outputs = model.forward(x)
    """

    def __init__(self, program: Program, meta: MethodMeta, threads: int | None = None) -> None:
        self._program, self._threads = program, threads
        self._method: Method | None = None
        self.meta = meta
        """Inputs, outputs and memory requirements."""
        self._inputs = argument_tree(meta)
        self._outputs = pytree.decode(meta.encoded_outputs)
        args, kwargs = self._inputs.children
        self._keywords = pytree.keys(kwargs.type or "", kwargs.context)
        self._names = list(_names(self._inputs, meta))
        # Names of positional arguments that are single tensors; they can also be passed by keyword.
        leaves = _first_leaves(args)
        self._positional = [
            meta.input_name(leaf) if child.is_leaf else ""
            for leaf, child in zip(leaves, args.children, strict=True)
        ]

    def load(self) -> Method:
        """Returns the runtime's method, and loads it if necessary. See `Program.load_method` for the errors."""
        if self._method is None:
            method = self._program.load_method(self.meta.name(), threads=self._threads)
            method.input_names = self._names
            self._method = method
        return self._method

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Runs the method.

        Args:
            *args, **kwargs: arguments with the structure of the example inputs; tensors of torch or numpy.

        Returns:
            The outputs with the structure of the module's outputs.

        Raises:
            InputError: if an argument is missing, unknown, or does not match the compiled method; names it.
            ExecutionError: if the method fails.
        """
        method = self.load()
        outputs = method.execute(self._flat(args, kwargs))
        if self._outputs is not None:
            return pytree.unflatten(self._outputs, outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def reset(self) -> None:
        """Restores the initial values of the buffers that the method updates."""
        self.load().reset()

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        positional, keyword = self._inputs.children
        inputs = list(args)
        # An argument that was positional at export may be passed by keyword, as in Python.
        while len(inputs) < len(positional.children) and (name := self._positional[len(inputs)]) in kwargs:
            kwargs = dict(kwargs)
            inputs.append(kwargs.pop(name))
        missing = [name for name in self._keywords if name not in kwargs]
        unknown = [name for name in kwargs if name not in self._keywords]
        if len(inputs) != len(positional.children) or missing or unknown:
            takes = counted(len(positional.children), "positional argument")
            problem = f"requires {takes}, {len(inputs)} {'is' if len(inputs) == 1 else 'are'} given"
            if unknown:
                problem = f"has no argument {', '.join(map(repr, unknown))}"
                problem += did_you_mean(unknown[0], filter(None, (*self._positional, *self._keywords)))
            elif missing:
                problem = f"requires the argument {', '.join(map(repr, missing))}"
            raise InputError(
                f"method {self.meta.name()!r} {problem}", hints=[f"its signature: {self.signature}"]
            )
        leaves: list[Any] = []
        for index, (child, value) in enumerate(zip(positional.children, inputs, strict=True)):
            pytree.flatten(child, value, self._positional[index] or f"args[{index}]", leaves)
        for name, child in zip(self._keywords, keyword.children, strict=True):
            pytree.flatten(child, kwargs[name], name, leaves)
        return leaves

    @property
    def signature(self) -> str:
        """Name, inputs and outputs in one line."""
        meta = self.meta
        inputs = [f"{name}: {meta.input_text(i)}" for i, name in enumerate(self._names)]
        results = [meta.output_text(i) for i in range(meta.num_outputs())]
        labels = list(pytree.names(self._outputs)) if self._outputs is not None else [""] * len(results)
        outputs = [
            f"{label.lstrip('.')}: {text}" if label else text
            for label, text in zip(labels, results, strict=False)
        ]
        return f"{meta.name()}({', '.join(inputs)}) -> {', '.join(outputs) or 'None'}"

    def __repr__(self) -> str:
        return f"<method {self.signature}>"

    def _repr_html_(self) -> str:
        return self.meta._repr_html_()


def argument_tree(meta: MethodMeta) -> Tree:
    """Returns the tree of a method's (args, kwargs). All inputs are positional if the file stores no tree."""
    tree, count = pytree.decode(meta.encoded_inputs), meta.num_inputs()
    if (
        tree is not None
        and tree.num_leaves == count
        and [child.type for child in tree.children] == ["builtins.tuple", "builtins.dict"]
    ):
        return tree
    args = Tree("builtins.tuple", None, "null", (LEAF,) * count, count)
    return Tree("builtins.tuple", None, "null", (args, Tree("builtins.dict", [], "[]", (), 0)), count)


def _names(tree: Tree, meta: MethodMeta) -> Iterator[str]:
    args, kwargs = tree.children
    index = 0
    for number, child in enumerate(args.children):
        stored = meta.input_name(index) if child.is_leaf else ""
        yield from pytree.names(child, stored or f"args[{number}]")
        index += child.num_leaves
    for name, child in zip(pytree.keys(kwargs.type or "", kwargs.context), kwargs.children, strict=True):
        yield from pytree.names(child, str(name))


def _first_leaves(tree: Tree) -> list[int]:
    """Returns the index of the first leaf of each child."""
    starts, at = [], 0
    for child in tree.children:
        starts.append(at)
        at += child.num_leaves
    return starts
