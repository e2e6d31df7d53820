"""Derives from a condition the filters on typed columns that all matching records pass. Pure."""

from collections.abc import Callable, Iterator

from sqlglot import exp

from spark_log.console.search.operands import NUMBERS, Kind, Operand
from spark_log.log.segments.slices import Condition, FieldFilter

_COMPARISONS: dict[type, tuple[Condition, Condition]] = {
    exp.EQ: (Condition.IN, Condition.IN),
    exp.LT: (Condition.BELOW, Condition.ABOVE),
    exp.LTE: (Condition.AT_MOST, Condition.AT_LEAST),
    exp.GT: (Condition.ABOVE, Condition.BELOW),
    exp.GTE: (Condition.AT_LEAST, Condition.AT_MOST),
}
"""The condition of `column OPERATOR literal`, and that of `literal OPERATOR column`."""


def pruning(node: exp.Expr, operand: Callable[[exp.Expr], Operand]) -> Iterator[FieldFilter]:
    """Yield the filters of the comparisons between a typed column and a literal that are joined by AND. Other
    comparisons are omitted.

    `node` has been compiled, so each of its arguments is allowed.
    """
    if isinstance(node, exp.Paren):
        yield from pruning(node.this, operand)
    elif isinstance(node, exp.And):
        yield from pruning(node.this, operand)
        yield from pruning(node.expression, operand)
    elif type(node) in _COMPARISONS:
        left, right = operand(node.this), operand(node.expression)
        forwards, backwards = _COMPARISONS[type(node)]
        yield from _compared(left, forwards, right)
        yield from _compared(right, backwards, left)
    elif isinstance(node, exp.Between):
        value = operand(node.this)
        yield from _compared(value, Condition.AT_LEAST, operand(node.args["low"]))
        yield from _compared(value, Condition.AT_MOST, operand(node.args["high"]))


def _compared(column: Operand, condition: Condition, value: Operand) -> Iterator[FieldFilter]:
    if column.path[:1] not in (("record",), ("key_record",)) or value.literal is None:
        return
    literal = value.literal
    if column.kind is Kind.FLOAT and value.kind in NUMBERS:
        literal = float(literal)
    elif column.kind is Kind.WHOLE and value.kind is Kind.WHOLE:
        literal = int(literal)
    elif column.kind is not value.kind or column.kind is Kind.BOOLEAN:
        return
    yield FieldFilter(column.path, condition, (literal,))
