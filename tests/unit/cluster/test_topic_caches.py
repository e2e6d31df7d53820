"""The caches of schemas of topics, which clients choose, have a limit of their size."""

import gc
import json
import tracemalloc

import pytest

from spark_log.cluster.topics import Topic, topic_config
from spark_log.config import TopicConfig
from spark_log.ids import TopicId
from spark_log.log.columns.decoded import ColumnsDefinition
from spark_log.log.columns.decoding import decoder, schema_fields
from spark_log.log.columns.definitions import define
from spark_log.log.columns.topic_columns import TopicColumns, to_text

MEBI = 1 << 20
SHORT = schema_fields("json", "a INT")


def long_ddl(number):
    return "a INT" + " " * (MEBI - 1_000 + number)


def topic(number, *, columns=None, schema=""):
    return Topic(TopicId(number), str(number), "t", 1, 1, json.dumps({"value.schema": schema}), 0, columns)


def columns_of(number):
    columns = to_text(TopicColumns(number, None, ColumnsDefinition("json", "none", long_ddl(number), SHORT)))
    assert topic(number, columns=columns).columns.version == number
    assert topic(number, columns=columns).all_columns.version == number


def config_of(number):
    assert topic(number, schema=long_ddl(number)).config.value_schema
    assert topic_config(f'{{"value.schema": "{long_ddl(number)}"}}').value_schema


def definition_of(number):
    _, part = TopicConfig.from_overrides({"value.format": "json", "value.schema": long_ddl(number)}).parts
    assert define(part, None).fields == SHORT


@pytest.mark.parametrize("used", [columns_of, config_of, definition_of])
def test_schemas_are_remembered_up_to_a_size(used):
    tracemalloc.start()
    try:
        for number in range(1, 101):
            used(number)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 80 * MEBI
    finally:
        tracemalloc.stop()


def test_decoders_of_many_fields_are_not_all_remembered():
    def made(number):
        fields = schema_fields("json", ", ".join(f"f{number}_{each} INT" for each in range(5_000)))
        return decoder(ColumnsDefinition("json", "none", "", fields))

    first = made(0)
    assert made(0) is first
    for number in range(1, 7):
        made(number)
    assert made(0) is not first
