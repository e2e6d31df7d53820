"""The command `spark-log registry`, which serves the schema registry over HTTP until it is stopped."""

from typing import Annotated

import typer

from spark_log.cli.output import say
from spark_log.cli.shared_options import Cluster_, open_cluster


def registry(
    cluster: Cluster_,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="0: a free port.")] = 8081,
) -> None:
    """Serve the cluster's schema registry, with the REST API of Confluent's Schema Registry, for its serializers.

    Start any number: the schemas are in the cluster's metadata store. There is no access control: everyone who reaches
    the address may register and delete schemas. SIGTERM or Ctrl-C stops it after the current requests.

    **Examples**

    - `spark-log registry --port 8081`
    - `curl http://127.0.0.1:8081/subjects`
    """
    from spark_log.errors import StorageUnavailableError
    from spark_log.gateway.registry.server import serving
    from spark_log.process import Stop

    with open_cluster(cluster) as opened:
        stop = Stop().on_signals()
        with serving(opened, host, port) as server:
            say(f"Schema registry of {opened.store.address} at {server.url}. Ctrl-C stops it.")
            while server.is_running and not stop.wait(0.2):
                opened.store.fence.raise_refusal()
            if not stop.is_set():
                raise StorageUnavailableError("the registry's server has ended")
        say("Stopped.")
