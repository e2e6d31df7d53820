"""The cost of a request is known from its bytes: the walk agrees with the decoder, or refuses the request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from spark_log.gateway.protocol.request_limits import CostlyRequestError, check_cost
from spark_log.gateway.protocol.wire import MalformedRequestError, read_body, read_request_header
from spark_log.gateway.server import APIS
from tests.support.gateway_wire import request_about

VERSIONS = [
    (api.request, version)
    for api in APIS
    for version in range(api.served_from or api.advertised[0], api.advertised[1] + 1)
]


def body_of(request, version):
    request.API_VERSION = version
    request.with_header(1, "test")
    frame = memoryview(request.encode(header=True, framed=True))[4:]
    header = read_request_header(frame, lambda _, number: type(request).flexible_version_q(number))
    return frame[header.body :]


def test_requests_of_each_api_and_version_pass():
    for kind, version in VERSIONS:
        check_cost(kind, version, body_of(request_about("flights", kind, version), version), elements_max=100)


@given(st.sampled_from(VERSIONS), st.data())
def test_whatever_the_walk_accepts_has_as_few_elements_as_it_says(kind_and_version, data):
    kind, version = kind_and_version
    body = bytearray(body_of(request_about("flights", kind, version), version))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at:at] = data.draw(st.binary(max_size=8))
    try:
        check_cost(kind, version, memoryview(body), elements_max=50)
        message = read_body(kind, version, memoryview(body))
    except (CostlyRequestError, MalformedRequestError):
        return
    assert elements_of(message) <= 50


def elements_of(value):
    if isinstance(value, list):
        return len(value) + sum(map(elements_of, value))
    names = type(value)._struct.fields if hasattr(value, "_struct") else ()
    return sum(elements_of(getattr(value, name, None)) for name in names)


def test_a_varint_ends_after_five_bytes():
    with pytest.raises(CostlyRequestError, match="varint"):
        check_cost(ApiVersionsRequest, 3, memoryview(b"\x80" * 1_000), elements_max=10)


def test_elements_are_counted_before_they_are_made():
    topic = MetadataRequest.MetadataRequestTopic(name="t")
    body = body_of(MetadataRequest(topics=[topic] * 11), 4)
    check_cost(MetadataRequest, 4, body, elements_max=11)
    with pytest.raises(CostlyRequestError, match="more than 10 elements"):
        check_cost(MetadataRequest, 4, body, elements_max=10)


def test_a_count_larger_than_the_request_is_refused():
    with pytest.raises(CostlyRequestError):
        check_cost(MetadataRequest, 4, memoryview(b"\0\0\0\x05\0\1t"), elements_max=100)


def test_tagged_fields_that_make_the_decoder_copy_too_much_are_refused():
    topic = b"\0" * 16 + b"\2t" + b"\1\5\0"  # no topic id, a name, one unknown tagged field without bytes
    body = b"\xff\x7f" + topic * 16_000 + b"\1\0\0\0"
    with pytest.raises(CostlyRequestError, match="tagged"):
        check_cost(MetadataRequest, 12, memoryview(body), elements_max=100_000)
