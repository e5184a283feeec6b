# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file, and measurements and explanations of it. Out: the data of the page, as plain lists and values.
"""The data of a report: nodes, edges, times, memory and sizes of a program."""

from __future__ import annotations

import bisect
import itertools
import math
import os
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchette.devtools import size, xnnpack_graph
from torchette.devtools.device_memory import bills, tenants
from torchette.devtools.inspect import FrameInfo, InstructionInfo, MethodInfo, describe
from torchette.devtools.profile import Operation, Profile
from torchette.errors import FormatError, TorchetteError
from torchette.format import pte
from torchette.format.schema import Record

LINES_AROUND = 4  # lines before and after the source line of a node
_MAX_LINE_LENGTH = 240  # characters
_MAX_SOURCE_BYTES = 4 << 20  # bytes; larger files are not read
_MAX_MODULE_DEPTH = 64  # nested modules
_MAX_SCALES = 4  # number of scales that are shown

# Measurements of a method. A Profile also contains the limits of the processor.
Times = Profile | Sequence[Operation]


class StringTable:
    """Interned strings, by index."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Returns the index of a string."""
        number = self._numbers.setdefault(text, len(self.listed))
        if number == len(self.listed):
            self.listed.append(text)
        return number


def contents(
    file: pte.PteFile,
    name: str,
    *,
    times: Mapping[str, Times] | None = None,
    placements: Mapping[str, Any] | None = None,
    source_folders: Iterable[str | Path] | None = None,
) -> dict[str, Any]:
    """Returns the data of the page, as JSON values.

    Args:
        file: the program.
        name: display name of the program.
        times: by method, a profile; or its operations, if the processor that ran them is unknown.
        placements: by method, the `Delegation` with which it was compiled (`EdgeProgramManager.delegation`).
        source_folders: folders of the model's Python files; by default the current folder and Python's import path.
    """
    texts, about = StringTable(), describe(file)
    sources = _Sources(source_folders)
    named = file.named()
    billed = _bills(file)
    methods = []
    for plan, method in zip(file.program.execution_plan, about.methods, strict=True):
        graph = _Method(file, plan, method, texts, sources, named)
        record = graph.record()
        record["bill"] = billed.get(method.name, [])
        if times and method.name in times:
            record.update(graph.times(times[method.name]))
        if placements and method.name in placements:
            record["placements"] = graph.placements(placements[method.name])
        methods.append(record)
    return {
        "name": name,
        "nbytes": about.nbytes,
        "sizes": sizes(file, texts),
        "named": [[key, size] for key, size in about.named_data.items()],
        "methods": methods,
        "files": sources.texts(),
        "texts": texts.listed,
    }


def _bills(file: pte.PteFile) -> dict[str, list[tuple[str, int | str, str]]]:
    """Returns the rows of each method's memory bill; empty if the runtime is not built."""
    try:
        method_bills = bills(file, temp=False)  # a report must not run kernels of an untrusted file
    except TorchetteError:
        return {}
    about = "scratch memory of the kernels; `torchette memory` measures it"
    return {
        bill.method_name: [
            (name, size, about if name == "temp" else remark) for name, size, remark in bill.rows()
        ]
        for bill in method_bills
    }


class _Sources:
    """Indexed source lines of the model, and their text if the files exist on this machine."""

    def __init__(self, folders: Iterable[str | Path] | None) -> None:
        self._folders = [
            Path(folder or ".").resolve()
            for folder in ((os.getcwd(), *sys.path) if folders is None else folders)
        ]
        self._numbers: dict[tuple[str, int, str], int] = {}
        self._used: dict[str, set[int]] = {}
        self.listed: list[tuple[str, int, str, str]] = []

    def number(self, frames: Sequence[FrameInfo]) -> int:
        """Returns the index of the innermost line outside torch; -1 if there is none."""
        model_frames = [frame for frame in frames if "/site-packages/torch/" not in frame.file] or frames
        if not model_frames:
            return -1
        frame = model_frames[-1]
        key = (frame.file, frame.line, frame.function)
        if key not in self._numbers:
            self._numbers[key] = len(self.listed)
            self.listed.append((*key, frame.code[:_MAX_LINE_LENGTH]))
            self._used.setdefault(frame.file, set()).add(frame.line)
        return self._numbers[key]

    def texts(self) -> dict[str, dict[int, str]]:
        """Returns, for each file that was found, the text around its used lines."""
        texts: dict[str, dict[int, str]] = {}
        for name, numbers in self._used.items():
            path = self._find(name)
            if path is None:
                continue
            try:
                if path.stat().st_size > _MAX_SOURCE_BYTES:
                    continue
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            line_numbers = sorted(
                {n for at in numbers for n in range(max(1, at - LINES_AROUND), at + LINES_AROUND + 1)}
            )
            texts[name] = {n: lines[n - 1][:_MAX_LINE_LENGTH] for n in line_numbers if n <= len(lines)}
        return texts

    def _find(self, name: str) -> Path | None:
        """Returns a Python file below one of the folders. An untrusted program must not select other files."""
        if not name.endswith(".py") or "\0" in name:
            return None
        for folder in self._folders:
            path = (folder / name).resolve()
            if path.suffix == ".py" and path.is_relative_to(folder) and path.is_file():
                return path
        return None


class _Writers:
    """The last writers of each byte of a memory: sorted, disjoint ranges with the set of possible writers."""

    def __init__(self, ranges: Iterable[tuple[int, int, frozenset[int]]] = ()) -> None:
        self._ranges = list(ranges)  # start, end, nodes
        self._starts = [start for start, _, _ in self._ranges]

    def write(self, start: int, end: int, node: int) -> None:
        low, high = self._touched(start, end)
        ranges = []
        for begin, stop, owners in self._ranges[low:high]:
            if begin < start:
                ranges.append((begin, start, owners))
            if stop > end:
                ranges.append((end, stop, owners))
        ranges.append((start, end, frozenset([node])))
        ranges.sort(key=lambda entry: entry[0])
        self._ranges[low:high] = ranges
        self._starts[low:high] = [begin for begin, _, _ in ranges]

    def read(self, start: int, end: int) -> frozenset[int]:
        low, high = self._touched(start, end)
        return frozenset().union(*(owners for _, _, owners in self._ranges[low:high]))

    def merged(self, other: _Writers) -> _Writers:
        """Returns the union of possible writers."""
        edges = sorted({edge for entry in (*self._ranges, *other._ranges) for edge in entry[:2]})
        parts = [
            (low, high, self.read(low, high) | other.read(low, high))
            for low, high in itertools.pairwise(edges)
        ]
        return _Writers(part for part in parts if part[2])

    def copy(self) -> _Writers:
        return _Writers(self._ranges)

    def _touched(self, start: int, end: int) -> tuple[int, int]:
        low = bisect.bisect_right(self._starts, start) - 1
        if low < 0 or self._ranges[low][1] <= start:
            low += 1
        return low, bisect.bisect_left(self._starts, end, low)


class _State:
    """The last writers of each planned memory, and of each value outside planned memory."""

    def __init__(self) -> None:
        self.memories: dict[int, _Writers] = {}
        self.values: dict[int, frozenset[int]] = {}

    def copy(self) -> _State:
        duplicate = _State()
        duplicate.memories = {memory: writers.copy() for memory, writers in self.memories.items()}
        duplicate.values = dict(self.values)
        return duplicate

    def merged(self, other: _State) -> _State:
        union = _State()
        for memory in self.memories.keys() | other.memories.keys():
            mine, theirs = self.memories.get(memory, _Writers()), other.memories.get(memory, _Writers())
            union.memories[memory] = mine.merged(theirs)
        for value in self.values.keys() | other.values.keys():
            union.values[value] = self.values.get(value, frozenset()) | other.values.get(value, frozenset())
        return union


class _Method:
    """The nodes of one method: inputs, instructions, contents of delegates, and outputs."""

    def __init__(
        self,
        file: pte.PteFile,
        plan: Record,
        method: MethodInfo,
        texts: StringTable,
        sources: _Sources,
        named: Mapping[str, memoryview],
    ) -> None:
        self._file, self._plan, self._method, self._named = file, plan, method, named
        self._texts, self._sources = texts, sources
        self._nodes: list[dict[str, Any]] = []
        self._values = [self._value(index) for index in range(len(method.values))]
        self._edges: list[tuple[int, int, int]] = []  # from node, to node, value
        self._quantized: list[dict[str, Any]] = []
        self._node_of: dict[int, int] = {}  # instruction -> node
        self._parts_of: dict[int, dict[int, int]] = {}  # instruction -> debug handle -> node
        self._notes: list[str] = []
        self._state = _State()
        self._build()

    def record(self) -> dict[str, Any]:
        method = self._method
        living = tenants(method)
        return {
            "name": method.name,
            "inputs": [[port.name, port.type_text, port.index] for port in method.inputs],
            "outputs": [[port.name, port.type_text, port.index] for port in method.outputs],
            "buffers": [[buffer.id, buffer.nbytes, buffer.device] for buffer in method.planned_buffers],
            "delegates": [[delegate.backend, delegate.nbytes] for delegate in method.delegates],
            "instructions": len(method.instructions),
            "nodes": self._nodes,
            "values": self._values,
            "edges": [number for edge in self._edges for number in edge],
            "sources": [[self._texts(f), line, self._texts(n), c] for f, line, n, c in self._sources.listed],
            "tenants": [
                [t.value, t.memory_id, t.offset, t.nbytes, t.first, t.last, self._texts(t.maker)]
                for t in living
            ],
            "quantized": self._quantized,
            "notes": self._notes,
        }

    def times(self, measured: Times) -> dict[str, Any]:
        """Returns the measurements by node.

        `times` are median seconds. `rates` are operations and bytes per second, their fractions of the processor's
        limits, and the limit that is nearer. `rest` are times that belong to no node.
        """
        if not isinstance(measured, Profile):
            runs = max((len(operation.times) for operation in measured), default=1)
            measured = Profile("", runs, list(measured), [])
        seconds: dict[int, float] = {}
        rates: dict[int, list[float | str | None]] = {}
        unassigned: list[tuple[str, float]] = []
        for item in measured.operations:
            row = measured.row(item)
            if item.instruction is None or item.instruction not in self._node_of:
                unassigned.append((item.name, row["p50"]))
                continue
            node = self._parts_of.get(item.instruction, {}).get(item.part or 0)
            node = self._node_of[item.instruction] if node is None else node
            seconds[node] = seconds.get(node, 0.0) + row["p50"]
            if row["rate"]:
                speeds = (row[key] for key in ("flops", "rate", "of_peak", "of_bandwidth"))
                rates[node] = [*(_rounded(speed) for speed in speeds), row["bound"]]
        return {
            "times": {node: _rounded(time) for node, time in sorted(seconds.items())},
            "rates": dict(sorted(rates.items())),
            "rest": [[name, _rounded(time)] for name, time in unassigned],
            "runs": measured.runs,
            "limits": measured.limits and measured.limits.sentence(),
            "processor": measured.limits and measured.limits.processor,
            "store": measured.store and measured.store.name,
        }

    def placements(self, delegation: Any) -> list[list[Any]]:
        """Returns a row for each call of the Edge program.

        A row contains node, operator, line, backend, reasons, multiply-adds, and share of the cost.
        """
        return [
            [
                placement.node,
                self._texts(placement.op),
                self._texts(_short(placement.place)),
                placement.backend,
                [[name, list(reasons)] for name, reasons in placement.reasons.items()],
                placement.macs,
                float(f"{placement.share:.4g}"),
            ]
            for placement in delegation.placements
        ]

    # ---- nodes ----

    def _build(self) -> None:
        method = self._method
        for port in method.inputs:
            node = self._add("input", port.name, outputs=[port.index])
            self._write(port.index, node)
        waiting: dict[int, _State] = {}  # states by destination of jumps
        reached = True
        for item in method.instructions:
            if item.index in waiting:
                jumped = waiting.pop(item.index)
                self._state = self._state.merged(jumped) if reached else jumped
            reached = True
            node = self._add(
                item.kind,
                item.op,
                item.module,
                item.module_type,
                self._sources.number(item.source),
                self._flat(item.inputs),
                self._flat(item.outputs),
            )
            self._nodes[node]["at"] = item.index
            self._node_of[item.index] = node
            if item.kind == "kernel":
                self._nodes[node]["args"] = [
                    -1 if index < 0 else index for index in (*item.inputs, *item.outputs)
                ]
                self._find_quantization(item, node)
            inside = self._delegate(item, node) if item.kind == "delegate" else False
            if not inside:
                for index in self._nodes[node]["in"]:
                    self._read(index, node)
            for index in self._nodes[node]["out"]:
                if not inside:
                    self._write(index, node)
            if item.destination is not None:
                condition = method.values[item.inputs[0]]
                reached = not (condition.kind == "bool" and condition.value is False)  # else it always jumps
                if item.destination <= item.index:
                    self._repeat_loop(self._node_of[item.destination])
                    # A path that leaves the loop can have executed its body.
                    waiting = {to: state.merged(self._state) for to, state in waiting.items()}
                elif item.destination in waiting:
                    waiting[item.destination] = waiting[item.destination].merged(self._state)
                else:
                    waiting[item.destination] = self._state.copy()
        for left in waiting.values():  # jumps to the end
            self._state = self._state.merged(left) if reached else left
            reached = True
        for item in method.instructions:
            if item.destination is not None and item.destination in self._node_of:
                self._edges.append((self._node_of[item.index], self._node_of[item.destination], -1))
        for port in method.outputs:
            node = self._add("output", port.name, inputs=[port.index])
            self._read(port.index, node)
        self._edges = sorted(set(self._edges))

    def _add(
        self,
        kind: str,
        op: str,
        module: str = "",
        module_type: str = "",
        source: int = -1,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
    ) -> int:
        node: dict[str, Any] = {"kind": kind, "op": self._texts(op), "in": list(inputs), "out": list(outputs)}
        if module:
            node["module"] = self._texts(".".join(module.split(".")[:_MAX_MODULE_DEPTH]))
        if module_type:
            node["type"] = self._texts(module_type)
        if source >= 0:
            node["source"] = source
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _value(self, index: int) -> list[Any]:
        """Returns text, bytes, location and name of a tensor; for other values only the text."""
        value = self._method.values[index]
        tensor = value.tensor
        if tensor is None:
            shown = repr(value.value) if value.kind != "null" else "None"
            return [self._texts(shown if len(shown) <= 120 else f"{shown[:117]}...")]
        row = [
            self._texts(str(tensor)),
            tensor.nbytes,
            self._texts(f"weight {tensor.data}" if tensor.storage == "constant" else tensor.place),
            self._texts(tensor.name or ""),
        ]
        if tensor.storage == "constant":
            row.append(1)
        return row

    def _flat(self, indices: Iterable[int]) -> list[int]:
        """Returns tensors; lists of tensors are replaced by their items."""
        tensor_indices = []
        for index in indices:
            if index < 0:
                continue
            value = self._method.values[index]
            if value.tensor is not None:
                tensor_indices.append(index)
            elif value.kind in ("tensor_list", "optional_tensor_list"):
                tensor_indices += [item for item in value.value if item >= 0]
        return tensor_indices

    # ---- edges between nodes ----

    def _range(self, index: int) -> tuple[int, int, int] | None:
        tensor = self._method.values[index].tensor if index < len(self._method.values) else None
        if tensor is None or tensor.memory_id is None or tensor.memory_offset is None or not tensor.nbytes:
            return None
        return tensor.memory_id, tensor.memory_offset, tensor.memory_offset + tensor.nbytes

    def _write(self, index: int, node: int) -> None:
        place = self._range(index)
        if place is None:
            self._state.values[index] = frozenset([node])
        else:
            self._state.memories.setdefault(place[0], _Writers()).write(place[1], place[2], node)

    def _read(self, index: int, node: int) -> None:
        """Adds an edge from each node that wrote some of the bytes. Views of a tensor have separate value indices."""
        place = self._range(index)
        if place is None:
            writers = self._state.values.get(index, frozenset())
        else:
            memory = self._state.memories.get(place[0])
            writers = memory.read(place[1], place[2]) if memory else frozenset()
        self._edges += [(origin, node, index) for origin in writers if origin != node]

    def _repeat_loop(self, first: int) -> None:
        """Repeats a loop, so that its nodes read values that the first iteration wrote."""
        opened = {node["parent"] for node in self._nodes if "parent" in node}
        for node in range(first, len(self._nodes)):
            if node not in opened:
                for index in self._nodes[node]["in"]:
                    self._read(index, node)
                for index in self._nodes[node]["out"]:
                    self._write(index, node)

    # ---- delegates ----

    def _delegate(self, item: InstructionInfo, node: int) -> bool:
        """Adds the nodes inside a delegate if the format of its backend is known."""
        index = self._plan_delegate(item)
        if index is None:
            return False
        self._nodes[node]["delegate"] = index
        common = _common([part.module for part in item.parts]) if item.parts else item.module
        self._nodes[node].pop("type", None)
        self._nodes[node].pop("module", None)
        if common:
            self._nodes[node]["module"] = self._texts(common)
        known = {part.handle: part for part in item.parts}
        inner: list[tuple[str, int, list[int], list[int], dict[str, Any]]] = []
        numbers: dict[int, int] = {}
        if self._method.delegates[index].backend == xnnpack_graph.BACKEND:
            try:
                blob = self._file.delegate(self._plan.delegates[index])
                graph = xnnpack_graph.read(blob, self._named)
            except (FormatError, IndexError, struct.error) as error:
                self._notes.append(f"delegate {index} cannot be opened: {error}")
                return False
            arguments = dict(enumerate([*item.inputs, *item.outputs]))
            for number, value in graph.values.items():
                outer = arguments.get(value.argument, -1) if value.argument is not None else -1
                if outer >= 0:
                    numbers[number] = outer
                else:
                    numbers[number] = len(self._values)
                    self._values.append(self._inner_value(value))
                if value.quantization is not None:
                    self._quantization(numbers[number], value.quantization, value.dtype, value.sizes, node)
            inner = [
                (inner_node.op, inner_node.handle, inner_node.inputs, inner_node.outputs, inner_node.settings)
                for inner_node in graph.nodes
            ]
        else:  # the source nodes, without their tensors
            inner = [(part.module_type or "node", part.handle, [], [], {}) for part in item.parts]
            if not inner:
                return False
        for op, handle, inputs, outputs, settings in inner:
            part = known.get(handle)
            added = self._add(
                "part",
                op,
                part.module if part else common,
                part.module_type if part else "",
                self._sources.number(part.source) if part else -1,
                [numbers[number] for number in inputs],
                [numbers[number] for number in outputs],
            )
            self._nodes[added]["parent"] = node
            self._nodes[added]["handle"] = handle
            if settings:
                self._nodes[added]["settings"] = self._texts(
                    ", ".join(f"{key} {_plain(value)}" for key, value in settings.items())
                )
            self._parts_of.setdefault(item.index, {}).setdefault(handle, added)
            for value_index in self._nodes[added]["in"]:
                self._read(value_index, added)
            for value_index in self._nodes[added]["out"]:
                self._write(value_index, added)
        written = {output for each in inner for output in each[3]}
        return bool(written)

    def _plan_delegate(self, item: InstructionInfo) -> int | None:
        """Returns the index of the delegate that an instruction calls."""
        for start, chain in zip(self._method.chains, self._plan.chains, strict=True):
            if start <= item.index < start + len(chain.instructions):
                result: int | None = chain.instructions[item.index - start].instr_args.delegate_index
                return result
        return None

    def _inner_value(self, value: xnnpack_graph.DelegateValue) -> list[Any]:
        place = f"weight {value.constant[:12]}" if value.constant else "inside the delegate"
        row = [self._texts(f"{value.dtype}{value.sizes}"), value.nbytes, self._texts(place), self._texts("")]
        if value.constant:
            row.append(1)
        return row

    # ---- quantization ----

    def _quantization(
        self,
        value: int,
        quantization: xnnpack_graph.Quantization,
        dtype: str,
        sizes: Sequence[int],
        node: int,
    ) -> None:
        scales = [scale for scale in quantization.scales if math.isfinite(scale)]
        self._quantized.append(
            {
                "value": value,
                "node": node,
                "text": self._texts(f"{dtype}{list(sizes)}"),
                "scheme": quantization.scheme + (f" of {quantization.group}" if quantization.group else ""),
                "axis": quantization.axis,
                "scales": [float(f"{scale:.6g}") for scale in scales[:_MAX_SCALES]],
                "count": len(scales),
                "range": [float(f"{scale:.6g}") for scale in (min(scales), max(scales))] if scales else [],
                "zero_points": sorted(set(quantization.zero_points))[:_MAX_SCALES],
            }
        )

    def _find_quantization(self, item: InstructionInfo, node: int) -> None:
        """Adds the scales among the arguments of quantize and dequantize operators."""
        name = item.op.rpartition("::")[2].partition(".")[0]
        if not name.startswith(("quantize_per", "dequantize_per")) or len(item.inputs) < 3:
            return
        scale, zero_point = (self._method.values[index] if index >= 0 else None for index in item.inputs[1:3])
        if scale is None or zero_point is None:
            return
        coded = item.outputs[0] if name.startswith("quantize") else item.inputs[0]
        tensor = self._method.values[coded].tensor if coded >= 0 else None
        if tensor is None:
            return
        if scale.tensor is None:
            if not isinstance(scale.value, (int, float)) or not isinstance(zero_point.value, int):
                return
            quantization = xnnpack_graph.Quantization("per tensor", [float(scale.value)], [zero_point.value])
        else:
            axis = self._method.values[item.inputs[3]].value if len(item.inputs) > 3 else None
            quantization = xnnpack_graph.Quantization(
                "per channel" if "channel" in name else name.partition("quantize_")[2].replace("_", " "),
                [float(element) for element in self._numbers(scale.index)],
                [int(element) for element in self._numbers(zero_point.index)],
                axis if isinstance(axis, int) else None,
            )
        self._quantization(coded, quantization, tensor.dtype, tensor.sizes, node)

    def _numbers(self, index: int) -> list[Any]:
        """Returns the elements of a constant."""
        import numpy as np

        tensor = self._method.values[index].tensor
        if tensor is None or tensor.storage != "constant" or tensor.data is None:
            return []
        try:
            data = self._file.constant(tensor.data)[: tensor.nbytes]
            result: list[Any] = np.frombuffer(data, np.dtype(tensor.dtype)).tolist()
            return result
        except (TypeError, ValueError):
            return []


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _common(paths: Sequence[str]) -> str:
    """Returns the innermost module that contains all paths."""
    parts = [path.split(".") for path in paths]
    shared: list[str] = []
    for names in zip(*parts):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)


def _short(place: str) -> str:
    """Removes the folders from a location: `/home/me/nets/model.py:7, in forward: y = x` -> `model.py:7, ...`."""
    path, colon, suffix = place.partition(":")
    return f"{os.path.basename(path)}{colon}{suffix}" if path.startswith("/") else place


def _rounded(number: float | None) -> float | None:
    return number and float(f"{number:.4g}")


# ---- sizes ----


def sizes(file: pte.PteFile, texts: StringTable) -> list[list[Any]]:
    """Returns kind, name, module, bytes and dtype of each part of the file; the bytes sum to its size."""
    nbytes_by_key: Counter[tuple[str, str, str, str]] = Counter()
    for piece in size.sizes(file).pieces:
        nbytes_by_key[
            piece.part, piece.tensor or piece.delegate or piece.part, piece.module, piece.dtype
        ] += piece.nbytes
    return [
        [part, texts(name), texts(module), nbytes, texts(dtype)]
        for (part, name, module, dtype), nbytes in nbytes_by_key.items()
    ]
