"""Serves the schema registry over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager

from spark_log.cluster.cluster import Cluster
from spark_log.errors import needing
from spark_log.gateway.http.asgi_server import AsgiServer
from spark_log.gateway.http.asgi_server import serving as serving_application
from spark_log.gateway.http.requests import LOOPBACK
from spark_log.registry.registry import Registry


@contextmanager
def serving(cluster: Cluster, host: str, port: int) -> Iterator[AsgiServer]:
    """Run a server of the cluster's registry during the `with` block. Port 0 selects a free port, which `url` has."""
    with needing("the registry's server", "registry"):
        import uvicorn  # noqa: F401

        from spark_log.gateway.registry.rest import application
    hosts = LOOPBACK if host in LOOPBACK else None
    with serving_application(application(Registry(cluster), hosts), host, port, "schema-registry") as server:
        yield server
