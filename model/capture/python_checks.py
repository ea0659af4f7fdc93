"""Checks in forward of values of tensors, by `assert` or an `if` that only raises or warns, are taken as passed.

An `if` that warns and has an `else` that computes is no check, nor is one in a `try` that handles what it raises.
"""

import ast
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from types import FrameType
from typing import Any, TypeAlias
from unittest.mock import patch

from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from .source_lines import is_users

Place: TypeAlias = tuple[int, int]
"""Line and column."""

_TELLS = ("logger", "logging", "log", "warnings", "print")
"""Names whose calls only say something."""


@contextmanager
def checks_pass() -> Iterator[None]:
    """Answer conditions on values of tensors, where they only decide whether forward raises or warns: it does not."""
    evaluate = ShapeEnv.evaluate_expr

    def answered(env: ShapeEnv, expression: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return evaluate(env, expression, *args, **kwargs)
        except GuardOnDataDependentSymNode:
            answer = _answer(sys._getframe(1)) if expression.is_Boolean or expression.is_Relational else None
            if answer is None:
                raise
            return answer

    with patch.object(ShapeEnv, "evaluate_expr", answered):
        yield


def _answer(frame: FrameType | None) -> bool | None:
    """What the condition that is being computed must be for a check to pass; None if it is in no check."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    line, _, column, _ = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    if line is None or column is None:
        return None
    checks = _checks(frame.f_code.co_filename)
    around = [(start, passes) for start, end, passes in checks if start <= (line, column) < end]
    return max(around)[1] if around else None  # the innermost begins last


@lru_cache(maxsize=64)
def _checks(file: str) -> tuple[tuple[Place, Place, bool], ...]:
    """The conditions of checks in a file: where each begins and ends, and what its operands are if the check passes.

    Where one operand must be true and another false, nothing is known: Python does not say which it is at.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    found: list[tuple[Place, Place, bool]] = []
    caught = {id(node) for block in ast.walk(tree) if isinstance(block, ast.Try) for node in _caught(block)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assert | ast.If) or id(node) in caught:
            continue
        passes = _passes(node)
        operands = set() if passes is None else {*_operands(node.test, passes)}
        if len(operands) == 1:
            start = node.lineno, node.col_offset  # Python's place for a condition is often the whole statement
            found.append((start, (node.test.end_lineno or 0, node.test.end_col_offset or 0), operands.pop()))
    return tuple(found)


def _operands(test: ast.expr, passes: bool) -> Iterator[bool]:
    """The values of the operands of `and`, `or` and `not` where the whole is `passes`, without those about None."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _operands(value, passes)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _operands(test.operand, not passes)
    elif not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is | ast.IsNot)):
        yield passes


def _caught(block: ast.Try) -> Iterator[ast.AST]:
    """The nodes inside a `try` with handlers, where a failed check does not end forward."""
    return (node for statement in block.body for node in ast.walk(statement) if block.handlers)


def _passes(node: ast.Assert | ast.If) -> bool | None:
    """What the condition is if the check passes; None for an `if` that chooses what is computed."""
    if isinstance(node, ast.Assert) or _raises(node.orelse):
        return True
    if _raises(node.body) or all(map(_tells, [*node.body, *node.orelse])):
        return False
    return None


def _raises(body: list[ast.stmt]) -> bool:
    """True for statements that can only end in `raise`."""
    leaves = (ast.Return, ast.Break, ast.Continue)
    return (
        bool(body)
        and isinstance(body[-1], ast.Raise)
        and not any(isinstance(node, leaves) for statement in body for node in ast.walk(statement))
    )


def _tells(statement: ast.stmt) -> bool:
    """True for a call that prints, logs or warns."""
    call: Any = statement.value if isinstance(statement, ast.Expr) else None
    function = call.func if isinstance(call, ast.Call) else None
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id in _TELLS
