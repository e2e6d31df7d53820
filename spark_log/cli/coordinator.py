"""`spark-log coordinator`: do the periodic duties of the cluster until stopped."""

from typing import Annotated

import typer

from spark_log.cli.options import Cluster_, Json, parse_pairs
from spark_log.cli.output import note, print_facts, print_json, say


def coordinator(
    cluster: Cluster_,
    status: Annotated[
        bool, typer.Option("--status", help="Show who is the coordinator, and end. Exit code 1: none is.")
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--setting",
            metavar="NAME=VALUE",
            help="A cluster setting for this process alone, as log.merge.interval.ms=60000; repeatable. It "
            "then keeps to the cluster's settings as they are when it starts.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Stand for coordinator: end the sessions of dead consumers, assign partitions, do maintenance.

    One acts at a time; start as many as you like, on any host. Without any, consumers see to groups themselves.
    SIGTERM or Ctrl-C gives the lease back.
    """
    from spark_log.cluster.cluster import Cluster
    from spark_log.cluster.settings import with_settings
    from spark_log.config import ClusterSettings
    from spark_log.coordinator.coordinator import Coordinator, coordinator_status
    from spark_log.stopping import Stop

    given = parse_pairs(setting or (), "--setting")
    ClusterSettings.parse(given)
    with Cluster.open(cluster) as opened:
        if status or as_json:
            found = coordinator_status(opened)
            facts = {"holder": found.holder, "term": found.epoch, "lease_left_ms": found.left_ms}
            print_json(facts) if as_json else print_facts(facts)
            if found.holder is None or found.left_ms <= 0:
                note("spark-log: there is no coordinator")
                raise typer.Exit(1)
            return
        stop = Stop().on_signals()
        settings = with_settings(opened, given) if given else None
        with Coordinator(opened, settings=settings) as standing:
            say(f"Standing for coordinator of {opened.store.address}. Ctrl-C stops.")
            acting = False
            while not stop.wait(0.2):
                if standing.acting != acting:
                    acting = standing.acting
                    note("Acting." if acting else "Another one acts.")
        say("Stopped.")
