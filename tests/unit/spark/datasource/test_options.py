"""The documented options of reads, one after the other, with their messages."""

import pickle
import re

import pytest

from spark_log.errors import InvalidOptionError, InvalidTopicError
from spark_log.ids import TopicId, TopicPartition
from spark_log.spark.datasource.options.positions import (
    CommittedOffsets,
    EarliestOffsets,
    GlobalTimestamp,
    LatestOffsets,
    SpecificOffsets,
    SpecificTimestamps,
)
from spark_log.spark.datasource.options.source_options import (
    READ_COLUMNS,
    ReadOptions,
    WriteOptions,
)
from spark_log.spark.datasource.options.starting_lineage import StartingLineage
from spark_log.spark.datasource.options.topic_choice import AssignPartitions, SubscribePattern, SubscribeTopics

BASE = {"cluster": "/c", "subscribe": "t"}


T0 = TopicPartition("t", 0)


def read(**options: str) -> ReadOptions:
    return read_exactly({**BASE, **options})


def stream(**options: str) -> ReadOptions:
    return read_exactly({**BASE, **options}, streaming=True)


def read_exactly(options: dict[str, str], streaming: bool = False) -> ReadOptions:
    return ReadOptions.parse(options, streaming=streaming, environ={})


def write(**options: str) -> WriteOptions:
    return WriteOptions.parse({"cluster": "/c", **options}, streaming=False, environ={})


def refused(options: dict[str, str], message: str, streaming: bool = False) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        read_exactly(options, streaming)
    assert message in str(raised.value)


def test_defaults() -> None:
    batch, default_stream = read(), stream()
    assert batch == ReadOptions("/c", SubscribeTopics(("t",)), EarliestOffsets(), LatestOffsets())
    assert default_stream == ReadOptions("/c", SubscribeTopics(("t",)), LatestOffsets(), LatestOffsets())
    assert batch.columns == READ_COLUMNS
    assert (batch.fail_on_data_loss, batch.include_headers, batch.max_trigger_delay_ms) == (True, False, 900_000)


@pytest.mark.parametrize("key", ["STARTINGOFFSETS", "startingoffsets", "startingOffsets", "StartingOffsets"])
@pytest.mark.parametrize("value", ["earliest", " Earliest ", "EARLIEST\n"])
def test_keys_and_words_are_case_insensitive(key: str, value: str) -> None:
    assert stream(**{key: value}).starting == EarliestOffsets()


def test_unknown_keys_are_ignored() -> None:
    assert read(**{"fetchOffset.numRetries": "x", "nonsense": ""}) == read()


# --- subscriptions --------------------------------------------------------------------------------------------------


def test_valid_subscriptions() -> None:
    assert read(subscribe=" a , b,,a, ").subscription == SubscribeTopics(("a", "b"))
    pattern = read_exactly({"cluster": "/c", "subscribePattern": " t.*x "}).subscription
    assert pattern == SubscribePattern("t.*x")
    assert isinstance(pattern, SubscribePattern)
    assert pattern.select(["xt", "my-t1x-z", "tx"]) == ["my-t1x-z", "tx"]
    assert SubscribePattern("offsets").select(["__consumer_offsets", "offsets"]) == ["offsets"]
    assign = read_exactly({"cluster": "/c", "assign": ' {"t":[1,0]}'}).subscription
    assert assign == AssignPartitions((T0, TopicPartition("t", 1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "One of the following options must be specified for"),
        ({"subscribe": "t", "assign": "{}"}, "Only one of the following options can be specified for"),
        ({"subscribe": "t", "subscribePattern": "t"}, "Only one of the following options can be specified for"),
        ({"subscribe": ""}, "No topics to subscribe to as specified value for option 'subscribe' is ''"),
        ({"subscribe": " , ,"}, "No topics to subscribe to as specified value for option 'subscribe' is ' , ,'"),
        ({"subscribePattern": "  "}, "Pattern to subscribe is empty as specified value for option 'subscribePattern'"),
        ({"subscribePattern": "("}, "Option 'subscribePattern' is not a regular expression: '('"),
        ({"assign": ""}, "No topicpartitions to assign as specified value for option 'assign' is ''"),
        ({"assign": "t"}, "No topicpartitions to assign as specified value for option 'assign' is 't'"),
        ({"assign": "{}"}, "No topicpartitions to assign as specified value for option 'assign' is '{}'"),
        ({"assign": '{"t":0}'}, 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got {"t":0}'),
    ],
)
def test_invalid_subscriptions_are_refused(options: dict[str, str], message: str) -> None:
    refused({"cluster": "/c", **options}, message)


@pytest.mark.parametrize("options", [{"subscribe": "t,a/b"}, {"assign": '{"../x":[0]}'}])
def test_topic_names_are_checked(options: dict[str, str]) -> None:
    with pytest.raises(InvalidTopicError, match=f"option '{next(iter(options))}': topic is not a legal topic name"):
        read_exactly({"cluster": "/c", **options})


# --- address of the cluster -----------------------------------------------------------------------------------------


def test_cluster_address_comes_from_options_or_environment() -> None:
    env = {"SPARK_LOG_CLUSTER": " /env "}
    assert ReadOptions.parse({"subscribe": "t"}, streaming=False, environ=env).cluster == "/env"
    assert ReadOptions.parse(BASE, streaming=False, environ=env).cluster == "/c"
    alias = {"Kafka.Bootstrap.Servers": "/k", "subscribe": "t"}
    assert ReadOptions.parse(alias, streaming=False, environ=env).cluster == "/k"
    assert ReadOptions.parse({**alias, "cluster": " /k"}, streaming=False, environ=env).cluster == "/k"
    refused({**alias, **BASE}, "option 'cluster' is '/c' and option 'kafka.bootstrap.servers' is '/k'")
    refused({"subscribe": "t"}, "Option 'cluster' must be specified")
    refused({"subscribe": "t", "cluster": " "}, "Option 'cluster' must be a text that is not empty")


def test_reprs_and_messages_hide_passwords() -> None:
    url = "postgresql+psycopg://me:s3cret@db/log"
    assert "s3cret" not in repr(read(cluster=url))
    assert "me:***@db" in repr(read(cluster=url))
    assert "s3cret" not in repr(write(cluster=url))
    with pytest.raises(InvalidOptionError) as raised:
        read(**{"cluster": url, "kafka.bootstrap.servers": "/other"})
    assert "s3cret" not in str(raised.value)


# --- start and end positions ----------------------------------------------------------------------------------------


JSON, TIMES = '{"t":{"0":5}}', '{"t":{"0":7}}'


@pytest.mark.parametrize(
    ("options", "position"),
    [
        ({"Offsets": JSON}, SpecificOffsets({T0: 5})),
        ({"Offsets": f"\n {JSON} "}, SpecificOffsets({T0: 5})),
        ({"OffsetsByTimestamp": TIMES}, SpecificTimestamps({T0: 7})),
        ({"Timestamp": " 9 "}, GlobalTimestamp(9)),
        ({"OffsetsByTimestamp": TIMES, "Offsets": "rubbish"}, SpecificTimestamps({T0: 7})),
        ({"Timestamp": "9", "OffsetsByTimestamp": "rubbish", "Offsets": "rubbish"}, GlobalTimestamp(9)),
    ],
)
@pytest.mark.parametrize("side", ["starting", "ending"])
def test_precedence_of_position_options(side: str, options: dict[str, str], position: object) -> None:
    assert getattr(read(**{side + name: text for name, text in options.items()}), side) == position
    if side == "starting":
        assert stream(**{side + name: text for name, text in options.items()}).starting == position


def test_json_accepts_latest_and_earliest() -> None:
    assert read(startingOffsets='{"t":{"0":-2}}').starting == SpecificOffsets({T0: -2})
    assert read(endingOffsets='{"t":{"0":-1}}').ending == SpecificOffsets({T0: -1})
    assert read(startingOffsets=JSON, endingOffsets='{"t":{"0":-1}}').ending == SpecificOffsets({T0: -1})
    assert stream(startingOffsets='{"t":{"0":-1}}').starting == SpecificOffsets({T0: -1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets for t-0 can't be latest for batch queries"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "ending offset for t-0 can't be earliest for batch queries"),
        ({"startingOffsets": "5"}, 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got 5'),
        ({"startingOffsets": ""}, 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got '),
        ({"startingTimestamp": "x"}, "Expected a single long value, got x"),
        ({"startingTimestamp": ""}, "Expected a single long value, got "),
        ({"startingTimestamp": "1.0"}, "Expected a single long value, got 1.0"),
        ({"endingTimestamp": str(2**63)}, f"Expected a single long value, got {2**63}"),
        ({"startingTimestamp": "-1"}, "Option 'startingTimestamp' must not be negative, got -1"),
        ({"startingOffsetsByTimestamp": JSON[:-1]}, 'Expected e.g. {"topicA": {"0": 123456789'),
        (
            {"startingOffsets": JSON, "endingOffsets": '{"t":{"0":5,"1":5}}'},
            "The specified start offset and end offset should have the same topic-partitions. "
            "Topic-partitions for start offset: Set(t-0), topic-partitions for end offset: Set(t-0, t-1).",
        ),
        (
            {"startingOffsets": JSON, "endingOffsets": '{"t":{"0":4}}'},
            "The specified start offset 5 is greater than the end offset 4 for topic t partition 0.",
        ),
        (
            {"startingOffsetsByTimestamp": TIMES, "endingOffsetsByTimestamp": JSON},
            "The specified start timestamp 7 is greater than the end timestamp 5 for topic t partition 0.",
        ),
    ],
)
def test_invalid_positions_of_a_batch_are_refused(options: dict[str, str], message: str) -> None:
    refused({**BASE, **options}, message)


@pytest.mark.parametrize("end", ["earliest", '{"t":{"0":-2}}'])
def test_an_end_that_no_query_takes_is_refused_by_load(end: str) -> None:
    """When Spark makes the source, it is not known yet whether the query is a batch or a stream."""
    with pytest.raises(InvalidOptionError, match="can't be earliest for batch queries"):
        ReadOptions.parse({**BASE, "endingOffsets": end}, streaming=None, environ={})


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("endingOffsets", "ending offset not valid in streaming queries"),
        ("endingOffsetsByTimestamp", "ending timestamp not valid in streaming queries"),
        ("endingTimestamp", "ending timestamp not valid in streaming queries"),
    ],
)
def test_streams_refuse_ending_options(option: str, message: str) -> None:
    refused({**BASE, option: "latest"}, message, streaming=True)


def test_unknown_mode_refuses_only_options_invalid_in_both_modes() -> None:
    def judge(options: dict[str, str]) -> None:
        ReadOptions.parse(options, streaming=None, environ={})

    for option, text in [
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"t":{"0":-1}}'),
        ("endingOffsets", "latest"),
        ("endingOffsets", JSON),
    ]:
        judge({**BASE, option: text})
    for options, message in [
        ({"cluster": "/c"}, "One of the following options must be specified"),
        ({"subscribe": "t"}, "Option 'cluster' must be specified"),
        ({**BASE, "subscribe": " , "}, "No topics to subscribe"),
        ({**BASE, "startingOffsets": JSON[:-1]}, "Expected e.g."),
        ({**BASE, "endingOffsets": "5"}, "Expected e.g."),
        ({**BASE, "minPartitions": "0"}, "minPartitions must be positive"),
    ]:
        with pytest.raises(InvalidOptionError, match=message):
            judge(options)


def test_timestamp_strategy_is_error_or_latest() -> None:
    assert read().starting_timestamp_strategy == "error"
    assert read(startingOffsetsByTimestampStrategy="LATEST").starting_timestamp_strategy == "latest"
    refused({**BASE, "startingOffsetsByTimestampStrategy": "first"}, "must be error or latest, got 'first'")


# --- limits and columns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["failOnDataLoss", "includeHeaders"])
@pytest.mark.parametrize("text", ["yes", "1", "", " true", "t"])
def test_booleans_are_strict(option: str, text: str) -> None:
    refused({**BASE, option: text}, f"Option '{option}' must be true or false, got {text!r}")


def test_booleans() -> None:
    assert read(failOnDataLoss="FALSE").fail_on_data_loss is False
    assert read(includeHeaders="True").columns == (*READ_COLUMNS, "headers")


NUMBERS = {
    "minPartitions": "minPartitions must be positive",
    "maxRecordsPerPartition": "maxrecordsperpartition must be positive",
    "maxOffsetsPerTrigger": "maxOffsetsPerTrigger must be positive",
    "minOffsetsPerTrigger": "minOffsetsPerTrigger must be positive",
}


@pytest.mark.parametrize("option", NUMBERS)
def test_numbers_are_checked(option: str) -> None:
    field = re.sub("([A-Z])", lambda match: "_" + match[1].lower(), option)
    assert getattr(read(**{option: "7"}), field) == 7
    for text in ("0", "-1"):
        refused({**BASE, option: text}, NUMBERS[option] + f", got {text}")
    for text in ("", " 7", "7.0", "1e3", "true", "٣", str(2**63), "9" * 5000):
        refused({**BASE, option: text}, f"Option '{option}' must be a whole number")
    if option == "minPartitions":
        refused({**BASE, option: str(2**31)}, f"up to {2**31 - 1}, got '{2**31}'")


def test_bytes_have_units() -> None:
    assert read(maxBytesPerTrigger="64MiB").max_bytes_per_trigger == 64 << 20
    assert read().max_bytes_per_trigger is None
    refused({**BASE, "maxBytesPerTrigger": "0"}, "Option 'maxBytesPerTrigger': expected bytes such as")


def test_minimum_above_maximum_is_refused() -> None:
    assert read(minOffsetsPerTrigger="15", maxOffsetsPerTrigger="15").min_offsets_per_trigger == 15
    refused(
        {**BASE, "minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"},
        "The value of minOffsetPerTrigger(20) is higher than the maxOffsetsPerTrigger(15).",
        streaming=True,
    )


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        ("15m", 900000),
        ("1h", 3600000),
        ("30s", 30000),
        ("2min", 120000),
        ("1d", 86400000),
        ("250", 250),
        ("250ms", 250),
        ("1500us", 1),
        (" 5S ", 5000),
        ("0s", 0),
    ],
)
def test_durations(text: str, delay_ms: int) -> None:
    assert stream(maxTriggerDelay=text).max_trigger_delay_ms == delay_ms


@pytest.mark.parametrize("text", ["", "m", "15 m", "-1s", "1.5h", "15x", "1w", "1h30m", "9" * 19 + "d", "٣s"])
def test_invalid_durations_are_refused(text: str) -> None:
    refused(
        {**BASE, "maxTriggerDelay": text}, f"Option 'maxTriggerDelay': failed to parse time string {text!r}. Time must"
    )


def test_group() -> None:
    options = read(**{"group.id": " g ", "groupIdPrefix": "p"})
    assert (options.group_id, options.group_id_prefix) == ("g", "p")
    assert read(**{"kafka.group.id": "g"}).group_id == "g"
    refused({**BASE, "group.id": "a", "kafka.group.id": "b"}, "they are aliases, set one of them")
    for text in ("", "  ", "a\x00b", "a\nb"):
        refused({**BASE, "group.id": text}, "Option 'group.id' must be a text")


def test_columns() -> None:
    options = read(columns=" Value, timestamptype ,KEY")
    assert (options.columns, options.include_headers) == (("value", "timestampType", "key"), False)
    assert read(columns="headers").include_headers is True
    assert read(columns="headers,value", includeHeaders="true").include_headers is True
    refused({**BASE, "columns": ""}, "Option 'columns' has no column ''")
    refused({**BASE, "columns": "value,valeu"}, "Option 'columns' has no column 'valeu'")
    refused({**BASE, "columns": "value,Value"}, "Option 'columns' names 'Value' twice")
    refused({**BASE, "columns": "value", "includeHeaders": "true"}, "contradict each other")
    refused({**BASE, "columns": "headers", "includeHeaders": "false"}, "contradict each other")


def test_rack() -> None:
    assert read(**{"Kafka.Client.Rack": " r1 "}).client_rack == "r1"
    assert stream(**{"kafka.client.rack": "r1"}).client_rack == "r1"
    assert read().client_rack is None
    assert read(**{"kafka.client.rack": ""}).client_rack is None, "Kafka's default"


def test_isolation_level() -> None:
    assert read(**{"kafka.isolation.level": "read_committed"}) == read(**{"kafka.isolation.level": "read_uncommitted"})
    refused({**BASE, "kafka.isolation.level": "serializable"}, "'kafka.isolation.level' must be read_committed or")


# --- writes ---------------------------------------------------------------------------------------------------------


def test_the_lineage_of_the_start_of_a_stream() -> None:
    lineage = StartingLineage({"t": TopicId(3)}, {TopicPartition("t", 0): 2})
    assert stream(startingLineage=lineage.to_json()).starting_lineage == lineage
    for text in ("", "{}", '{"topics":{},"epochs":{"t":{"0":-1}}}', '{"topics":[],"epochs":{}}'):
        refused({**BASE, "startingLineage": text}, "is set by stream_topic", streaming=True)
    refused({**BASE, "startingLineage": lineage.to_json()}, "is set by stream_topic, for streams")


def test_options_can_be_pickled() -> None:
    options = read(startingOffsets=JSON, columns="value", **{"group.id": "g"})
    assert pickle.loads(pickle.dumps(options)) == options
    assert pickle.loads(pickle.dumps(write(topic="t"))) == write(topic="t")


def test_start_at_committed_offsets_needs_a_group() -> None:
    assert read(startingOffsets=" Committed ", **{"group.id": "g"}).starting == CommittedOffsets()
    assert stream(startingOffsets="committed", **{"kafka.group.id": "g"}).starting == CommittedOffsets()
    with pytest.raises(InvalidOptionError, match=r"group\.id"):
        read(startingOffsets="committed")
    with pytest.raises(InvalidOptionError, match="endingOffsets"):
        read(endingOffsets="committed", **{"group.id": "g"})
