"""The URIs of log dirs."""

import pytest

from spark_log.cluster.log_dir_uris import asks_for_region


@pytest.mark.parametrize(
    ("uri", "asks"),
    [
        ("s3://bucket/log", True),
        ("s3://key:secret@bucket/log?scheme=https", True),
        ("s3://bucket/log?region=eu-west-1", False),
        ("s3://bucket/log?endpoint_override=127.0.0.1:9000&scheme=http", False),
        ("gs://bucket/log", False),
    ],
)
def test_a_bucket_without_a_region_in_its_uri_is_asked_for_it(uri: str, asks: bool) -> None:
    assert asks_for_region(uri) == asks
