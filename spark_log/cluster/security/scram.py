"""Implements the server's side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677). Pure.

Channel binding is not offered. Names and passwords are encoded as UTF-8 without SASLprep, as in Kafka.
"""

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from enum import IntEnum

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
"""Kafka's limits. A server that checks a password itself (`is_password`) computes all iterations."""
SALT_BYTES_MAX = 256
_NONCE = re.compile(rb"[\x21-\x2b\x2d-\x7e]{1,512}")
_NAME = re.compile(rb"(?:[^=,\0]|=2C|=3D)+")


class Mechanism(IntEnum):
    """Kafka's numbers of the mechanisms (KIP-554)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}[self]


@dataclass(frozen=True)
class Credential:
    """A server's record of a password. It does not contain the password, but verifies that a client knows it."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


class ScramError(ValueError):
    """The client's message is not valid by RFC 5802, or requests a feature that is not offered."""


@dataclass(frozen=True)
class ClientFirst:
    """The client's first message. `header` is the GS2 header, and `bare` the message without it."""

    header: bytes
    user: str
    nonce: bytes
    bare: bytes


def salted_password(password: str, mechanism: Mechanism, salt: bytes, iterations: int) -> bytes:
    """Return the salted password (PBKDF2). The computing time is proportional to `iterations`."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(salted: bytes, mechanism: Mechanism, salt: bytes, iterations: int) -> Credential:
    """Return the credential of a salted password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    return Credential(
        salt,
        iterations,
        hashlib.new(mechanism.hash_name, client_key).digest(),
        hmac.digest(salted, b"Server Key", mechanism.hash_name),
    )


def is_password(password: str, mechanism: Mechanism, credential: Credential) -> bool:
    """Whether the credential is of this password. The comparison takes the same time for a wrong one."""
    salted = salted_password(password, mechanism, credential.salt, credential.iterations)
    stored_key = credential_of(salted, mechanism, credential.salt, credential.iterations).stored_key
    return hmac.compare_digest(stored_key, credential.stored_key)


def made_up_credential(secret: bytes, user: str, mechanism: Mechanism) -> Credential:
    """Return a credential for an unknown user: its salt is always the same, and its keys match no password."""

    def part(name: str) -> bytes:
        return hmac.digest(secret, f"{name}\0{int(mechanism)}\0{user}".encode(), mechanism.hash_name)

    return Credential(part("salt")[:SALT_BYTES], ITERATIONS_MIN, part("stored key"), part("server key"))


SALT_BYTES = 26
"""The size of the salts that spark-log makes, as in Kafka's tools."""


def parse_client_first(message: bytes) -> ClientFirst:
    """Parse the client's first message. Raises ScramError with the reason if it is not valid."""
    parts = message.split(b",", 2)
    if len(parts) < 3 or parts[0] not in (b"n", b"y"):
        raise ScramError("channel binding is not offered, or the message has no GS2 header")
    header = parts[0] + b"," + parts[1] + b","
    bare = parts[2]
    fields = bare.split(b",")
    if len(fields) < 2 or not fields[0].startswith(b"n=") or not fields[1].startswith(b"r="):
        raise ScramError("expected a user name and a nonce")
    user, nonce = fields[0][2:], fields[1][2:]
    if not _NAME.fullmatch(user) or not _NONCE.fullmatch(nonce):
        raise ScramError("the user name or the nonce is not valid")
    if parts[1] not in (b"", b"a=" + user):
        raise ScramError("a user cannot act for another one")
    try:
        name = user.decode().replace("=2C", ",").replace("=3D", "=")
    except UnicodeDecodeError:
        raise ScramError("the user name is not UTF-8") from None
    return ClientFirst(header, name, nonce, bare)


def server_first(first: ClientFirst, server_nonce: bytes, credential: Credential) -> bytes:
    """Return the challenge of the server."""
    return b"r=%b%b,s=%b,i=%d" % (
        first.nonce,
        server_nonce,
        base64.b64encode(credential.salt),
        credential.iterations,
    )


def server_final(
    first: ClientFirst, challenge: bytes, message: bytes, mechanism: Mechanism, credential: Credential
) -> bytes | None:
    """Return the server's proof, or None if `message`, the client's last one, does not prove the password.

    Raises ScramError if the message is not valid.
    """
    without_proof, separator, proof = message.rpartition(b",p=")
    fields = without_proof.split(b",")
    nonce = challenge.partition(b",")[0]
    if not separator or len(fields) < 2 or not fields[0].startswith(b"c="):
        raise ScramError("expected a channel binding, a nonce and a proof")
    if _base64(fields[0][2:]) != first.header or not hmac.compare_digest(fields[1], nonce):
        raise ScramError("the channel binding or the nonce differs")
    hash_name = mechanism.hash_name
    auth_message = b",".join((first.bare, challenge, without_proof))
    signature = hmac.digest(credential.stored_key, auth_message, hash_name)
    given = _base64(proof)
    if len(given) != len(signature):
        raise ScramError("the proof has the wrong length")
    client_key = bytes(a ^ b for a, b in zip(given, signature, strict=True))
    if not hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), credential.stored_key):
        return None
    return b"v=" + base64.b64encode(hmac.digest(credential.server_key, auth_message, hash_name))


def _base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("expected base64") from None
