# SPDX-License-Identifier: BSD-3-Clause
# Jumps as branches and loops: the tree is equivalent to the jumps for random code, or the code is rejected.

from __future__ import annotations

import random

from torchette.codegen.flow import Branch, Jump, Leave, Loop, Node, Step, structured


def jumped(code: list[Jump | None], answers: random.Random) -> list[object]:
    """Executes at most 100 instructions. Returns the executed steps and conditions."""
    trace: list[object] = []
    at = 0
    for _ in range(100):
        if at >= len(code):
            return trace
        jump = code[at]
        if jump is None:
            trace.append(at)
            at += 1
        elif jump.target == at + 1:
            at += 1
        elif jump.condition is None:
            at = jump.target
        else:
            trace.append(("condition", jump.condition))
            at = at + 1 if answers.random() < 0.6 else jump.target
    return []


def walked(nodes: tuple[Node, ...], answers: random.Random, trace: list[object]) -> str:
    """Executes a tree and appends to the trace. Returns how the execution ended."""
    for node in nodes:
        if isinstance(node, Step):
            trace.append(node.index)
            continue
        if isinstance(node, Loop):
            end = "again"
            while end in ("again", ""):
                end = walked(node.body, answers, trace)
            continue
        holds = False
        if node.condition is not None:
            trace.append(("condition", node.condition))
            holds = answers.random() < 0.6
        if isinstance(node, Leave):
            if not holds:
                return "again" if node.again else "break"
            continue
        assert isinstance(node, Branch)
        end = walked(node.then if holds else node.other, answers, trace)
        if end:
            return end
    return ""


def test_branch_with_two_sides() -> None:
    code = [Jump(7, 3), None, Jump(None, 4), None, None]
    assert structured(code) == (Branch(7, (Step(1),), (Step(3),)), Step(4))


def test_loop_that_ends_at_its_header() -> None:
    code = [None, Jump(3, 4), None, Jump(None, 0), None]
    loop = Loop((Step(0), Leave(3), Step(2), Leave(None, again=True)))
    assert structured(code) == (loop, Step(4))


def test_jump_into_a_loop_is_rejected() -> None:
    assert structured([Jump(1, 2), None, None, Jump(2, 1)]) is None


def test_trees_are_equivalent_to_jumps() -> None:
    numbers = random.Random(0)
    num_structured = 0
    for seed in range(4000):
        count = numbers.randint(1, 9)
        code: list[Jump | None] = [
            Jump(numbers.choice([None, i, i]), numbers.randint(0, count)) if numbers.random() < 0.45 else None
            for i in range(count)
        ]
        tree = structured(code)
        if tree is None or any(jump is not None and jump.target == i for i, jump in enumerate(code)):
            continue  # a jump to itself leaves no trace
        num_structured += any(isinstance(node, (Loop, Branch)) for node in tree)
        expected, trace = jumped(code, random.Random(seed)), []
        if expected:  # otherwise the code has no steps or does not end
            walked(tree, random.Random(seed), trace)
            assert trace == expected, code
    assert num_structured > 300
