# SPDX-License-Identifier: BSD-3-Clause
# A file may contain an endless loop. Another thread or Ctrl-C can cancel its execution.

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from torchette.errors import ExecutionError
from torchette.format import pte
from torchette.runtime import Method, Runtime


@pytest.fixture
def endless() -> Method:
    """A method with one instruction, a jump to itself while its input is false."""
    plan = pte.ExecutionPlan(
        name="forward",
        container_meta_type=pte.ContainerMetadata("", ""),
        values=[pte.EValue(pte.Bool(False))],
        inputs=[0],
        chains=[pte.Chain(instructions=[pte.Instruction(pte.JumpFalseCall(0, 0))])],
        non_const_buffer_sizes=[0],
    )
    file = bytes(pte.write(pte.Program(version=0, execution_plan=[plan])))
    return Runtime.get().load_program(file).load_method("forward")


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Restores Ctrl-C: a process that a shell starts in the background ignores it, and so does Python."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if main else None
    yield
    if main:
        signal.signal(signal.SIGINT, before)


def test_another_thread_cancels(endless: Method) -> None:
    timer = threading.Timer(0.05, endless.cancel)
    timer.start()
    with pytest.raises(ExecutionError, match="cancelled"):
        endless.execute([False])
    timer.join()
    assert endless.execute([True]) == []


def test_cancel_affects_one_call(endless: Method) -> None:
    endless.cancel()
    with pytest.raises(ExecutionError, match="cancelled"):
        endless.execute([True])
    assert endless.execute([True]) == []


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread"
)
def test_ctrl_c(endless: Method) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)

    for _ in range(2):
        thread = threading.Thread(target=press)
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            endless.execute([False])
        thread.join()
        assert endless.execute([True]) == []


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread"
)
def test_continuing_signal_handler_is_called(endless: Method) -> None:
    signals: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    try:
        main = threading.main_thread().ident
        assert main is not None
        ended = threading.Event()

        def press() -> None:
            while not ended.wait(0.05):  # repeats it, since the first signal may come before the method runs
                signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=press)
        thread.start()
        with pytest.raises(ExecutionError, match="cancelled"):
            endless.execute([False])
        ended.set()
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.SIGINT in signals
    assert endless.execute([True]) == []
