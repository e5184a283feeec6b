# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file and its target device. Out: the exact bytes of each memory that its methods require there, and the
# lifetime and offset of each tensor. Only the temp memory is measured by execution: kernels run on zeros.
"""Memory requirements of a .pte file: `bills` returns one bill per method.

The caller provides all memory of the runtime in four pools, so the requirements are known ahead of time:

* planned: one pool per memory id; the compiler's memory plan assigns the offsets
* method: the runtime's own structures, which loading allocates in the order below
* temp: kernels' scratch memory, freed after each instruction
* constants: weights, read in place from the file
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torchette import notebook
from torchette.devtools.inspect import MethodInfo, Table, TensorInfo
from torchette.errors import FormatError, RuntimeLoadError
from torchette.format import pte
from torchette.format.schema import Record
from torchette.schema import LAYOUTS
from torchette.targets import LANES, Processor, processor

# ---- the method's own memory ----


def size_of(layout: str, pointer: int) -> tuple[int, int]:
    """Returns bytes and alignment of a structure with `pointer`-byte pointers and naturally aligned members."""
    end, greatest = 0, 1
    for member in layout:
        size = pointer if member == "P" else int(member)
        end, greatest = _align(end, size) + size, max(greatest, size)
    return _align(end, greatest), greatest


def _align(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


class _Bump:
    """Counts bytes like the runtime's MemoryAllocator, on a pool with maximum alignment."""

    def __init__(self, pointer: int) -> None:
        self.used = 0
        self._pointer = pointer

    def raw(self, size: int, alignment: int) -> None:
        self.used = _align(self.used, alignment) + size

    def take(self, layout: str, count: int = 1) -> None:
        size, alignment = size_of(LAYOUTS.get(layout, layout), self._pointer)
        self.raw(count * size, alignment)


def _is_external(record: Record) -> bool:
    """Whether a tensor's bytes are in a data file."""
    extra = record.extra_tensor_info
    return extra is not None and extra.location == pte.TensorDataLocation.EXTERNAL


def method_bytes(plan: Record, pointer: int) -> int:
    """Returns the bytes that loading allocates from the method allocator, without those of delegates' backends.

    Repeats the allocations of `Method::Loading` (C++) in Python; tests/models/test_heapless.py compares the two.

    Args:
        plan: an ExecutionPlan record.
        pointer: bytes of a pointer, 4 or 8.
    """
    memory = _Bump(pointer)
    memory.take("Value", len(plan.values))
    memory.take("1", len(plan.values))  # flags
    memory.take("P", len(plan.non_const_buffer_sizes) - 1 if plan.non_const_buffer_sizes else 0)
    memory.take("Method::Input", len(plan.inputs))
    unbacked = set()
    shared: Any = None  # layout of the last static tensor; the next tensor shares its strides if equal
    for index, value in enumerate(plan.values):
        record, kind = value.val, type(value.val).__name__
        if kind in ("String", "DoubleList", "BoolList"):
            memory.take("PlainList")
        elif kind in _LIST_ITEMS:
            memory.take("BoxedList")
            memory.raw(len(record.items) * size_of(_LIST_ITEMS[kind], pointer)[0], 8)
        elif kind == "Tensor":
            # A tensor that allocates memory during execution has a pointer to its allocator.
            placed = record.allocation_info or record.data_buffer_idx or _is_external(record)
            owned = _allocates_at_run_time(plan, index)
            memory.take(LAYOUTS["TensorImpl"] + "P" * owned)
            if record.shape_dynamism != pte.TensorShapeDynamism.STATIC:
                memory.take("4", 2 * len(record.sizes))
            else:
                layout = (list(record.sizes), list(record.dim_order))
                if layout != shared:
                    memory.take("4", len(record.sizes))
                shared = layout
            if not placed and not owned:
                unbacked.add(index)
    unbacked -= {*plan.inputs, *plan.outputs}
    for index, value in enumerate(plan.values):
        if type(value.val).__name__ in ("TensorList", "OptionalTensorList") and unbacked & {*value.val.items}:
            unbacked.add(index)
    memory.take("P", len(plan.operators))
    memory.take("Method::Instruction", sum(len(chain.instructions) for chain in plan.chains))
    for chain in plan.chains:
        for instruction in chain.instructions:
            call = instruction.instr_args
            kind = type(call).__name__
            if kind != "KernelCall" or unbacked & {*call.args}:
                memory.take("Method::Control")
            if kind == "DelegateCall":
                memory.take("P", len(call.args))
    memory.take("Method::Delegate", len(plan.delegates))
    for delegate in plan.delegates:
        memory.take("CompileSpec", len(delegate.compile_specs))
    return memory.used


# Type that a kernel reads for an element of a list.
_LIST_ITEMS = {
    "IntList": "8",
    "TensorList": LAYOUTS["Tensor"],
    "OptionalTensorList": LAYOUTS["Optional<Tensor>"],
}


# ---- memory of tensors with sizes that are only known during execution ----


def _allocates_at_run_time(plan: Record, index: int) -> bool:
    """Whether a value is a tensor without memory that allocates it during execution, as decided by loading."""
    record = plan.values[index].val
    return (
        type(record).__name__ == "Tensor"
        and record.shape_dynamism == pte.TensorShapeDynamism.DYNAMIC_UNBOUND
        and index not in plan.inputs
        and bool(record.sizes)
    )


def dynamic_bytes(plan: Record) -> int | None:
    """Returns the bytes of a `FreeListAllocator` (torchette/extension/free_list_allocator.h) for the maximum sizes.

    Simulates the allocator, instruction by instruction, for a first run and for later runs, in which the results of the
    previous run are still allocated. Loops are simulated once, because each iteration allocates and frees the same.

    Returns:
        0 if no tensor allocates memory during execution; None if such a tensor has no maximum size.
    """
    unit = 16  # allocation granularity, and size of the header of each block
    blocks: dict[int, tuple[int, int]] = {}  # value -> begin and end of its block
    most = 0
    owned = {
        index: value.val for index, value in enumerate(plan.values) if _allocates_at_run_time(plan, index)
    }
    owned = {
        i: tensor for i, tensor in owned.items() if not (tensor.allocation_info or tensor.data_buffer_idx)
    }
    sizes = {index: pte.tensor_nbytes(tensor) for index, tensor in owned.items()}
    if 0 in sizes.values():  # 0 means that the size has no bound
        return None
    for _ in range(3):
        written: set[int] = set()
        for chain in plan.chains:
            for instruction in chain.instructions:
                call = instruction.instr_args
                if type(call).__name__ == "FreeCall":
                    blocks.pop(call.value_index, None)
                    continue
                for index in getattr(call, "args", ()):
                    if index not in owned or index in written:
                        continue
                    written.add(index)
                    blocks.pop(index, None)
                    needed, begin = unit + _align(sizes[index], unit), 0
                    for next_begin, end in sorted(blocks.values()):
                        if next_begin - begin >= needed:
                            break
                        begin = end
                    blocks[index] = (begin, begin + needed)
                    most = max(most, begin + needed)
    return most


# ---- kernels' scratch memory ----


@dataclass
class Temp:
    """Scratch memory of a method's kernels in bytes: the maximum over its instructions.

    With `most` bytes, every request succeeds. Some kernels have a slower implementation that requires less: with
    `least` bytes, all kernels run; with one byte less, `instruction` fails. `unknown` lists operators with a
    requirement that depends on values computed at run time, or without a kernel in this build. If `varies`, sizes are
    dynamic, and the figures are those of the maximum sizes.
    """

    most: int
    least: int
    instruction: int | None
    unknown: list[str]
    varies: bool = False


def temp_bytes(plan: Record, level: str) -> Temp:
    """Measures every distinct kernel call on zeros, with sizes at their upper bounds and all masks true.

    Args:
        plan: an ExecutionPlan record.
        level: instruction set level of the kernels, one of `torchette.runtime.kernel_levels`.
    """
    from torchette import runtime

    result = Temp(0, 0, None, [])
    scratch_sizes: dict[str, tuple[int, int] | None] = {}
    index = -1
    for chain in plan.chains:
        for instruction in chain.instructions:
            index += 1
            call = instruction.instr_args
            if type(call).__name__ != "KernelCall":
                continue
            operator = plan.operators[call.op_index]
            name = f"{operator.name}.{operator.overload}" if operator.overload else operator.name
            if name.startswith("executorch_prim::"):
                continue  # they compute scalars and pointers and need no scratch memory
            arguments = [_argument(plan.values, value) for value in call.args]
            key = f"{name}{arguments}"
            if key not in scratch_sizes:
                scratch_sizes[key] = runtime.scratch_bytes(name, arguments, level)
            need = scratch_sizes[key]
            if need is None:
                if name not in result.unknown:
                    result.unknown.append(name)
                continue
            result.most = max(result.most, need[0])
            result.varies |= need[0] > 0 and any(_varies(plan.values, value) for value in call.args)
            if need[1] > result.least:
                result.least, result.instruction = need[1], index
    return result


def _varies(values: list[Any], index: int) -> bool:
    record = values[index].val
    if type(record).__name__ in ("TensorList", "OptionalTensorList"):
        return any(_varies(values, item) for item in record.items if item != -1)
    return type(record).__name__ == "Tensor" and record.shape_dynamism != pte.TensorShapeDynamism.STATIC


def _argument(values: list[Any], index: int) -> Any:
    """Converts a value to an argument of `torchette.runtime.scratch_bytes`."""
    if index == -1:
        return None
    record = values[index].val
    kind = type(record).__name__
    if kind == "Tensor":
        return (int(record.scalar_type), tuple(record.sizes), tuple(record.dim_order))
    if kind == "Null":
        return None
    if kind in _LIST_ITEMS:
        return [_argument(values, item) for item in record.items]
    return next(getattr(record, item.name) for item in dataclasses.fields(record))


# ---- the bill ----


@dataclass
class Bill:
    """The bytes that one method requires on a target. The pools in RAM are `planned`, `method` and `temp`.

    Pools are aligned to 64 (temp), 16 (planned) and 8 (method) bytes. `method` includes the memory of backends only if
    they run on this machine, so that loading can measure it; `backends_counted` tells whether it does. Heap memory of a
    backend's library is in no pool. `temp` is None if the target's kernels do not run on this machine.
    """

    method_name: str
    target: str
    planned: list[int]  # bytes of memory ids 1, 2, ...
    method: int
    temp: Temp | None
    lent_inputs: int  # bytes in the caller's memory, at the maximum sizes
    lent_outputs: int
    constants: int  # in the file, read in place
    backends: list[str]
    backends_counted: bool
    dynamic: int | None  # see `dynamic_bytes`

    @property
    def ram(self) -> int:
        """Sum of planned, method, temp and dynamic memory, as far as known."""
        return sum(self.planned) + self.method + (self.temp.most if self.temp else 0) + (self.dynamic or 0)

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return notebook.tables([self.table()])

    def table(self) -> Table:
        """Returns the rows with a title."""
        title = f"{self.method_name}, {self.target}: bytes of each memory"
        return Table(title, ("memory", "bytes", ""), list(self.rows()))

    def to_dict(self) -> dict[str, Any]:
        """Returns dicts, lists, strings, numbers and None."""
        return {**dataclasses.asdict(self), "ram": self.ram}

    def rows(self) -> list[tuple[str, int | str, str]]:
        """Returns rows of memory, bytes and remark."""
        rows: list[tuple[str, int | str, str]] = [
            (f"planned {index}", size, "tensors") for index, size in enumerate(self.planned, 1)
        ]
        names = ", ".join(sorted(set(self.backends)))
        counted = "with" if self.backends_counted else "without"
        backends = f", {counted} the structures of {names}" if names else ""
        rows.append(("method", self.method, f"the runtime's structures{backends}"))
        if self.temp is None:
            rows.append(("temp", "unknown", "this machine cannot run the target's kernels"))
        else:
            remark = "kernels' scratch memory" + (" at the maximum sizes" if self.temp.varies else "")
            if self.temp.least < self.temp.most:
                remark += f"; {self.temp.least:,} bytes suffice for slower kernels"
            if self.temp.unknown:
                remark += f"; without {', '.join(self.temp.unknown)} (known at run time)"
            rows.append(("temp", self.temp.most, remark))
        if self.dynamic is None:
            rows.append(("dynamic", "unknown", "tensors without a maximum size allocate it at run time"))
        elif self.dynamic:
            rows.append(("dynamic", self.dynamic, "tensors allocated at run time, at the maximum sizes"))
        left = [name for name, size in (("temp", self.temp), ("dynamic", self.dynamic)) if size is None]
        rows.append(("RAM", self.ram, "all of the above" + (f" except {' and '.join(left)}" if left else "")))
        if self.lent_inputs or self.lent_outputs:
            rows.append(("inputs", self.lent_inputs, "in the caller's own memory"))
            rows.append(("outputs", self.lent_outputs, "in the caller's own memory"))
        rows.append(("weights", self.constants, "read in place from the file"))
        return rows


def bills(
    source: str | Path | bytes | pte.PteFile, target: str = "native", *, temp: bool = True
) -> list[Bill]:
    """Returns the bill of each method of a .pte file.

    Args:
        source: path, bytes, or a file that was already read.
        target: see `processor_of`.
        temp: also measure the temp memory, which runs each kernel once on zeros.

    Raises:
        ModelNotFoundError: the file does not exist.
        FormatError: the file is damaged.
        InputError: the target is unknown.
        NativeModuleError: the runtime is not built, and `temp` or the target "native" requires it.
    """
    if isinstance(source, (str, Path)):
        source = pte.load_file(source)
    file = source if isinstance(source, pte.PteFile) else pte.read(source)
    chosen = processor_of(target)
    return [_bill(file, plan, chosen, temp) for plan in file.program.execution_plan]


def processor_of(target: str) -> Processor:
    """Returns the processor of a target: this machine for "native" and "host", else `torchette.targets.processor`."""
    if target not in ("native", "host"):
        return processor(target)
    from torchette import runtime

    return Processor(target, struct.calcsize("P"), LANES[runtime.kernel_level()])


def _bill(file: pte.PteFile, plan: Record, target: Processor, with_temp: bool) -> Bill:
    tensors = {
        index: value.val for index, value in enumerate(plan.values) if type(value.val).__name__ == "Tensor"
    }

    def lent(indices: Iterable[int]) -> int:
        return sum(
            pte.tensor_nbytes(tensors[index])
            for index in set(indices)
            if index in tensors
            and not (tensors[index].allocation_info or tensors[index].data_buffer_idx)
            and not _allocates_at_run_time(plan, index)
        )

    constants = {
        record.data_buffer_idx: pte.tensor_nbytes(record)
        for record in tensors.values()
        if record.data_buffer_idx and not record.allocation_info
    }
    method = method_bytes(plan, target.pointer)
    loaded = _loaded_bytes(file, plan) if plan.delegates and target.name == "native" else None
    return Bill(
        method_name=plan.name,
        target=target.name,
        planned=list(plan.non_const_buffer_sizes[1:]),
        method=method if loaded is None else loaded,
        temp=_temp(plan, target) if with_temp else None,
        lent_inputs=lent(plan.inputs),
        lent_outputs=lent(set(plan.outputs) - set(plan.inputs)),
        constants=sum(constants.values()),
        backends=[delegate.id for delegate in plan.delegates],
        backends_counted=loaded is not None,
        dynamic=dynamic_bytes(plan),
    )


def _loaded_bytes(file: pte.PteFile, plan: Record) -> int | None:
    """Returns the bytes that loading allocates on this machine; None if a backend is missing or loading fails."""
    from torchette import runtime

    known = runtime.Runtime.get().backend_registry
    if not all(known.is_available(delegate.id) for delegate in plan.delegates):
        return None
    try:
        return runtime.Runtime.get().load_program(bytes(file.buffer)).load_method(plan.name).method_bytes
    except (RuntimeLoadError, FormatError):
        return None


def _temp(plan: Record, target: Processor) -> Temp | None:
    from torchette import runtime

    for level in runtime.kernel_levels():
        if LANES[level] == target.lanes:
            return temp_bytes(plan, level)
    return None


# ---- lifetimes and offsets of tensors ----


class Tenant(NamedTuple):
    """A tensor that occupies [offset, offset + nbytes) of `memory_id` during instructions first..last."""

    value: int
    text: str
    memory_id: int
    offset: int
    nbytes: int
    first: int
    last: int
    maker: str  # the operator that writes it first, "input", or "state"


def _overlap(a: TensorInfo, b: TensorInfo) -> bool:
    """Whether the tensors share a byte of planned memory."""
    start, other_start = a.memory_offset or 0, b.memory_offset or 0
    return a.memory_id == b.memory_id and start < other_start + b.nbytes and other_start < start + a.nbytes


def tenants(method: MethodInfo) -> list[Tenant]:
    """Returns the tensors in planned memory, ordered by the start of their lifetime. Time counts instructions.

    Inputs live from the start, outputs until the end, and state throughout. State is a tensor that has stored initial
    bytes or is read before anything writes it. A tensor that is live across a loop boundary lives as long as the loop.
    """
    count = len(method.instructions)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    maker: dict[int, str] = {}
    written: list[TensorInfo] = []
    state: set[int] = set()

    def touch(index: int, time: int, op: str | None = None) -> None:
        if index < 0:
            return
        value = method.values[index]
        if value.kind in ("tensor_list", "optional_tensor_list"):
            for item in value.value:
                touch(item, time, op)
            return
        if value.tensor and value.tensor.memory_id is not None:
            if op is not None and index not in maker:
                written.append(value.tensor)
            elif index not in first and not any(_overlap(value.tensor, tensor) for tensor in written):
                state.add(index)
        first.setdefault(index, time)
        last[index] = time
        if op is not None:
            maker.setdefault(index, op)

    for port in method.inputs:
        touch(port.index, 0, "input")
    for item in method.instructions:
        for index in item.inputs:
            touch(index, item.index)
        for index in item.outputs:
            touch(index, item.index, item.op)
    for port in method.outputs:
        touch(port.index, max(0, count - 1))
    loops = sorted(
        (item.destination, item.index)
        for item in method.instructions
        if item.destination is not None and item.destination <= item.index
    )
    result = []
    for value in method.values:
        tensor = value.tensor
        if tensor is None or tensor.memory_id is None or tensor.memory_offset is None:
            continue
        begin, end = first.get(value.index, 0), last.get(value.index, 0)
        if tensor.storage == "initialised" or value.index in state:
            begin, end = 0, max(0, count - 1)
            maker[value.index] = "state"
        for start, stop in loops:
            if begin <= stop and end >= start and (begin < start or end > stop):
                begin, end = min(begin, start), max(end, stop)
        name = tensor.name or ""
        result.append(
            Tenant(
                value.index,
                f"{name} {tensor}".strip(),
                tensor.memory_id,
                tensor.memory_offset,
                tensor.nbytes,
                begin,
                end,
                maker.get(value.index, ""),
            )
        )
    return sorted(result, key=lambda tenant: (tenant.first, tenant.last, tenant.value))
