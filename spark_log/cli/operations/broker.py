"""The commands `spark-log broker …`, which add, show, serve, relocate and remove brokers."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from spark_log.cli import completion
from spark_log.cli.output import note, print_json, print_table, say
from spark_log.cli.servers.metrics_options import MetricsHost_, MetricsPort_, metrics_of_coordinator
from spark_log.cli.shared_options import Cluster_, Json, open_cluster, parse_pairs, setting_option
from spark_log.errors import redact

app = typer.Typer(no_args_is_help=True, help="Add, show, serve, relocate and remove brokers.")

BrokerId_ = Annotated[
    int,
    typer.Option(
        "--id", metavar="N", help="Id of the broker, from 1.", show_default=False, autocompletion=completion.brokers
    ),
]


@app.command()
def add(
    broker_id: BrokerId_,
    log_dir: Annotated[
        list[str],
        typer.Option(
            "--log-dir",
            metavar="FOLDER-OR-URI",
            help="Location of its replicas; repeatable. A folder on the disk, not its mount point.",
            show_default=False,
        ),
    ],
    cluster: Cluster_,
    rack: Annotated[str | None, typer.Option(help="Failure domain: replicas are spread over racks.")] = None,
) -> None:
    """Add a broker, which is a place for replicas.

    The broker is *embedded*: it needs no process, because clients and coordinators do its work. `broker start` serves
    it. If the command is interrupted, run it again.

    **Examples**

    - `spark-log broker add --id 2 --log-dir /disk2/log`
    - `spark-log broker add --id 3 --rack b --log-dir /disk3/log --log-dir /disk4/log`
    """
    from spark_log.cluster.brokers import add_broker

    with open_cluster(cluster) as opened:
        add_broker(opened, broker_id, log_dir, rack)
    say(f"Added broker {broker_id} with {', '.join(redact(one) for one in log_dir)}.")


@app.command("list")
def list_(cluster: Cluster_, as_json: Json = False) -> None:
    """List the brokers with their state, serving process, log dirs, replicas and leaders."""
    from spark_log.cluster.brokers import list_brokers
    from spark_log.maintenance.coordinator.coordinator import controller_status

    with open_cluster(cluster) as opened:
        brokers = list_brokers(opened)
        controller = controller_status(opened)
    if as_json:
        found = [{**asdict(broker), "alive": broker.alive, "log_dirs": _log_dirs(broker)} for broker in brokers]
        print_json({"brokers": found, "controller": {"holder": controller.holder, "epoch": controller.epoch}})
        return
    rows = [
        (
            str(broker.broker_id),
            broker.rack,
            broker.alive,
            f"{broker.holder}, lease {broker.lease_left_ms} ms" if broker.served else "embedded",
            broker.leaders,
            log_dir["log_dir"],
            log_dir["replicas"],
            log_dir["failure"] or "online",
        )
        for broker in brokers
        for log_dir in _log_dirs(broker) or [{"log_dir": "none", "replicas": 0, "failure": "addition interrupted"}]
    ]
    print_table(None, ("broker", "rack", "alive", "served by", "leaders", "log dir", "replicas", "state"), rows)
    acting = controller.holder if controller.left_ms else "none: the client that meets a failure holds the election"
    say(f"Controller: {acting} (epoch {controller.epoch})")


def _log_dirs(broker: Any) -> list[dict[str, Any]]:
    return [
        {
            "log_dir": redact(log_dir.uri),
            "online": log_dir.online,
            "failure": None if log_dir.online else redact(log_dir.failure or "offline"),
            "replicas": log_dir.replicas,
        }
        for log_dir in broker.log_dirs
    ]


@app.command()
def start(
    broker_id: BrokerId_,
    cluster: Cluster_,
    setting: Annotated[
        list[str] | None,
        setting_option("A cluster setting for this process, such as broker.session.timeout.ms=9000; repeatable."),
    ] = None,
    metrics_port: MetricsPort_ = None,
    metrics_host: MetricsHost_ = "127.0.0.1",
) -> None:
    """Serve a broker until it is stopped: update its replicas, and run a candidate for controller and coordinator.

    SIGTERM or Ctrl-C stops it, and other brokers lead at once. If it is killed, the broker counts as dead when its
    lease expires (broker.session.timeout.ms).
    """
    from spark_log.cluster.settings import with_settings
    from spark_log.config import ClusterSettings
    from spark_log.maintenance.coordinator.broker import Broker
    from spark_log.process import Stop

    given = parse_pairs(setting or (), "--setting")
    ClusterSettings.parse(given)
    stop = Stop()
    with (
        open_cluster(cluster) as opened,
        Broker(opened, broker_id, settings=with_settings(opened, given) if given else None) as broker,
        metrics_of_coordinator(metrics_host, metrics_port, opened, broker.coordinator, broker.health),
    ):
        stop.on_signals()  # until here, a signal ends the wait for a predecessor's lease
        say(f"Serving broker {broker_id} of {opened.store.address}, epoch {broker.epoch}. Ctrl-C stops.")
        acting = False
        while not stop.wait(0.1) and broker.failure is None:
            if broker.coordinator.controller.acting != acting:
                acting = not acting
                note("It is the controller." if acting else "Another broker is the controller.")
        opened.give_up_soon()
    if broker.failure is not None:
        raise broker.failure
    say("Stopped.")


@app.command()
def embed(broker_id: BrokerId_, cluster: Cluster_) -> None:
    """Make a served broker embedded again. Then it is alive without a process."""
    from spark_log.cluster.brokers import embed_broker

    with open_cluster(cluster) as opened:
        embed_broker(opened, broker_id)
    say(f"Broker {broker_id} is embedded.")


@app.command()
def remove(broker_id: BrokerId_, cluster: Cluster_) -> None:
    """Remove a broker that has no replicas. Its files are not deleted."""
    from spark_log.cluster.brokers import remove_broker

    with open_cluster(cluster) as opened:
        remove_broker(opened, broker_id)
    say(f"Removed broker {broker_id}.")


@app.command()
def relocate(
    from_: Annotated[str, typer.Option("--from", metavar="FOLDER-OR-URI", help="Where the log dir was.")],
    to: Annotated[str, typer.Option("--to", metavar="FOLDER-OR-URI", help="Where its files are now.")],
    cluster: Cluster_,
) -> None:
    """Record that a log dir is at another location, after its files were moved or restored there. No file is copied.

    Stop all clients first. To move replicas while clients are running, use `partition reassign`.

    **Example**

    - `spark-log broker relocate --from s3://lost/log --to s3://restored/log`
    """
    from spark_log.replication.controller.log_dir_relocation import relocate_log_dir

    with open_cluster(cluster) as opened:
        relocate_log_dir(opened, from_, to)
    say(f"The log dir is at {redact(to)} now.")
