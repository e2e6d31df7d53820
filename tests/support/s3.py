"""Object storage for the tests: moto's S3 on loopback, reached by a pyarrow.fs URI, as from any log dir."""

import logging
import threading
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from pyarrow import fs
from werkzeug.serving import make_server

from tests.support.stores import STORES

ACCESS_KEY = "test-access-key"
SECRET_KEY = "test-secret-key"
REGION = "us-east-1"

also_on_s3 = pytest.mark.parametrize("cluster_address", [*STORES, "s3"], indirect=True)
"""For contract tests: one more run, with the log dirs of `cluster` and `three_brokers` in object storage."""


def give_up_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let log dirs that are opened from now on report the first error of a request. Arrow repeats it for 6 s."""

    def from_uri(uri: str) -> tuple[Any, str]:
        opened, path = fs.FileSystem.from_uri(uri)
        if isinstance(opened, fs.S3FileSystem):
            _, (settings,) = opened.__reduce__()
            opened = fs.S3FileSystem(**settings, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1))
        return opened, path

    impatient = SimpleNamespace(**{**vars(fs), "FileSystem": SimpleNamespace(from_uri=from_uri)})
    patch.setattr("spark_log.cluster.files.log_dir_folder.fs", impatient)


class S3Server:
    """A server with one bucket. Other processes of this machine (Spark workers) reach it too."""

    bucket = "log-dirs"

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request
        # moto's own server looks through all services of AWS at each request
        self._server = make_server(
            "127.0.0.1", 0, create_backend_app("s3"), threaded=True, request_handler=MotoRequestHandler
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def host(self) -> str:
        """`127.0.0.1:port`"""
        return f"127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        self._thread.start()
        self.client().create_bucket(Bucket=self.bucket)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def client(self) -> Any:
        """A boto3 client, for changes by a test without notice to the log."""
        return boto3.client(
            "s3",
            endpoint_url=f"http://{self.host}",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
        )

    def uri(self, prefix: str, host: str | None = None) -> str:
        """A pyarrow.fs URI of a folder in the bucket, with the endpoint (or another `host`) and the keys in it."""
        keys, endpoint = f"{ACCESS_KEY}:{SECRET_KEY}", quote(host or self.host)
        return f"s3://{keys}@{self.bucket}/{prefix}?region={REGION}&scheme=http&endpoint_override={endpoint}"

    def storage_options(self) -> dict[str, str]:
        """The options with which deltalake reaches the same bucket."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.host}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
        }
