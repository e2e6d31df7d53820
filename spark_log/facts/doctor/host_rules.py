"""Checks whether each host of the address would serve clients after a failover. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_log.errors import redact
from spark_log.facts.doctor.findings import Finding, error, note, or_ok, warning

HOSTS = "hosts"


@dataclass(frozen=True)
class HostFacts:
    """A host of the store's address: its error, or its system identifier, and its timeline if it is a primary.
    `refused` means that the host answers, but the role may not ask for the identifier and the timeline.
    """

    place: str
    failure: str | None = None
    system: str = ""
    standby: bool = False
    timeline: int = 0
    refused: bool = False


def check_hosts(hosts: Sequence[HostFacts]) -> list[Finding]:
    """Check the hosts of an address that names several."""
    primaries = ", ".join(each.place for each in hosts if _is_primary(each))
    return or_ok(_problems(hosts), HOSTS, f"all {len(hosts)} hosts answer, {primaries} is the primary")


def _is_primary(host: HostFacts) -> bool:
    return host.failure is None and not host.standby


def _problems(hosts: Sequence[HostFacts]) -> Iterator[Finding]:
    for host in hosts:
        if host.refused:
            yield note(
                HOSTS,
                f"{host.place} answers, but this role may not ask which database it has: {redact(host.failure or '')}",
                "as a superuser of the server: GRANT EXECUTE ON FUNCTION pg_control_system(), pg_current_wal_lsn(),"
                " pg_walfile_name(pg_lsn) TO the role of the address",
            )
        elif host.failure is not None:
            yield warning(
                HOSTS,
                f"{host.place} does not answer: {redact(host.failure)}; after a failover to it no client would reach"
                " the store",
                "start PostgreSQL there (with Patroni: `systemctl start patroni`), or correct the address of all"
                " clients",
            )
    systems = defaultdict(list)
    for host in hosts:
        if host.failure is None:
            systems[host.system].append(host.place)
    if len(systems) > 1:
        systems_text = "; ".join(f"{', '.join(places)}: system {system}" for system, places in systems.items())
        yield error(
            HOSTS,
            f"the hosts are not copies of one database: {systems_text}",
            "remove the wrong hosts from the address of all clients",
        )
        return
    primaries = [host for host in hosts if _is_primary(host)]
    if len(primaries) > 1:
        primaries_text = ", ".join(f"{host.place} (timeline {host.timeline})" for host in primaries)
        yield error(
            HOSTS,
            f"{primaries_text} both take writes: one was promoted while the other went on, and what clients append at"
            " one of them will be lost",
            "stop one at once: the one that `patronictl list` does not show as the leader; else, the one that was"
            " promoted by mistake",
        )
    elif systems and not primaries:
        yield error(
            HOSTS,
            "no host that answers is the primary: nothing can be appended",
            "look at `patronictl list`: without a majority of etcd there is no primary; without Patroni, promote the"
            " synchronous standby",
        )
