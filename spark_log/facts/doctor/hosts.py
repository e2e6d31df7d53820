"""Asks each host of a PostgreSQL address on its own: clients use only the primary, and do not notice that another host
of their list would not serve them after a failover.
"""

from functools import partial
from typing import Any

import psycopg
import sqlalchemy as sa

from spark_log import clock
from spark_log.facts.doctor.host_rules import HostFacts
from spark_log.metadata.address import Address, check_transport
from spark_log.metadata.connections.driver_errors import describe_connection_failure
from spark_log.metadata.connections.postgresql_connection import password_parameter
from spark_log.process import begin

_ASK = (
    "SELECT system_identifier::text, pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN 0"
    " ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END FROM pg_control_system()"
)


def measure_hosts(address: Address, limit_s: float) -> list[HostFacts]:
    """Connect to all hosts at once, for at most `limit_s`. Raises InvalidConfigurationError like `check_transport`."""
    check_transport(address)
    until_s = clock.monotonic_s() + limit_s
    answers = {
        place: begin(partial(_ask, address, *place), "spark-log-doctor-host") for place in dict.fromkeys(address.hosts)
    }
    facts = []
    for (host, port), answer in answers.items():
        name = f"{host}:{port}" if port else host
        try:
            system, standby, timeline = answer.result(max(0.0, until_s - clock.monotonic_s()))
            facts.append(HostFacts(name, system=system, standby=standby, timeline=timeline))
        except TimeoutError:
            facts.append(HostFacts(name, failure=f"no answer in {limit_s:g} s"))
        except psycopg.Error as error:
            facts.append(HostFacts(name, failure=describe_connection_failure(str(error)), refused=_is_refusal(error)))
    return facts


def _is_refusal(error: psycopg.Error) -> bool:
    """Whether the host answers, and refuses the query to the role."""
    return isinstance(error, psycopg.errors.InsufficientPrivilege)


def _ask(address: Address, host: str, port: str) -> tuple[str, bool, int]:
    url = sa.make_url(address.url)
    _, given = url.get_dialect()().create_connect_args(url)
    parameters: dict[str, Any] = {
        **given, "host": host, "port": port or None, "connect_timeout": address.connect_timeout_s
    }  # fmt: skip
    parameters.pop("target_session_attrs", None)
    parameters |= password_parameter(parameters)
    with psycopg.connect(**parameters, application_name="spark-log doctor") as session:
        row = session.execute(_ASK).fetchone()
    assert row is not None
    return row[0], row[1], int(row[2])
