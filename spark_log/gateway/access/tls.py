"""Provides TLS for a gateway, and renews its certificate and the authorities of clients' certificates at runtime."""

import asyncio
import asyncio.sslproto
import logging
import os
import ssl
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_log.errors import InvalidConfigurationError
from spark_log.gateway.client_reader import ClientReader

logger = logging.getLogger(__name__)

_CHECKED_EVERY_S = 1.0

_READ_BYTES = 32 * 1024
"""The size of each connection's buffer, into which asyncio reads encrypted bytes. No memory budget includes it."""
_UNREAD_BYTES = 32 * 1024, 64 * 1024
"""Limits of encrypted bytes that wait for decryption while the connection is not read. asyncio stops reading the socket
above the second number, and continues below the first. A TLS record, which may be incomplete, has up to 16 KiB.
"""
_UNSENT_BYTES = 16 * 1024, 64 * 1024
"""Limits of unsent bytes, as without TLS: writing stops above the second number, and continues below the first."""

asyncio.sslproto.SSLProtocol.max_size = _READ_BYTES  # asyncio has 256 KiB, and no parameter for it


@dataclass(frozen=True)
class TlsFiles:
    """The PEM files of a gateway.

    `certificate` includes its chain (ssl.keystore.certificate.chain). `key` has no passphrase (ssl.keystore.key).
    `client_authorities` has certificates of authorities. With it, a client needs a certificate that one of them has
    signed (ssl.truststore.certificates with ssl.client.auth=required).
    """

    certificate: str
    key: str
    client_authorities: str | None = None

    @property
    def paths(self) -> Sequence[str]:
        return [path for path in (self.certificate, self.key, self.client_authorities) if path is not None]

    def context(self) -> ssl.SSLContext:
        """Return a context for TLS 1.2 or later with Python's default ciphers. Raises InvalidConfigurationError, which
        names the file.
        """
        context = _ContextWithAlerts(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise InvalidConfigurationError(f"--tls-cert {self.certificate}, --tls-key {self.key}: {error}") from error
        if self.client_authorities is not None:
            try:
                context.load_verify_locations(self.client_authorities)
            except (OSError, ValueError) as error:
                raise InvalidConfigurationError(f"--tls-client-ca {self.client_authorities}: {error}") from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _no_passphrase() -> str:
    raise InvalidConfigurationError("--tls-key: the key has a passphrase; give a file with a key that has none")


class Certificates:
    """Holds the context for new connections. `keep` replaces it when the files change; open connections remain."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._stamps()
        self.context = files.context()

    async def keep(self) -> None:
        """Check the files every second until cancelled. The context stays if new files are invalid or do not match."""
        while True:
            await asyncio.sleep(_CHECKED_EVERY_S)
            stamps = self._stamps()
            if stamps == self._seen:
                continue
            try:
                self.context = self._files.context()
                logger.info("certificates of the gateway were read again")
            except InvalidConfigurationError as error:
                logger.warning("certificates of the gateway have changed and are not used: %s", error)
            self._seen = stamps

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(Path(path)) for path in self._files.paths]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


_encrypted: ContextVar[asyncio.WriteTransport] = ContextVar("encrypted")
"""The transport of the connection whose handshake is starting."""


class _HandshakeWithAlerts(ssl.SSLObject):
    """Sends the alert that says why a handshake failed. asyncio would close the connection without it, and clients such
    as Java's would then connect again until their timeout.
    """

    outgoing: ssl.MemoryBIO
    encrypted: asyncio.WriteTransport

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            self.encrypted.write(self.outgoing.read())
            raise


class _ContextWithAlerts(ssl.SSLContext):
    sslobject_class = _HandshakeWithAlerts

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **named: Any) -> ssl.SSLObject:
        handshake = super().wrap_bio(incoming, outgoing, *args, **named)
        assert isinstance(handshake, _HandshakeWithAlerts)
        handshake.outgoing, handshake.encrypted = outgoing, _encrypted.get()
        return handshake


class _OverTls(asyncio.StreamReaderProtocol):
    """A protocol over TLS. It keeps `below`, the writer of encrypted bytes, which closes the transport when freed."""

    below: asyncio.StreamWriter


async def start_tls(
    writer: asyncio.StreamWriter, context: ssl.SSLContext, timeout_s: float
) -> tuple[ClientReader, asyncio.StreamWriter]:
    """Perform the TLS handshake, and return the streams of the connection. Call it before anything is awaited, so that
    no byte of the client has been read. Raises OSError.
    """
    loop = asyncio.get_running_loop()
    inner = ClientReader(loop)
    protocol = _OverTls(inner, loop=loop)
    protocol.below = writer
    _encrypted.set(writer.transport)  # asyncio begins the handshake in a copy of this task's context
    transport = await loop.start_tls(
        writer.transport, protocol, context, server_side=True,
        ssl_handshake_timeout=timeout_s, ssl_shutdown_timeout=timeout_s,
    )  # fmt: skip
    if transport is None:
        raise ConnectionResetError("the connection was closed during the handshake")
    low, high = _UNREAD_BYTES
    transport.set_read_buffer_limits(high, low)  # type: ignore[attr-defined]
    low, high = _UNSENT_BYTES
    transport.set_write_buffer_limits(high, low)
    protocol.connection_made(transport)
    return inner, asyncio.StreamWriter(transport, protocol, inner, loop)
