"""Certificates of an authority as PEM files; users, passwords and ACLs of gateways."""

import datetime
import ipaddress
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.security.acl_rules import Acl, Operation, PatternType, Permission, ResourceType
from spark_log.cluster.security.scram import Mechanism
from spark_log.cluster.security.users import Upsertion, alter_credentials, upsertion_of_password
from tests.support.gateway_wire import WireConnection
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make

_ATTRIBUTES = {"CN": NameOID.COMMON_NAME, "OU": NameOID.ORGANIZATIONAL_UNIT_NAME, "O": NameOID.ORGANIZATION_NAME}


class Issued(NamedTuple):
    """Paths of a certificate and of its key."""

    certificate: str
    key: str

    @property
    def options(self) -> list[str]:
        """Of `spark-log gateway`."""
        return ["--tls-cert", self.certificate, "--tls-key", self.key]


class Authority:
    """`certificate`: the path of its own."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.BasicConstraints(ca=True, path_length=None)
        own = self._builder(self._name, self._key).add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.certificate = str(folder / f"{name}.pem")
        Path(self.certificate).write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(self, file: str, passphrase: bytes | None = None, **subject: str) -> Issued:
        """For 127.0.0.1 and localhost. `subject`: attributes in order, such as O="Shop", CN="anna"."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(_ATTRIBUTES[short], value) for short, value in subject.items()])
        hosts = x509.SubjectAlternativeName([
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost"),
        ])  # fmt: skip
        signed = self._builder(name, key).add_extension(hosts, critical=False).sign(self._key, hashes.SHA256())
        issued = Issued(str(self._folder / f"{file}.pem"), str(self._folder / f"{file}.key"))
        Path(issued.certificate).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if passphrase is not None:
            encryption = serialization.BestAvailableEncryption(passphrase)
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        Path(issued.key).write_bytes(private)
        return issued

    def client_context(self, issued: Issued | None = None) -> ssl.SSLContext:
        """Of a client that trusts this authority, with a certificate if one is given."""
        context = ssl.create_default_context(cafile=self.certificate)
        if issued is not None:
            context.load_cert_chain(*issued)
        return context

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
        )


PASSWORD = "correct horse"
ACL_OPTIONS = ["--sasl", "PLAIN", "--acls", "--super-users", "User:admin"]


def acl(
    user: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(resource_type, name, pattern, f"User:{user}", "*", operation, permission)


def on_topic(user: str, operation: Operation, name: str, **others: Any) -> Acl:
    return acl(user, operation, ResourceType.TOPIC, name, **others)


def put_users(cluster: Cluster, users: Sequence[str]) -> None:
    one = upsertion_of_password("x", Mechanism.SCRAM_SHA_256, PASSWORD)
    alter_credentials(cluster.store, [Upsertion(user, one.mechanism, one.credential) for user in users])


def put(cluster: Cluster, user: str, password: str = PASSWORD) -> None:
    alter_credentials(cluster.store, [upsertion_of_password(user, each, password) for each in Mechanism])


@contextmanager
def small_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """On SQLite, for what the store takes no part in."""
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        make(cluster, "t", 1)
        put(cluster, "anna")
        yield cluster


def connect(gateway: GatewayProcess, user: str) -> WireConnection:
    connection = WireConnection(gateway.port)
    assert connection.exchange(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
    assert connection.exchange(SaslAuthenticateRequest(f"\0{user}\0{PASSWORD}".encode()), 1).error_code == 0
    return connection


def client(gateway: GatewayProcess, user: str) -> dict[str, str]:
    return {"bootstrap.servers": gateway.address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": user, "sasl.password": PASSWORD}  # fmt: skip
