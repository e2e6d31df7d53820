"""The bytes that consumers of a classic group exchange: any client may send any."""

from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from spark_log.groups.consumer_messages import decode_assignment, decode_subscription, encode_assignment
from spark_log.ids import TopicPartition

PARTITIONS = frozenset({TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 1)})
ENCODED = encode_assignment(PARTITIONS)
_PAIR = ConsumerProtocolSubscription.TopicPartition
SUBSCRIPTION = ConsumerProtocolSubscription(
    version=1, topics=["t", "u"], user_data=b"x", owned_partitions=[_PAIR(topic="t", partitions=[0])]
).encode()


def test_subscription_with_a_null_topic_is_none():
    assert decode_subscription(bytes.fromhex("000000000001ffffffffffff")) is None


def test_messages_are_decoded():
    assert decode_assignment(ENCODED) == PARTITIONS
    assert decode_subscription(SUBSCRIPTION) == ({"t", "u"}, {TopicPartition("t", 0)})
    eager = ConsumerProtocolSubscription(version=0, topics=["t"], user_data=b"").encode()
    assert decode_subscription(eager) == ({"t"}, frozenset())


@given(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([ENCODED, SUBSCRIPTION]).flatmap(
            lambda data: st.integers(0, len(data) - 1).map(lambda end: data[:end])
        ),
    )
)
def test_any_bytes_are_a_message_or_none(data):
    for decode in (decode_assignment, decode_subscription):
        decode(data)
