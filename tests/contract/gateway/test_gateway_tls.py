"""TLS of gateways: librdkafka, certificates of clients, new certificates and damaged files."""

import os
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import confluent_kafka as rdkafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka.protocol.metadata import MetadataRequest
from typer.testing import CliRunner

from spark_log.cli.main import app
from spark_log.cluster.security.scram import Mechanism
from tests.support.gateway_wire import WireConnection
from tests.support.security import PASSWORD, Authority, put, small_cluster
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make
from tests.support.waiting import wait_until

SCRAM_256, SCRAM_512 = (each.sasl_name for each in Mechanism)


def sasl(mechanism, user="anna", password=PASSWORD):
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}


def settings(gateway, protocol, **others):
    named = {name.replace("_", "."): value for name, value in others.items()}
    return {"bootstrap.servers": gateway.address, "security.protocol": protocol, **named}


def send_and_read(client, topic):
    """One record through librdkafka: its value as a consumer reads it."""
    producer = rdkafka.Producer(client)
    producer.produce(topic, b"value", b"key")
    assert producer.flush(30) == 0
    consumer = rdkafka.Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(30)
    consumer.close()
    return message.value()


def refused(client):
    """Name of librdkafka's error when it cannot connect."""
    errors = []
    admin = AdminClient({**client, "error_cb": lambda error: errors.append(error.name()), "reconnect.backoff.ms": 2000})

    def told():
        admin.poll(0.1)
        return errors

    return wait_until(told)[0]


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.mark.on_sqlite
def test_clients_produce_and_consume_over_tls_with_each_mechanism(cluster, cluster_address, tmp_path, authority):
    make(cluster, "t", 1)
    put(cluster, "anna")
    options = [*authority.issue("server", CN="gateway").options, "--sasl", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"]
    with GatewayProcess(tmp_path, cluster_address, *options) as gateway:
        client = settings(gateway, "SASL_SSL", ssl_ca_location=authority.certificate)
        for mechanism in ("PLAIN", SCRAM_256):
            assert AdminClient({**client, **sasl(mechanism)}).list_topics(timeout=30).topics
            assert refused({**client, **sasl(mechanism, password="wrong")}) == "_AUTHENTICATION"
        assert refused({**client, **sasl(SCRAM_512, user="nobody")}) == "_AUTHENTICATION"
        assert send_and_read({**client, **sasl(SCRAM_512)}, "t") == b"value"
        with kafka.KafkaAdminClient(
            bootstrap_servers=gateway.address, security_protocol="SASL_SSL", ssl_cafile=authority.certificate,
            sasl_mechanism=SCRAM_512, sasl_plain_username="anna", sasl_plain_password=PASSWORD,
        ) as admin:  # fmt: skip
            assert "t" in admin.list_topics()
        assert refused(settings(gateway, "PLAINTEXT")) in ("_TRANSPORT", "_ALL_BROKERS_DOWN")
        assert PASSWORD not in gateway.output
        assert "Traceback" not in gateway.output, gateway.output[-4000:]


def test_certificates_of_clients(tmp_path, authority):
    server, anna = authority.issue("server", CN="gateway"), authority.issue("anna", O="Shop", OU="Sales", CN="anna")
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").issue("stranger", CN="anna")
    options = [*server.options, "--tls-client-ca", authority.certificate]
    with small_cluster(tmp_path), GatewayProcess(tmp_path, str(tmp_path / "cluster"), *options) as gateway:
        client = settings(gateway, "SSL", ssl_ca_location=authority.certificate)
        own = {"ssl.certificate.location": anna.certificate, "ssl.key.location": anna.key}
        assert send_and_read({**client, **own}, "t") == b"value"
        contexts = [authority.client_context(), authority.client_context(stranger)]
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            contexts.append(authority.client_context(anna))
            contexts[-1].set_ciphers("ALL:@SECLEVEL=0")
            contexts[-1].minimum_version = contexts[-1].maximum_version = version
        assert [alert(gateway, context) for context in contexts] == [
            "TLSV13_ALERT_CERTIFICATE_REQUIRED",
            "TLSV1_ALERT_DECRYPT_ERROR",  # its authority has the same name and another key
            "TLSV1_ALERT_PROTOCOL_VERSION",
            "TLSV1_ALERT_PROTOCOL_VERSION",
        ]
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            new = authority.client_context(anna)
            new.minimum_version = new.maximum_version = version
            with tls(gateway, new) as connection:
                assert connection.version() == version.name.replace("_", ".", 1).replace("v1_", "v1.")
        assert "Traceback" not in gateway.output, gateway.output[-4000:]


def alert(gateway, context):
    """Why the gateway refuses the handshake. In TLS 1.3, a client learns it after its own part."""
    with pytest.raises(ssl.SSLError) as error, tls(gateway, context) as connection:
        connection.recv(1)
    return error.value.reason


def tls(gateway, context):
    connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
    return context.wrap_socket(connection, server_hostname="127.0.0.1")


def test_a_new_certificate_is_used_by_new_connections_and_ends_none(tmp_path, authority):
    server = authority.issue("server", CN="first")
    with small_cluster(tmp_path), GatewayProcess(tmp_path, str(tmp_path / "cluster"), *server.options) as gateway:
        context = authority.client_context()

        def name():
            with tls(gateway, context) as connection:
                return connection.getpeercert()["subject"][-1][0][1]

        with WireConnection(gateway.port, context=context) as older:
            assert name() == "first"
            renewed = authority.issue("renewed", CN="second")
            os.replace(renewed.key, server.key)  # for a moment they do not fit together, and the first stays
            os.replace(renewed.certificate, server.certificate)
            wait_until(lambda: name() == "second")
            assert [each.name for each in older.exchange(MetadataRequest(topics=None), 1).topics] == ["t"]


@pytest.mark.slow
def test_damaged_files_are_not_used_until_they_are_whole(tmp_path, authority):
    """The files as they are while something writes them: cut off, of another key, gone."""
    server, other = authority.issue("server", CN="first"), authority.issue("other", CN="other")
    strangers = Authority(tmp_path, "strangers")
    authorities = tmp_path / "clients.pem"
    authorities.write_bytes(Path(authority.certificate).read_bytes())
    options = [*server.options, "--tls-client-ca", str(authorities)]
    anna, stranger = authority.issue("anna", CN="anna"), strangers.issue("stranger", CN="stranger")
    with small_cluster(tmp_path), GatewayProcess(tmp_path, str(tmp_path / "cluster"), *options) as gateway:

        def name(issued=anna):
            context = ssl.create_default_context(cafile=authority.certificate)
            context.load_cert_chain(*issued)
            with WireConnection(gateway.port, context=context) as connection:
                connection.exchange(MetadataRequest(topics=None), 1)
                return connection._socket.getpeercert()["subject"][-1][0][1]

        key, certificate = Path(server.key).read_bytes(), Path(server.certificate).read_bytes()
        trusted = authorities.read_bytes()
        damages = [
            (server.certificate, certificate[: len(certificate) // 2]),
            (server.key, key[:-40]),
            (server.key, Path(other.key).read_bytes()),
            (server.certificate, None),
            (str(authorities), trusted[:-30]),
        ]
        for path, damaged in damages:
            whole, refusals = Path(path).read_bytes(), gateway.output.count("are not used")
            Path(path).unlink() if damaged is None else Path(path).write_bytes(damaged)
            wait_until(lambda least=refusals: gateway.output.count("are not used") > least, f"{path}: not looked at")
            assert name() == "first"
            Path(path).write_bytes(whole)
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            name(stranger)
        authorities.write_bytes(trusted + Path(strangers.certificate).read_bytes())
        Path(server.certificate).write_bytes(Path(other.certificate).read_bytes())
        Path(server.key).write_bytes(Path(other.key).read_bytes())

        def exchanged():
            with suppress(ssl.SSLError, ConnectionError, AssertionError):
                return name(stranger) == "other"

        wait_until(exchanged, "the files are not used")
        assert "Traceback" not in gateway.output, gateway.output[-4000:]


def test_processes_that_share_a_port_share_its_certificates(tmp_path, authority):
    options = [*authority.issue("server", CN="gateway").options, "--workers", "2"]
    with small_cluster(tmp_path), GatewayProcess(tmp_path, str(tmp_path / "cluster"), *options) as gateway:
        client = settings(gateway, "SSL", ssl_ca_location=authority.certificate)
        assert send_and_read(client, "t") == b"value"


def test_errors_name_the_file(tmp_path, authority):
    server = authority.issue("server", CN="gateway")
    locked = authority.issue("locked", passphrase=b"x", CN="gateway")
    with small_cluster(tmp_path):
        for files, message in (
            ([*locked], "passphrase"),
            ([server.certificate, authority.issue("other", CN="x").key], "--tls-key"),
            ([str(tmp_path / "missing"), server.key], "missing"),
        ):
            options = ["--cluster", str(tmp_path / "cluster"), "--tls-cert", files[0], "--tls-key", files[1]]
            done = CliRunner().invoke(app, ["gateway", *options])
            assert (done.exit_code, message in done.output) == (1, True), done.output
