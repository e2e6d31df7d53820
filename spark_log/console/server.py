"""Serves the console over HTTP."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client.registry import Collector

from spark_log.cluster.cluster import Cluster
from spark_log.console.access.authentication import Authentication, TokenAuthentication
from spark_log.console.access.basic import BasicAuthentication
from spark_log.console.access.proxy_header import HeaderAuthentication
from spark_log.console.access.roles import EVERY_CHANGE, Role, role_of
from spark_log.console.access.sessions import Sessions
from spark_log.console.app import application
from spark_log.console.settings import AuthMethod, ConsoleSettings
from spark_log.errors import InvalidConfigurationError
from spark_log.facts.metrics.exporter import ClusterCollector, TaskCollector, registry_of
from spark_log.gateway.http.asgi_server import AsgiServer
from spark_log.maintenance.coordinator.coordinator import Coordinator


@contextmanager
def serving(
    cluster: Cluster,
    settings: ConsoleSettings,
    announce: Callable[[str], None],
    tasks: Coordinator | None = None,
) -> Iterator[AsgiServer]:
    """Serve the console in a thread.

    `announce` is called with the address to open, and again after each use of a one-time token. `tasks` is the
    coordinator of this process, whose task runs the console exposes as metrics.
    """
    server = AsgiServer(settings.host, settings.port)
    try:
        address = (settings.public_url or server.url).rstrip("/")
        sessions = Sessions(server.port, secure=address.startswith("https://"))
        authentication = _authentication(settings, sessions, address, announce)
        registry = registry_of(*collectors(cluster, tasks))
        server.start(application(cluster, settings, authentication, registry), "spark-log-console")
        yield server
    finally:
        server.stop()


def collectors(cluster: Cluster, tasks: Coordinator | None) -> list[Collector]:
    """Return the collectors of a console, for metrics of the cluster and of the periodic tasks of its process."""
    found: list[Collector] = [ClusterCollector(cluster, lambda: True)]
    return found if tasks is None else [*found, TaskCollector(tasks.runners)]


def _authentication(
    settings: ConsoleSettings, sessions: Sessions, address: str, announce: Callable[[str], None]
) -> Authentication:
    access = settings.access
    roles = access.roles() if access is not None else {}
    if settings.auth is AuthMethod.BASIC and access is not None:
        return BasicAuthentication(access.users, roles)
    if settings.auth is AuthMethod.HEADER and access is not None and access.header is not None:
        return HeaderAuthentication(access.header, roles)
    if settings.auth is AuthMethod.OIDC and access is not None and access.oidc is not None:
        from spark_log.console.access.oidc import OidcAuthentication  # its cryptography takes 10 MB of memory

        return OidcAuthentication(access.oidc, roles, sessions, address)
    assert settings.auth is AuthMethod.TOKEN, settings
    role = role_of((), roles) if access is not None else Role(EVERY_CHANGE)
    if role is None:
        raise InvalidConfigurationError('--auth token with --access needs a group "*", to which its user belongs')
    return TokenAuthentication(sessions, role, lambda token: announce(f"{address}/?token={token}"))
