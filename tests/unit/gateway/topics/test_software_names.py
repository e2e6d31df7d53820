"""The name and the version of a client's library that a connection keeps."""

from types import SimpleNamespace

from spark_log.gateway.topics.metadata_requests import software_of


def test_the_name_of_a_library_is_kept_but_not_as_long_as_a_request_may_be():
    request = SimpleNamespace(client_software_name="librdkafka", client_software_version="2.16.0")
    assert software_of(request, 3) == "librdkafka 2.16.0"
    assert software_of(request, 2) == ""
    request.client_software_version = "v" * 16_000
    assert len(software_of(request, 3)) == 200
