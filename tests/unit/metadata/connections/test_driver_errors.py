"""Messages of failed connections, and the attempts of many threads while no host accepts one."""

import psycopg
import pytest

from spark_log.metadata.connections import postgresql_connection
from spark_log.metadata.connections.answer_watch import AnswerLimit
from spark_log.metadata.connections.driver_errors import describe_connection_failure
from tests.support.server_processes import free_port

REFUSED = "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?"


def failure_of(port, reason):
    place = f"- host: 'db', port: '{port}', hostaddr: '::1': "
    return f'{place}connection failed: connection to server at "::1", port {port} failed: {reason}'


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ([REFUSED, REFUSED], "no host accepts the connection: db:1, db:2: Connection refused"),
        (
            [REFUSED, "session is read-only", "session is read-only"],
            "no host is the primary: db:1: Connection refused; db:2, db:3: a standby (session is read-only)",
        ),
        (["FATAL:  no", "FATAL:  yes"], "no host accepts the connection: db:1: FATAL: no; db:2: FATAL: yes"),
    ],
)
def test_each_host_and_each_reason_is_named_once(reasons, expected):
    lines = [failure_of(number, reason) for number, reason in enumerate(reasons, 1)]
    text = "\n".join(["connection failed: x", "Multiple connection attempts failed. All failures were:", *lines])
    assert describe_connection_failure(text) == expected


def test_psycopg_still_writes_the_text_that_is_shortened():
    first, second = free_port(), free_port()
    with pytest.raises(psycopg.OperationalError) as raised:
        psycopg.connect(f"host=127.0.0.1,127.0.0.1 port={first},{second}")
    text = describe_connection_failure(str(raised.value))
    assert text == f"no host accepts the connection: 127.0.0.1:{first}, 127.0.0.1:{second}: Connection refused"


def test_while_no_host_accepts_connections_the_threads_of_a_process_share_their_attempts(monkeypatch):
    attempts, now_s = [], [100.0]

    def connect(**_):
        attempts.append(now_s[0])
        raise psycopg.OperationalError("down")

    monkeypatch.setattr(postgresql_connection.WatchedConnection, "connect", connect)
    monkeypatch.setattr(postgresql_connection.clock, "monotonic_s", lambda: now_s[0])
    hosts = postgresql_connection.Hosts(AnswerLimit(20.0))
    for _ in range(10_000):  # ten threads, a thousand times in ten seconds
        with pytest.raises(psycopg.OperationalError, match="down"):
            hosts.connect("host=a,b port=1,2")
        now_s[0] += 0.001
    assert attempts[1] - attempts[0] < 0.01, "a short interruption is not made longer"
    assert 40 <= len(attempts) <= 55
