"""Runs a gateway beside a program, such as a Spark driver, for clients that know only Kafka's protocol."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from socket import create_server

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidConfigurationError

_HOST = "127.0.0.1"
_STOP_S_MAX = 30


@contextmanager
def serve(cluster: "str | Cluster", *options: str) -> Iterator[str]:
    """Run `spark-log gateway` on a free port of this machine during the `with` block, and yield its address HOST:PORT.

    >>> with serve("/data/log") as servers:                                              # doctest: +SKIP
    ...     spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)

    The gateway is a separate process, which also ends when this program is killed. `options` are those of the command,
    such as "--workers", "2". The gateway's log goes to stderr. Raises InvalidConfigurationError if it does not start.
    """
    with create_server((_HOST, 0)) as free:
        address = f"{_HOST}:{free.getsockname()[1]}"
    place = cluster if isinstance(cluster, str) else cluster.store.address.with_password
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_log", "gateway", "--listen", address, "--until-input-ends", *options],
        env={
            **os.environ,
            "SPARK_LOG_CLUSTER": place,
        },  # the address is not an argument, because other users of the machine can see arguments
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_until_started(process)
        yield address
    finally:
        _end(process)


def _wait_until_started(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if " listens on " in line:  # with --metrics-port there is another line before
            return
    raise InvalidConfigurationError(f"the gateway ended with exit code {process.wait()}; its log has the reason")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=_STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
