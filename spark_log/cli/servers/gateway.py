"""The command `spark-log gateway`, which serves Kafka clients."""

from typing import TYPE_CHECKING, Annotated

import typer

from spark_log.cli.output import say
from spark_log.cli.servers.metrics_options import MetricsHost_, MetricsPort_, metrics_of_gateway
from spark_log.cli.shared_options import Cluster_
from spark_log.spark.jobs.options.arguments import usage_error

if TYPE_CHECKING:
    from spark_log.gateway.access.tls import TlsFiles


def gateway(
    cluster: Cluster_,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:9092",
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The address that clients connect to. Default: that of --listen."),
    ] = None,
    zone: Annotated[
        str | None, typer.Option(help="Failure domain; clients with zone=NAME in their client id prefer it.")
    ] = None,
    partitions: Annotated[
        int, typer.Option("--partitions", help="Of topics that clients create by using them (num.partitions).")
    ] = 1,
    auto_create_topics: Annotated[
        bool, typer.Option(help="Create topics that clients use (auto.create.topics.enable).")
    ] = True,
    provisional_offsets: Annotated[
        bool,
        typer.Option(
            help="Acknowledge records of an open transaction with the offsets that they would have if it were committed"
            " now, for clients that insist on offsets. They may get others."
        ),
    ] = False,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that share the port, and are one broker to clients.")
    ] = 1,
    tls_cert: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Certificate with its chain, PEM (ssl.keystore.certificate.chain)."),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Its key, PEM, without a passphrase (ssl.keystore.key).")
    ] = None,
    tls_client_ca: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Clients need a certificate that these authorities have signed, and are its name"
            " (ssl.client.auth=required).",
        ),
    ] = None,
    sasl: Annotated[
        str, typer.Option(metavar="MECHANISMS", help="SCRAM-SHA-256, SCRAM-SHA-512, PLAIN (sasl.enabled.mechanisms).")
    ] = "",
    allow_plain_without_tls: Annotated[
        bool, typer.Option("--allow-plain-without-tls", help="Passwords may cross a network in the clear.")
    ] = False,
    reauthentication_ms: Annotated[
        int,
        typer.Option(
            min=0, help="Milliseconds until clients authenticate again (connections.max.reauth.ms); 0: never."
        ),
    ] = 0,
    acls: Annotated[
        bool, typer.Option("--acls", help="Check what each client may do (authorizer.class.name): `spark-log acl`.")
    ] = False,
    super_users: Annotated[
        str, typer.Option(metavar="USERS", help="May do everything: User:admin;User:CN=ops,O=Shop (super.users).")
    ] = "",
    allow_everyone: Annotated[
        bool,
        typer.Option(
            "--allow-everyone-if-no-acl-found",
            help="Resources without an ACL are open to all (allow.everyone.if.no.acl.found).",
        ),
    ] = False,
    configs: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="NAME=VALUE",
            help="A limit, such as fetch.max.bytes=10000000; repeatable. The guide on Kafka clients lists them.",
        ),
    ] = None,
    metrics_port: MetricsPort_ = None,
    metrics_host: MetricsHost_ = "127.0.0.1",
    has_lease: Annotated[bool, typer.Option("--lease/--no-lease", hidden=True)] = True,
    until_input_ends: Annotated[bool, typer.Option("--until-input-ends", hidden=True)] = False,
) -> None:
    """Serve Kafka's wire protocol, so that any Kafka client can use the cluster.

    Start any number of gateways, on any host: clients see each gateway as a broker. SIGTERM or Ctrl-C stops it when all
    records that it has received are in the log.
    """
    import asyncio
    import signal
    import sys
    from contextlib import AsyncExitStack

    from spark_log.cluster.cluster import Cluster
    from spark_log.errors import needing

    with needing("the gateway", "gateway"):
        from spark_log.gateway.server import Gateway
    from spark_log.gateway.gateway_settings import GatewaySettings, limits_of, parse_address
    from spark_log.gateway.workers import Workers, end_with_the_parent

    host, port = parse_address(listen, "--listen")
    told_host, told_port = parse_address(advertise or listen, "--advertise")
    settings = GatewaySettings(
        host, port, told_host, told_port, zone,
        partitions_of_new_topics=partitions, auto_create_topics=auto_create_topics,
        provisional_offsets=provisional_offsets,
        shares_port=workers > 1, has_lease=has_lease,
        tls=_tls_files(tls_cert, tls_key, tls_client_ca),
        sasl_mechanisms=tuple(each.strip().upper() for each in sasl.split(",") if each.strip()),
        allow_plain_without_tls=allow_plain_without_tls, connections_max_reauth_ms=reauthentication_ms,
        acls=acls, super_users=frozenset(each.strip() for each in super_users.split(";") if each.strip()),
        allow_everyone_if_no_acl_found=allow_everyone,
        **limits_of(configs or ()),
    )  # fmt: skip

    async def serve(opened: Cluster) -> None:
        running = Gateway(opened, settings)
        others = Workers([_worker_options(metrics_port, number) for number in range(1, workers)] if has_lease else [])

        def stop() -> None:
            opened.give_up_soon()
            running.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        if until_input_ends:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop)
        async with others, AsyncExitStack() as stack:
            stack.enter_context(metrics_of_gateway(metrics_host, metrics_port, opened, running))
            await running.run(
                lambda: (
                    say(f"Gateway of {opened.store.address} listens on {host}:{port}. Ctrl-C stops it.")
                    if has_lease
                    else None
                )
            )

    if not has_lease:
        end_with_the_parent()
    with Cluster.open(cluster) as opened:
        asyncio.run(serve(opened))
    if has_lease:
        say("Stopped.")


def _tls_files(certificate: str | None, key: str | None, client_ca: str | None) -> "TlsFiles | None":
    from spark_log.gateway.access.tls import TlsFiles

    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise usage_error("--tls-cert", "TLS needs --tls-cert and --tls-key")
    return TlsFiles(certificate, key, client_ca)


def _worker_options(metrics_port: int | None, number: int) -> list[str]:
    """Return the options of worker process `number`, which serves its metrics at `metrics_port` + `number`."""
    return [] if not metrics_port else ["--metrics-port", str(metrics_port + number)]
