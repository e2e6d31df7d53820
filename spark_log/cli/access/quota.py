"""The commands `spark-log quota …`, which manage the limits of Kafka clients at gateways."""

from typing import Annotated

import typer

from spark_log.cli.output import print_rows, say
from spark_log.cli.shared_options import Cluster_, Json, open_cluster, parse_pairs
from spark_log.cluster.quotas.rules import CLIENT_ID, IP, USER, Entity, entity_of, named
from spark_log.errors import IllegalArgumentError

app = typer.Typer(no_args_is_help=True, help="Limit how much Kafka clients may produce, consume and compute.")

_ANYONE = "*"

User_ = Annotated[str | None, typer.Option("--user", help="Name of a user; '*': each user without a quota of its own.")]
ClientId_ = Annotated[str | None, typer.Option("--client-id", help="A client id; '*': each one without its own.")]
Ip_ = Annotated[str | None, typer.Option("--ip", help="An IP address; '*': each one without its own.")]


@app.command("set")
def set_(
    cluster: Cluster_,
    config: Annotated[
        list[str],
        typer.Option(
            "--config",
            metavar="NAME=VALUE",
            help="producer_byte_rate, consumer_byte_rate (bytes per second), request_percentage (of a thread's time), "
            "connection_creation_rate (per second, with --ip). An empty value removes it. Repeatable.",
            show_default=False,
        ),
    ],
    user: User_ = None,
    client_id: ClientId_ = None,
    ip: Ip_ = None,
) -> None:
    """Set or remove limits of a user, a client id, both, or an IP address. Gateways apply them within two seconds.

    **Examples**

    - `spark-log quota set --client-id loader --config producer_byte_rate=1000000`
    - `spark-log quota set --client-id '*' --config request_percentage=50`
    - `spark-log quota set --client-id loader --config producer_byte_rate=`
    """
    from spark_log.clients.admin.audit import local_user
    from spark_log.clients.admin.quotas import alter_quota

    entity = _entity(user, client_id, ip)
    values: dict[str, float | None] = {}
    for name, text in parse_pairs(config, "--config").items():
        values[name] = _number(name, text) if text else None
    with open_cluster(cluster) as opened:
        alter_quota(opened, local_user(), "cli", entity, values)
    say(f"Quota of {named(entity)}: {', '.join(config)}.")


@app.command("list")
def list_(cluster: Cluster_, as_json: Json = False) -> None:
    """List all limits."""
    from spark_log.cluster.quotas.quota_rows import read_quotas

    with open_cluster(cluster) as opened:
        quotas = read_quotas(opened.store)
    document = [{"entity": dict(entity), "configs": dict(values)} for entity, values in quotas.items()]
    rows = [(named(entity), name, value) for entity, values in quotas.items() for name, value in values.items()]
    print_rows(as_json, document, ["entity", "config", "value"], rows)


def _entity(user: str | None, client_id: str | None, ip: str | None) -> Entity:
    given = [(USER, user), (CLIENT_ID, client_id), (IP, ip)]
    parts = [(kind, None if name == _ANYONE else name) for kind, name in given if name is not None]
    if not parts:
        raise IllegalArgumentError("give --user, --client-id, both, or --ip")
    return entity_of(parts)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise IllegalArgumentError(f"--config {name}={text}: expected a number") from None
