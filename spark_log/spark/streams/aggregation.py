"""Parses aggregates such as "mean(dep_delay) as mean_delay", and computes running aggregates by group.

The text of an aggregate is one call of a Spark aggregate function. Other SQL (a column, a scalar function, a subquery,
a window) is refused when the query is defined. The error names the text.
"""

import re
from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from spark_log.errors import InvalidOptionError

FUNCTIONS = frozenset(
    "approx_count_distinct approx_percentile avg bit_and bit_or bit_xor bool_and bool_or corr count count_if covar_pop"
    " covar_samp every kurtosis max max_by mean min min_by percentile_approx regr_slope skewness some std stddev"
    " stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance".split()
)
"""The allowed functions. Their state for a group does not grow with its records (unlike collect_list and median), and
their result does not depend on the order of records (unlike first, for which max_by(x, _offset) is a substitute).
"""

Aggregate = str | Column

_NAME = "[a-zA-Z_][a-zA-Z0-9_]*"
_FORM = re.compile(rf"(?is)(?P<function>{_NAME})\s*(?P<arguments>\(.*\))?(?:\s+as\s+(?P<name>{_NAME}))?")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.DOTALL)
_REFUSED = re.compile(r"(?i)\b(select|over|distinct)\b|--|/\*|;")


def parse_aggregate(text: str) -> tuple[str, str]:
    """Parse "count", or a call of one of `FUNCTIONS` over expressions of columns. Return (name, SQL).

    The name follows "as". Without "as" it is made from the call: "mean(dep_delay)" becomes mean_dep_delay. Raises
    InvalidOptionError, which names the text.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise InvalidOptionError(f"aggregate {text!r}: expected 'count' or a call as 'mean(dep_delay) as mean_delay'")
    function, arguments = match["function"].lower(), match["arguments"]
    if function not in FUNCTIONS:
        raise InvalidOptionError(f"aggregate {text!r}: {function} is none of {', '.join(sorted(FUNCTIONS))}")
    if arguments is None and function == "count":
        return match["name"] or "count", "count(*)"
    bare = _QUOTED.sub("", arguments or "")
    if not _one_pair(bare):
        raise InvalidOptionError(f"aggregate {text!r}: expected one call as 'mean(dep_delay) as mean_delay'")
    if refused := _REFUSED.search(bare):
        raise InvalidOptionError(f"aggregate {text!r}: {refused[0]!r} cannot be used here")
    name = re.sub(r"[^a-z0-9]+", "_", f"{function}{arguments}".lower()).strip("_")
    return match["name"] or name, f"{function}{arguments}"


def columns_of(frame: DataFrame, by: Sequence[str], aggregates: Sequence[Aggregate]) -> list[Column]:
    """Return the aggregates as columns. Texts are parsed and analysed against `frame`.

    Raises InvalidOptionError for an invalid aggregate or a missing column of `by`.
    """
    for column in by:
        if column not in frame.columns:
            raise InvalidOptionError(f"group by {column!r}: no such column: there are {', '.join(frame.columns)}")
    if not aggregates:
        raise InvalidOptionError("aggregates: at least one is needed, as 'count' or 'mean(dep_delay) as mean_delay'")
    taken = [column.lower() for column in by]
    columns = []
    for aggregate in aggregates:
        if isinstance(aggregate, Column):
            columns.append(aggregate)
            continue
        name, call = parse_aggregate(aggregate)
        if name.lower() in taken:
            raise InvalidOptionError(
                f"aggregate {aggregate!r}: there is already a column {name!r}: choose a name with 'as …'"
            )
        taken.append(name.lower())
        columns.append(sf.expr(call).alias(name))
        try:
            frame.agg(columns[-1])
        except AnalysisException as error:
            raise InvalidOptionError(f"aggregate {aggregate!r}: {str(error).splitlines()[0]}") from None
    return columns


def running(frame: DataFrame, *by: str, aggregates: Sequence[Aggregate]) -> DataFrame:
    """Return the columns `by` and the aggregates over all records so far, for output modes update (changed groups only)
    and complete.

    The state keeps one row per group and never drops it. Without `by` there is one group. Raises InvalidOptionError.
    """
    columns = columns_of(frame, by, aggregates)
    return frame.groupBy(*by).agg(*columns)


def _one_pair(text: str) -> bool:
    """Return whether the first parenthesis is closed by the last character, and not before."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return character == ")" and at == len(text) - 1
    return False
