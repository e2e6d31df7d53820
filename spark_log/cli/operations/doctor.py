"""The command `spark-log doctor`, which finds problems of a cluster and says what to do."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from spark_log.cli.output import count_of, print_json, say
from spark_log.cli.shared_options import Cluster_, Json, topics_option

if TYPE_CHECKING:
    from spark_log.cluster.cluster import Cluster
    from spark_log.facts.doctor.bounded_checks import Check
    from spark_log.facts.doctor.findings import Finding

_DAY_MS = 24 * 60 * 60 * 1000


def doctor(
    cluster: Cluster_,
    topic: Annotated[
        list[str] | None,
        topics_option("Limit the checks of topics, their tables and groups to this topic; repeatable."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, help="Limit for opening the store, and again for all other checks."),
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Check the cluster and this machine, and say what to do about each finding.

    The command checks versions, the metadata store and its durability, clocks, log dirs (readable, writable, speed,
    space), permissions, settings, brokers, partitions, tables, transactions, groups, tasks and clean-up. It changes
    nothing, but writes small trial files to each log dir and removes them. It does not hang if a log dir or store
    hangs. Run it on the machine, and as the user, of the program that has a problem.

    Exit code 0 means that there are no problems, or only notes; 1 means that a warning or an error needs action.

    **Examples**

    - `spark-log doctor`
    - `spark-log doctor --topic events --json`
    """
    from spark_log.facts.doctor.examination import examine

    findings = examine(cluster, topic or (), timeout, _unnamed_files)
    counts = Counter(finding.severity for finding in findings)
    if as_json:
        print_json({"findings": [vars(finding) for finding in findings], "counts": counts})
    else:
        _print(findings)
    if any(severity.needs_action for severity in counts):
        raise typer.Exit(1)


def _print(findings: "list[Finding]") -> None:
    from spark_log.facts.doctor.findings import Severity

    by_severity = sorted(findings, key=lambda finding: -list(Severity).index(finding.severity))
    for finding in by_severity:
        say(f"{finding.severity:<8} {finding.check}: {finding.seen}")
        if finding.remedy:
            say(f"         -> {finding.remedy}")
    counts = Counter(finding.severity for finding in findings)
    say(
        f"{count_of(counts[Severity.ERROR], 'error')}, {count_of(counts[Severity.WARNING], 'warning')},"
        f" {count_of(counts[Severity.NOTE], 'note')}, {counts[Severity.OK]} ok"
    )


def _unnamed_files(cluster: "Cluster") -> "list[Check]":
    from spark_log.facts.doctor.bounded_checks import Check
    from spark_log.facts.doctor.file_rules import check_unnamed
    from spark_log.facts.doctor.findings import Finding, Severity
    from spark_log.maintenance.removal.unnamed_files import find_unnamed_files

    def run() -> list[Finding]:
        until_ms = cluster.store.now().wall_ms - _DAY_MS
        unnamed = find_unnamed_files(cluster)
        old = [file for file in unnamed.files if file.modified_ms < until_ms]
        return [check_unnamed(len(old), sum(file.bytes for file in old), unnamed.stores_away)]

    return [
        Check(
            "unnamed files",
            run,
            Severity.NOTE,
            "list them with `spark-log store unnamed-files`; it reads every file name",
        )
    ]
