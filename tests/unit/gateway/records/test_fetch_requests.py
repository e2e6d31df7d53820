"""How much memory a fetch asks for before it reads."""

import uuid
from types import SimpleNamespace

import pytest

from spark_log.config.topic_configs import TopicConfig
from spark_log.gateway.records.fetch_requests import _Answer, _Asked, _bytes_to_read
from spark_log.gateway.records.record_streams import BATCH_BYTES

LARGEST_RECORD = 2_000_000
"""max.message.bytes of the topic."""


@pytest.mark.parametrize(
    ("limits", "response_bytes_max", "expected"),
    [
        (
            [1, 1, 1],
            1_000_000_000,
            max(LARGEST_RECORD, 3 * BATCH_BYTES),
        ),  # a batch is sent whole, however few bytes are asked for
        ([5 * BATCH_BYTES, 1], 1_000_000_000, 6 * BATCH_BYTES),
        ([5 * BATCH_BYTES, 1], 1_000, LARGEST_RECORD),
        ([2**31 - 1] * 3, 55 * 1024 * 1024, 55 * 1024 * 1024),
        ([], 1_000, 0),
        ([1], -1, 0),
    ],
)
def test_a_fetch_holds_memory_for_what_it_will_read(limits, response_bytes_max, expected):
    asked = [_Asked("flights", uuid.uuid4(), number, 0, limit) for number, limit in enumerate(limits)]
    asked.append(_Asked("flights", uuid.uuid4(), len(limits), 0, 1_000_000))
    topic = SimpleNamespace(config=TopicConfig(max_message_bytes=LARGEST_RECORD))
    answers = [_Answer(topic=topic, version=(0, 0)) for _ in limits] + [_Answer()]  # nothing to be read from the last
    assert _bytes_to_read(asked, answers, response_bytes_max) == expected
