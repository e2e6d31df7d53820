"""Topic configs: text becomes types once, and bad text says what is wrong."""

import dataclasses
import re

import pytest

from spark_log.config import ClusterSettings, TopicConfig, definitions
from spark_log.config.group_configs import GroupConfig
from spark_log.errors import InvalidConfigurationError

INT64_MAX = 2**63 - 1


def test_defaults_are_kafkas_or_say_what_kafkas_is() -> None:
    config = TopicConfig.from_overrides({})
    assert config == TopicConfig()
    assert (config.retention_ms, config.retention_bytes, config.segment_bytes) == (604_800_000, -1, 2**30)
    assert (config.max_message_bytes, config.min_insync_replicas) == (1_048_588, 1)
    assert (config.deletes, config.compacts) == (True, False)
    different = {entry.name: (entry.default, entry.kafka_default) for entry in definitions() if entry.kafka_default}
    assert different == {
        "compression.type": ("zstd", "producer"),
        "compression.zstd.level": ("1", "3"),
        "compression.gzip.level": ("6", "-1"),
        "flush.messages": ("1", str(INT64_MAX)),
        "file.delete.delay.ms": ("604800000", "60000"),
    }


@pytest.mark.parametrize("entry", definitions(), ids=lambda entry: entry.name)
def test_every_config_is_documented_and_its_default_parses(entry) -> None:  # type: ignore[no-untyped-def]
    assert len(entry.doc) > 20
    assert entry.valid
    config = TopicConfig.from_overrides({entry.name: entry.default})
    assert config == TopicConfig()
    assert hasattr(config, entry.name.replace(".", "_"))
    assert entry.unit in ("ms", "bytes", "messages", "level", "")
    assert entry.unit not in ("ms", "bytes") or entry.name.endswith("." + entry.unit)


def test_text_round_trips() -> None:
    overrides = {
        "cleanup.policy": "compact,delete",
        "compression.type": "uncompressed",
        "min.cleanable.dirty.ratio": ".25",
        "unclean.leader.election.enable": "TRUE",
        "retention.ms": "-1",
    }
    config = TopicConfig.from_overrides(overrides)
    assert config.cleanup_policy == {"compact", "delete"}
    assert config.compression_type == "none"
    assert config.min_cleanable_dirty_ratio == 0.25
    assert config.unclean_leader_election_enable is True
    assert config.retention_ms == -1
    assert TopicConfig.from_overrides(config.as_text()) == config
    assert len(config.as_text()) == len(definitions()) == len(dataclasses.fields(TopicConfig))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", "604800000", 604_800_000),
        ("retention.ms", str(INT64_MAX), INT64_MAX),
        ("segment.bytes", "14", 14),
        ("cleanup.policy", "delete, compact", frozenset({"delete", "compact"})),
        ("cleanup.policy", "compact", frozenset({"compact"})),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("compression.zstd.level", "-5", -5),
        ("min.cleanable.dirty.ratio", "1", 1.0),
        ("min.cleanable.dirty.ratio", "0.00000001", 1e-8),
        ("inline.max.bytes", "0", 0),
    ],
)
def test_good_values(name: str, text: str, value: object) -> None:
    config = TopicConfig.from_overrides({name: text})
    assert getattr(config, name.replace(".", "_")) == value
    assert TopicConfig.from_overrides(config.as_text()) == config


BAD_NUMBERS = ["", " 5 ", "5 ", "5\n", "+5", "1e9", "1.0", "NaN", "inf", "0x10", "1_000", "true", "٣", "9" * 5000]
BAD_VALUES = [
    *(("retention.ms", text) for text in [*BAD_NUMBERS, "-2", str(2**63), "-" + str(2**63)]),
    *(("segment.bytes", text) for text in ["13", str(2**31)]),
    *(("min.cleanable.dirty.ratio", text) for text in ["", "NaN", "nan", "inf", "-0.1", "1.1", "1e-1", " 0.5", "0,5"]),
    *(("unclean.leader.election.enable", text) for text in ["", "yes", "1", " true"]),
    *(("cleanup.policy", text) for text in ["", "compact,", "Delete", "delete;compact"]),
    ("message.timestamp.type", "createtime"),
    ("compression.type", "ZSTD"),
    ("compression.zstd.level", "23"),
    ("compression.gzip.level", "-1"),
    ("min.insync.replicas", "0"),
    ("flush.messages", "0"),
    ("inline.max.bytes", str(2**24 + 1)),
]


@pytest.mark.parametrize(("name", "text"), BAD_VALUES)
def test_bad_value_names_config_value_and_what_is_expected(name: str, text: str) -> None:
    with pytest.raises(InvalidConfigurationError) as raised:
        TopicConfig.from_overrides({name: text})
    message = str(raised.value)
    assert repr(name) in message
    assert repr(text[:50])[:-1] in message
    assert "expected" in message
    assert len(message) < 400


def test_words_are_split_in_time_in_proportion_to_the_text() -> None:
    with pytest.raises(InvalidConfigurationError, match=r"cleanup\.policy"):
        TopicConfig.from_overrides({"cleanup.policy": " " * 2**20 + "x"})


@pytest.mark.parametrize("value", [True, 5, None, 1.5, b"5", ["5"]])
def test_values_are_text(value: object) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"retention.ms.*expected text"):
        TopicConfig.from_overrides({"retention.ms": value})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("retention.msec", "Did you mean retention.ms"),
        ("retention_ms", "Did you mean retention.ms"),
        ("Retention.MS", "Did you mean retention.ms"),
        ("zzz", "Known are retention.ms, "),
    ],
)
def test_unknown_name_is_named_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=f"Unknown topic config {name!r}.*{re.escape(hint)}"):
        TopicConfig.from_overrides({name: "1"})


def test_producer_codec_is_refused_with_its_reason() -> None:
    with pytest.raises(InvalidConfigurationError, match=r"'producer'.*no producer's codec to retain"):
        TopicConfig.from_overrides({"compression.type": "producer"})


def test_compaction_lags_must_be_in_order() -> None:
    TopicConfig.from_overrides({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(InvalidConfigurationError, match=r"min.compaction.lag.ms \(6\).*max.compaction.lag.ms \(5\)"):
        TopicConfig.from_overrides({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "5", 2**63])
def test_cluster_settings_are_positive_whole_numbers(value: object) -> None:
    assert ClusterSettings(plan_tasks_max=1).plan_tasks_max == 1
    with pytest.raises(InvalidConfigurationError, match=r"plan\.tasks\.max"):
        ClusterSettings(plan_tasks_max=value)  # type: ignore[arg-type]


def test_the_error_for_an_interval_says_that_it_may_be_off():
    assert ClusterSettings(metrics_interval_ms=-1).metrics_interval_ms == -1
    with pytest.raises(InvalidConfigurationError, match=r"a whole number from 1 to \d+, or -1$"):
        ClusterSettings(metrics_interval_ms=0)


@pytest.mark.parametrize("name", ["file.delete.delay.ms", "retired.file.retention.ms"])
def test_the_delay_of_deleting_files_has_kafkas_name_and_an_older_one(name: str) -> None:
    config = TopicConfig.from_overrides({name: "5"})
    assert config.file_delete_delay_ms == 5
    assert config.as_text()["file.delete.delay.ms"] == "5"


def test_a_config_is_not_given_by_both_of_its_names() -> None:
    with pytest.raises(InvalidConfigurationError, match="given twice"):
        TopicConfig.from_overrides({"file.delete.delay.ms": "5", "retired.file.retention.ms": "6"})


def test_values_of_group_configs_that_only_a_newer_version_knows_are_left_out() -> None:
    settings = ClusterSettings.parse({"group.share.session.timeout.ms": "50000"})
    stored = {
        "share.isolation.level": "read_newly",
        "share.session.timeout.ms": "never",
        "share.delivery.count.limit": "7",
        "share.new": "1",
    }
    config = GroupConfig.of(stored, settings)
    assert config == GroupConfig.of({"share.delivery.count.limit": "7"}, settings)
    assert (config.share_delivery_count_limit, config.share_session_timeout_ms) == (7, 50_000)
