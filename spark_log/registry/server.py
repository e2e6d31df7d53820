"""The process that serves the schema registry over HTTP, with uvicorn."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidConfigurationError
from spark_log.registry.registry import Registry

_STOP_S_MAX = 10
"""How long requests that have begun may take after the stop."""


class RegistryServer:
    """A server of the cluster's registry in a thread of its own. Port 0: a free port, see `url`."""

    def __init__(self, cluster: Cluster, host: str, port: int) -> None:
        try:
            import uvicorn

            from spark_log.registry.rest import application
        except ImportError as error:
            raise InvalidConfigurationError(
                "the registry's server needs packages that are not installed: pip install 'spark-log[registry]'"
            ) from error
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, reuse_port=False)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            application(Registry(cluster)),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_STOP_S_MAX,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="schema-registry")

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to answer. The socket listens already, so a client that connects at once waits for its answer."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the requests that have begun, and end."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


@contextmanager
def serving(cluster: Cluster, host: str, port: int) -> Iterator[RegistryServer]:
    """A server for the time of the `with` block."""
    server = RegistryServer(cluster, host, port)
    server.start()
    try:
        yield server
    finally:
        server.stop()
