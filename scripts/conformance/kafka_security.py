"""Kafka's own tools, and with them Java's client, on a gateway: over TLS, with each SASL mechanism and certificates."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.conformance.kafka_tools import CONSUMER, PRODUCER, TOPICS, Step, run
from scripts.conformance.results import Result
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.security.scram import Mechanism
from spark_log.cluster.security.users import alter_credentials, upsertion_of_password
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.security import Authority, Issued
from tests.support.server_processes import GatewayProcess

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
_PASSWORD = "it's a password"
_RECORDS = "1\n2\n3\n"
_TIMEOUTS = "request.timeout.ms=10000\ndefault.api.timeout.ms=10000\nmax.block.ms=10000\n"


def kafka_security(cache: Path) -> list[Result]:
    """Each way to authenticate: "passed" if records come back, or if the client is refused where it must be."""
    results = []
    with tempfile.TemporaryDirectory(prefix="spark-log-conformance-") as name:
        folder = Path(name)
        authority = Authority(folder)
        trust = f"ssl.truststore.type=PEM\nssl.truststore.location={authority.certificate}\n{_TIMEOUTS}"
        with _gateway(folder / "sasl", authority, "--sasl", ",".join(_MECHANISMS)) as address:
            for mechanism in _MECHANISMS:
                properties = trust + _sasl(mechanism, _PASSWORD)
                results.append(_served(f"SASL_SSL, {mechanism}", address, properties, folder, cache))
                properties = trust + _sasl(mechanism, "wrong")
                error = "Authentication failed during authentication due to invalid credentials"
                results.append(_refused(f"wrong password, {mechanism}", error, address, properties, folder, cache))
            properties = _TIMEOUTS + _sasl(_MECHANISMS[0], _PASSWORD)
            results.append(
                _refused("authority that is not trusted", "SSL handshake failed", address, properties, folder, cache)
            )
        own = authority.issue("anna", O="Shop", CN="anna")
        with _gateway(folder / "ssl", authority, "--tls-client-ca", authority.certificate) as address:
            key_store = folder / "anna-key-store.pem"
            key_store.write_text(Path(own.key).read_text() + Path(own.certificate).read_text())
            key = f"ssl.keystore.type=PEM\nssl.keystore.location={key_store}\n"
            properties = f"security.protocol=SSL\n{trust}"
            results.append(_served("SSL with a certificate", address, properties + key, folder, cache))
            error = "Failed to process post-handshake messages"
            results.append(_refused("SSL without a certificate", error, address, properties, folder, cache))
    return results


@contextmanager
def _gateway(folder: Path, authority: Authority, *options: str) -> Iterator[str]:
    folder.mkdir()
    address = str(folder / "cluster")
    with Cluster.init(address) as cluster:
        create_topic(cluster, "t")
        alter_credentials(cluster.store, [upsertion_of_password("anna", each, _PASSWORD) for each in Mechanism])
    server: Issued = authority.issue("server", CN="gateway")
    with GatewayProcess(folder, address, *server.options, *options) as running:
        yield running.address


def _sasl(mechanism: str, password: str) -> str:
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    login = f'org.apache.kafka.common.security.{kind}LoginModule required username="anna" password="{password}";'
    return f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\nsasl.jaas.config={login}\n"


def _served(what: str, address: str, properties: str, folder: Path, cache: Path) -> Result:
    file = folder / "client.properties"
    file.write_text(properties)
    group = what.replace(" ", "-").replace(",", "")
    steps = (
        Step("", TOPICS, f"--create --topic {group} --command-config {file}"),
        Step("", PRODUCER, f"--topic {group} --command-config {file}", _RECORDS),
        Step("", CONSUMER, f"--topic {group} --group {group} --from-beginning --max-messages 3 --timeout-ms 20000"
                           f" --command-config {file}"),
    )  # fmt: skip
    outputs = [run(step, address, cache) for step in steps]
    passed = _RECORDS in outputs[-1]
    return _result(what, passed, "\n".join(outputs))


def _refused(what: str, error: str, address: str, properties: str, folder: Path, cache: Path) -> Result:
    file = folder / "client.properties"
    file.write_text(properties)
    output = run(Step("", TOPICS, f"--list --command-config {file}"), address, cache)
    return _result(what, error in output and "exit code 1" in output, output)


def _result(what: str, passed: bool, output: str) -> Result:
    if not passed:
        print(f"--- {what}\n{output}\n", file=sys.stderr)
    return Result("Kafka's tools", what, "passed" if passed else "failed")
