"""The command `spark-log console`, which serves the web console until it is stopped."""

from typing import Annotated

import typer

from spark_log.cli.output import say
from spark_log.cli.servers.metrics_options import MetricsHost_, MetricsPort_, metrics_of_console
from spark_log.cli.shared_options import Cluster_, open_cluster
from spark_log.spark.jobs.options.arguments import usage_error


def console(
    cluster: Cluster_,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="0: a free port.")] = 8080,
    auth: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="How users prove who they are: token, basic, header or oidc. Default on this machine: token.",
            show_default=False,
        ),
    ] = None,
    access: Annotated[
        str | None, typer.Option(metavar="FILE", help="TOML file with groups, their roles, and users.")
    ] = None,
    allow: Annotated[
        str,
        typer.Option(
            metavar="CHANGES",
            help="Changes that the console makes: produce,offsets,configs,topics. Default: none.",
            show_default=False,
        ),
    ] = "",
    public_url: Annotated[
        str | None,
        typer.Option("--public-url", metavar="URL", help="The console's address in browsers, if a proxy is between."),
    ] = None,
    periodic_tasks: Annotated[
        bool,
        typer.Option(
            "--periodic-tasks/--no-periodic-tasks",
            help="Run the periodic tasks of the cluster as `spark-log coordinator` does, while no other process has"
            " their leases: maintenance, and the history that the charts show.",
        ),
    ] = True,
    metrics_port: MetricsPort_ = None,
    metrics_host: MetricsHost_ = "127.0.0.1",
) -> None:
    """Serve pages that show the cluster: topics, messages, groups, lag, brokers, maintenance.

    The pages only read, unless --allow permits changes. The command prints an address with a token. The token starts a
    session in one browser; then the next address is printed. SIGTERM or Ctrl-C stops the command.

    **Examples**

    - `spark-log console`
    - `spark-log console --port 0 --allow produce,offsets`
    - `spark-log console --host 0.0.0.0 --auth basic --access access.toml --public-url https://log.example.org`
    """
    from contextlib import ExitStack

    from spark_log.errors import StorageUnavailableError, needing
    from spark_log.maintenance.coordinator.coordinator import Coordinator

    with needing("the console", "console"):
        from spark_log.console.access.access_file import read_access_file
        from spark_log.console.server import serving
    from spark_log.console.settings import AuthMethod, ConsoleSettings, checked, parse_allow
    from spark_log.process import Stop

    if auth is not None and auth not in list(AuthMethod):
        raise usage_error("--auth", f"expected {', '.join(AuthMethod)}, got {auth!r}")
    file = None if access is None else read_access_file(access)
    given = ConsoleSettings(host, port, allow=parse_allow(allow), public_url=public_url, access=file)
    settings = checked(given, None if auth is None else AuthMethod(auth))
    with open_cluster(cluster) as opened, ExitStack() as stack:
        stop = Stop().on_signals()
        tasks = stack.enter_context(Coordinator(opened)) if periodic_tasks else None
        server = stack.enter_context(serving(opened, settings, lambda address: say(f"Open {address}"), tasks))
        say(f"Console of {opened.store.address} at {server.url}. Ctrl-C stops it.")

        def health() -> str | None:
            failure = None if tasks is None else tasks.health()
            return failure if server.is_running else "the console's server has ended"

        stack.enter_context(metrics_of_console(metrics_host, metrics_port, opened, tasks, health))
        while server.is_running and not stop.wait(0.2):
            opened.store.fence.raise_refusal()
        if not stop.is_set():
            raise StorageUnavailableError("the console's server has ended")
    say("Stopped.")
