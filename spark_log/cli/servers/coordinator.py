"""The command `spark-log coordinator`, which runs the periodic tasks of the cluster until it is stopped."""

from typing import Annotated

import typer

from spark_log.cli.output import note, print_facts, print_json, say
from spark_log.cli.servers.metrics_options import MetricsHost_, MetricsPort_, metrics_of_coordinator
from spark_log.cli.shared_options import Cluster_, Json, open_cluster, parse_pairs, setting_option


def coordinator(
    cluster: Cluster_,
    status: Annotated[
        bool, typer.Option("--status", help="Show the active coordinator, and end. Exit code 1: there is none.")
    ] = False,
    setting: Annotated[
        list[str] | None,
        setting_option(
            "A cluster setting for this process alone, such as log.merge.interval.ms=60000; repeatable. Later changes"
            " of the cluster's settings then have no effect on this process."
        ),
    ] = None,
    metrics_port: MetricsPort_ = None,
    metrics_host: MetricsHost_ = "127.0.0.1",
    as_json: Json = False,
) -> None:
    """Run a coordinator, which ends the sessions of dead consumers, assigns partitions and runs maintenance.

    Start any number of coordinators, on any host: one at a time is active. Without a coordinator, consumers manage
    their groups themselves. SIGTERM or Ctrl-C stops it and releases its lease.
    """
    from spark_log.cluster.settings import with_settings
    from spark_log.config import ClusterSettings
    from spark_log.maintenance.coordinator.coordinator import Coordinator, coordinator_status
    from spark_log.process import Stop

    overrides = parse_pairs(setting or (), "--setting")
    ClusterSettings.parse(overrides)
    with open_cluster(cluster) as opened:
        if status or as_json:
            found = coordinator_status(opened)
            facts = {"holder": found.holder, "term": found.epoch, "lease_left_ms": found.left_ms}
            print_json(facts) if as_json else print_facts(facts)
            if found.holder is None or found.left_ms <= 0:
                note("spark-log: there is no coordinator")
                raise typer.Exit(1)
            return
        stop = Stop().on_signals()
        settings = with_settings(opened, overrides) if overrides else None
        with (
            Coordinator(opened, settings=settings) as running,
            metrics_of_coordinator(metrics_host, metrics_port, opened, running, running.health),
        ):
            say(f"Coordinator of {opened.store.address} is running. Ctrl-C stops it.")
            acting = False
            while not stop.wait(0.2):
                opened.store.fence.raise_refusal()
                if running.acting != acting:
                    acting = running.acting
                    note("It is the active coordinator." if acting else "Another coordinator is active.")
            opened.give_up_soon()
        say("Stopped.")
