"""The text form of aggregates."""

import pytest

from spark_log.errors import InvalidOptionError
from spark_log.spark.streams.aggregation import parse_aggregate


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("count", ("count", "count(*)")),
        (" COUNT as flights ", ("flights", "count(*)")),
        ("count(*)", ("count", "count(*)")),
        ("mean(dep_delay)", ("mean_dep_delay", "mean(dep_delay)")),
        ("Mean(dep_delay) AS mean_delay", ("mean_delay", "mean(dep_delay)")),
        ("sum((a + b) * 2) as s", ("s", "sum((a + b) * 2)")),
        ("max_by(x, _offset)", ("max_by_x_offset", "max_by(x, _offset)")),
        ("count_if(k = 'select ) over')", ("count_if_k_select_over", "count_if(k = 'select ) over')")),
        ("sum(cast(x as int))", ("sum_cast_x_as_int", "sum(cast(x as int))")),
    ],
)
def test_aggregate_texts_are_parsed(text: str, parsed: tuple[str, str]) -> None:
    assert parse_aggregate(text) == parsed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected 'count' or a call"),
        ("x", "x is none of"),
        ("max", "expected one call"),
        ("upper(x)", "upper is none of"),
        ("collect_list(x)", "collect_list is none of"),
        ("first(x)", "first is none of"),
        ("sum(a) + sum(b)", "expected one call"),
        ("sum(a)) as x, (sum(b)", "expected one call"),
        ("sum(a) over (partition by b)", "expected one call"),
        ("sum((select 1))", "'select' cannot be used here"),
        ("sum(sum(x) over ())", "'over' cannot be used here"),
        ("count(distinct x)", "'distinct' cannot be used here"),
        ("sum(x -- y\n)", "'--' cannot be used here"),
        ("sum(x) as a b", "expected"),
        ("sum(x) as 'a'", "expected"),
        ("1 + 1", "expected"),
    ],
)
def test_other_texts_are_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidOptionError) as error:
        parse_aggregate(text)
    assert said in str(error.value)
    assert repr(text) in str(error.value)
