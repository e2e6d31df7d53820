"""Compiles filters on records, which are conditions of SQL, to functions of pyarrow.compute over batches.

Only the nodes in `_CONDITIONS` and `_VALUES` are compiled, with the arguments that their functions name. Every other
node, and every other argument of these nodes, is an error. Nulls behave as in SQL. A condition is true, false or null,
and a record matches if it is true. Comparisons between numbers are exact unless one is a DOUBLE. Arithmetic is that of
DOUBLE, and a division by zero is null.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from spark_log.console.search.batch_columns import BatchColumns
from spark_log.console.search.filter_syntax import JSON_PATHS_MAX, error, parse, place, too_deep
from spark_log.console.search.operands import (
    ARROW,
    NUMBERS,
    TIME,
    Evaluate,
    Kind,
    Operand,
    as_kind,
    column,
    common_kind,
    date_of,
    literal,
    number,
    time_of,
)
from spark_log.console.search.pruning import pruning
from spark_log.log.columns.column_limits import is_column_name
from spark_log.log.segments.slices import FieldFilter

LIKE_MAX = 200
"""The maximum number of characters of a pattern of LIKE."""

_STORED = {"offset": pa.int64(), "partition": pa.int32(), "timestamp": TIME}


@dataclass(frozen=True)
class Filter:
    """A compiled filter.

    `columns` has the stored columns that it needs, such as `value`. `typed` has the paths of the fields of typed
    columns. `prunes` are filters that every matching record passes, for `log.segments.field_filters`.
    """

    text: str
    columns: frozenset[str]
    typed: frozenset[tuple[str, ...]]
    prunes: tuple[FieldFilter, ...]
    _evaluate: Evaluate

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return whether each record of a batch with these columns matches, without nulls."""
        found = self._evaluate(BatchColumns(batch))
        if isinstance(found, pa.Scalar):
            return pa.repeat(bool(found.as_py()), batch.num_rows)
        return pc.fill_null(found, False)


def compile_filter(
    text: str, typed: pa.StructType | None = None, hidden: Callable[[tuple[str, ...]], bool] = lambda _: False
) -> Filter:
    """Compile the filter. Raises FilterError that names the place of the part that is not allowed.

    `typed` are the typed columns of the topic (`TopicColumns.fields`). `hidden` returns whether the path of a column,
    such as ("record", "email"), shows something that the user must not see. A filter cannot use such a column.
    """
    compiler = _Compiler(typed, hidden)
    tree = parse(text)
    try:
        evaluate = compiler.condition(tree)
    except RecursionError:
        raise too_deep() from None
    columns = frozenset(path[0] for path in compiler.paths if path[0] not in compiler.typed_names)
    fields = frozenset(path for path in compiler.paths if path[0] in compiler.typed_names)
    return Filter(text, columns, fields, tuple(pruning(tree, compiler.operand)), evaluate)


class _Compiler:
    def __init__(self, typed: pa.StructType | None, hidden: Callable[[tuple[str, ...]], bool]) -> None:
        self._typed, self._hidden = typed or pa.struct([]), hidden
        self.typed_names = frozenset(self._typed.names)
        self.paths: set[tuple[str, ...]] = set()
        self._json_paths: set[tuple[str, ...]] = set()

    def condition(self, node: exp.Expr) -> Evaluate:
        """Compile the node as a condition."""
        compile_node = _CONDITIONS.get(type(node))
        if compile_node is not None:
            return compile_node(self, node)
        operand = self.operand(node)
        if operand.kind not in (Kind.BOOLEAN, Kind.NULL, Kind.JSON):
            raise error(f"a {operand.kind.value} where a condition is needed", place(node))
        return as_kind(operand, Kind.BOOLEAN)

    def operand(self, node: exp.Expr) -> Operand:
        """Compile the node as a value."""
        compile_node = _VALUES.get(type(node))
        if compile_node is not None:
            return compile_node(self, node)
        if type(node) in _CONDITIONS:
            return Operand(Kind.BOOLEAN, place(node), self.condition(node))
        raise _not_allowed(node)

    def column(self, path: tuple[str, ...], start: int | None) -> Operand:
        name = ".".join(path)
        if self._hidden(path):
            raise error(f"{name} is hidden from you", start, "a filter cannot use it")
        self.paths.add(path[:2] if path[0] == "headers" else path)
        match path:
            case ("key" | "value",):
                return Operand(Kind.TEXT, start, lambda batch: batch.text(path[0]), path=path)
            case (("offset" | "partition" | "timestamp"),):
                return column(path, _STORED[name], lambda batch: batch.stored(name), start)
            case ("headers", header):
                return Operand(Kind.TEXT, start, lambda batch: batch.header(header), path=path)
            case (("key" | "value") as source, *below) if all(map(is_column_name, below)):
                self.paths.discard(path)
                self.paths.add((source,))
                self._json_paths.add(path)
                if len(self._json_paths) > JSON_PATHS_MAX:
                    raise error(f"more than {JSON_PATHS_MAX} fields of JSON", start, "each is decoded for every record")
                return self._json(source, tuple(below), start)
            case (("record" | "key_record" | "record_error" | "key_record_error"), *_):
                return column(path, self._type(path, start), lambda batch: batch.typed(path), start)
        raise error(f"there is no column {name}", start)

    def _json(self, source: str, path: tuple[str, ...], start: int | None) -> Operand:
        def as_type(kind: pa.DataType) -> Evaluate:
            return lambda batch: batch.json(source, path, kind)

        return Operand(Kind.JSON, start, as_type(pa.string()), json=as_type)

    def _type(self, path: tuple[str, ...], start: int | None) -> pa.DataType:
        here: pa.DataType = self._typed
        for depth, name in enumerate(path):
            names = here.names if pa.types.is_struct(here) else []
            if name not in names:
                inside = ".".join(path[:depth])
                known = f"{inside or 'the topic'} has {', '.join(names[:50]) or 'no fields'}"
                raise error(f"there is no column {'.'.join(path)}", start, known)
            here = here.field(name).type
        return here


def _only(node: exp.Expr, *names: str) -> None:
    """Refuse arguments of the node that are not compiled."""
    given = {name for name, value in node.args.items() if value not in (None, False, [], ())}
    if not given <= {*names}:
        raise _not_allowed(node)


def _not_allowed(node: exp.Expr) -> Exception:
    return error(f"{type(node).__name__} is not allowed", place(node))


def _both(function: Any, compiler: _Compiler, node: exp.Expr) -> Evaluate:
    _only(node, "this", "expression")
    left, right = compiler.condition(node.this), compiler.condition(node.expression)
    return lambda batch: function(left(batch), right(batch))


def _not(compiler: _Compiler, node: exp.Expr) -> Evaluate:
    _only(node, "this")
    inner = compiler.condition(node.this)
    return lambda batch: pc.invert(inner(batch))


def _compared(function: Any, left: Operand, right: Operand) -> Evaluate:
    kind = common_kind(left, right)
    first, second = as_kind(left, kind), as_kind(right, kind)
    return lambda batch: function(first(batch), second(batch))


def _comparison(function: Any, compiler: _Compiler, node: exp.Expr) -> Evaluate:
    _only(node, "this", "expression")
    return _compared(function, compiler.operand(node.this), compiler.operand(node.expression))


def _once(value: Operand) -> Operand:
    """Return an operand that is evaluated once for a batch, although several comparisons use it. Otherwise each level
    of nested conditions would multiply the work.
    """
    name = object()
    return replace(value, evaluate=lambda batch: batch.once(name, lambda: value.evaluate(batch)))


def _between(compiler: _Compiler, node: exp.Expr) -> Evaluate:
    _only(node, "this", "low", "high")
    value = _once(compiler.operand(node.this))
    low = _compared(pc.greater_equal, value, compiler.operand(node.args["low"]))
    high = _compared(pc.less_equal, value, compiler.operand(node.args["high"]))
    return lambda batch: pc.and_kleene(low(batch), high(batch))


def _in(compiler: _Compiler, node: exp.Expr) -> Evaluate:
    _only(node, "this", "expressions")
    value = _once(compiler.operand(node.this))
    equal = [_compared(pc.equal, value, compiler.operand(expression)) for expression in node.expressions]
    if not equal:
        raise _not_allowed(node)

    def evaluate(batch: BatchColumns) -> Any:
        found = equal[0](batch)
        for comparison in equal[1:]:
            found = pc.or_kleene(found, comparison(batch))
        return found

    return evaluate


def _is_null(compiler: _Compiler, node: exp.Expr) -> Evaluate:
    _only(node, "this", "expression")
    if not isinstance(node.expression, exp.Null):
        raise _not_allowed(node)
    value = compiler.operand(node.this)
    if value.path in (("key",), ("value",)):  # bytes that are not text are not null
        return lambda batch: pc.is_null(batch.stored(value.path[0]))
    return lambda batch: pc.is_null(value.evaluate(batch))


def _like(ignore_case: bool, compiler: _Compiler, node: exp.Expr) -> Evaluate:
    _only(node, "this", "expression", "negate")
    pattern = node.expression
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        raise error("the pattern of LIKE is not a text in quotes", place(pattern))
    if len(pattern.this) > LIKE_MAX:
        raise error(f"a pattern of {len(pattern.this)} characters", place(pattern), f"at most {LIKE_MAX} are allowed")
    value = compiler.operand(node.this)
    text = as_kind(value, Kind.TEXT)
    # Arrow's LIKE has the escape character \, SQL's has none.
    match = partial(pc.match_like, pattern=pattern.this.replace("\\", "\\\\"), ignore_case=ignore_case)
    try:
        match(pa.array([""]))
    except pa.ArrowInvalid:
        raise error("this pattern is too long", place(pattern), "shorten it") from None
    if node.args.get("negate"):
        return lambda batch: pc.invert(match(text(batch)))
    return lambda batch: match(text(batch))


def _arithmetic(function: Any, compiler: _Compiler, node: exp.Expr) -> Operand:
    _only(node, "this", "expression")
    left, right = _as_float(compiler.operand(node.this)), _as_float(compiler.operand(node.expression))
    return Operand(Kind.FLOAT, place(node), lambda batch: function(left(batch), right(batch)))


def _as_float(side: Operand) -> Evaluate:
    if side.kind not in (*NUMBERS, Kind.JSON, Kind.NULL):
        raise error(f"a {side.kind.value} in arithmetic", side.start, "it is for numbers")
    return as_kind(side, Kind.FLOAT)


def _divided(left: Any, right: Any) -> Any:
    nonzero = pc.if_else(pc.equal(right, 0.0), pa.scalar(None, pa.float64()), right)
    return pc.divide(left, nonzero)


def _negative(compiler: _Compiler, node: exp.Expr) -> Operand:
    _only(node, "this")
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return number("-" + node.this.this, place(node))
    inner = _as_float(compiler.operand(node.this))
    return Operand(Kind.FLOAT, place(node), lambda batch: pc.negate(inner(batch)))


def _function(function: Any, kind: Kind, compiler: _Compiler, node: exp.Expr) -> Operand:
    _only(node, "this")
    value = compiler.operand(node.this)
    text = as_kind(value, Kind.TEXT)
    return Operand(kind, place(node), lambda batch: pc.cast(function(text(batch)), ARROW[kind]))


def _column(compiler: _Compiler, node: exp.Expr) -> Operand:
    return compiler.column(tuple(_names(node)), place(node))


def _names(node: exp.Expr) -> Iterable[str]:
    """Return the names of a dotted path."""
    match node:
        case exp.Identifier():
            return [node.name]
        case exp.Dot():
            _only(node, "this", "expression")
            return [*_names(node.this), *_names(node.expression)]
        case exp.Column():
            _only(node, "this", "table", "db", "catalog")
            parts = [node.args.get(name) for name in ("catalog", "db", "table", "this")]
            return [name for part in parts if part is not None for name in _names(part)]
    raise _not_allowed(node)


def _header(compiler: _Compiler, node: exp.Expr) -> Operand:
    _only(node, "this", "expressions")
    names = [each.this for each in node.expressions if isinstance(each, exp.Literal) and each.is_string]
    if not isinstance(node.this, exp.Column) or list(_names(node.this)) != ["headers"] or len(names) != 1:
        raise error("[ ] is for headers['name'] only", place(node))
    return compiler.column(("headers", names[0]), place(node))


def _literal(compiler: _Compiler, node: exp.Expr) -> Operand:
    return literal(node.this, place(node)) if node.is_string else number(node.this, place(node))


def _boolean(compiler: _Compiler, node: exp.Expr) -> Operand:
    return literal(bool(node.this), place(node))


def _null(compiler: _Compiler, node: exp.Expr) -> Operand:
    return Operand(Kind.NULL, place(node), lambda _: pa.scalar(None, pa.bool_()))


def _instant(compiler: _Compiler, node: exp.Expr) -> Operand:
    """Compile TIMESTAMP '...' and DATE '...'."""
    _only(node, "this", "to")
    text = node.this
    if not isinstance(text, exp.Literal) or not text.is_string:
        raise _not_allowed(node)
    match node.args["to"].this:
        case exp.DType.TIMESTAMP | exp.DType.TIMESTAMPTZ:
            return literal(time_of(text.this, place(text)), place(node))
        case exp.DType.DATE:
            return literal(date_of(text.this, place(text)), place(node))
    raise _not_allowed(node)


def _inner(compiler: _Compiler, node: exp.Expr) -> Operand:
    _only(node, "this")
    return compiler.operand(node.this)


_CONDITIONS: dict[type, Callable[[_Compiler, Any], Evaluate]] = {
    exp.And: partial(_both, pc.and_kleene),
    exp.Or: partial(_both, pc.or_kleene),
    exp.Not: _not,
    exp.EQ: partial(_comparison, pc.equal),
    exp.NEQ: partial(_comparison, pc.not_equal),
    exp.LT: partial(_comparison, pc.less),
    exp.LTE: partial(_comparison, pc.less_equal),
    exp.GT: partial(_comparison, pc.greater),
    exp.GTE: partial(_comparison, pc.greater_equal),
    exp.Between: _between,
    exp.In: _in,
    exp.Is: _is_null,
    exp.Like: partial(_like, False),
    exp.ILike: partial(_like, True),
}
_VALUES: dict[type, Callable[[_Compiler, Any], Operand]] = {
    exp.Column: _column,
    exp.Dot: _column,
    exp.Bracket: _header,
    exp.Literal: _literal,
    exp.Boolean: _boolean,
    exp.Null: _null,
    exp.Cast: _instant,
    exp.Paren: _inner,
    exp.Neg: _negative,
    exp.Add: partial(_arithmetic, pc.add),
    exp.Sub: partial(_arithmetic, pc.subtract),
    exp.Mul: partial(_arithmetic, pc.multiply),
    exp.Div: partial(_arithmetic, _divided),
    exp.Length: partial(_function, pc.utf8_length, Kind.WHOLE),
    exp.Lower: partial(_function, pc.utf8_lower, Kind.TEXT),
    exp.Upper: partial(_function, pc.utf8_upper, Kind.TEXT),
}
