"""Admits a connection before its requests are served: first TLS, then SASL, both within one time limit."""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from spark_log.cluster.security.distinguished_names import distinguished_name
from spark_log.gateway.access.login import KEYS, Login
from spark_log.gateway.access.sasl import Verifier
from spark_log.gateway.access.tls import Certificates, start_tls
from spark_log.gateway.api import ANONYMOUS, Api, read_header
from spark_log.gateway.client_reader import ClientReader, end_connection
from spark_log.gateway.limits.networks import network_of
from spark_log.gateway.protocol.wire import MalformedRequestError, encode_response, read_body
from spark_log.gateway.services import Services
from spark_log.gateway.topics.metadata_requests import UNSUPPORTED_VERSION, software_of, versions_response

logger = logging.getLogger(__name__)

_PLACES_OF_A_NETWORK = 4
"""One network may have at most a quarter of the unauthenticated connections."""
_REQUESTS_MAX = 20
"""The limit of requests before authentication, as each costs time on the event loop. Clients send about six."""
_HEADER_BYTES_MIN = 10
_API_VERSIONS = 18


@dataclass(frozen=True)
class Admitted:
    """A connection whose requests may be served. `login` authenticates the client again, and is None without SASL."""

    reader: ClientReader
    writer: asyncio.StreamWriter
    principal: str = ANONYMOUS
    software: str = ""
    login: Login | None = None


class Entry:
    """Admits the connections of one gateway, at most `unauthenticated_connections_max` at a time."""

    def __init__(self, services: Services, certificates: Certificates | None, apis: Mapping[int, Api]) -> None:
        self._settings, self._versions = services.settings, services.versions
        self._certificates, self._apis = certificates, apis
        self._verifier = Verifier(services.cluster.store, services.call)
        self._waiting: dict[str, list[asyncio.Timeout]] = {}
        """The time limits of unauthenticated connections by network, the oldest first."""

    async def admit(self, reader: ClientReader, writer: asyncio.StreamWriter) -> Admitted | None:
        """Authenticate the client. If it is not admitted, close its connection and return None."""
        host = (writer.get_extra_info("peername") or ("", 0))[0]
        network, limit = network_of(host), asyncio.timeout(self._settings.authentication_timeout_s)
        if not self._takes_place(network, limit):
            writer.close()
            return None
        try:
            async with limit:
                return await self._admitted(reader, writer)
        except (MalformedRequestError, OSError) as error:  # SSLError is an OSError
            logger.warning("connection of %s refused: %s", host, error)
        except TimeoutError:
            logger.warning("connection of %s refused: it did not authenticate in time", host)
        except (asyncio.IncompleteReadError, EOFError):
            pass
        finally:
            self._free_place(network, limit)
        return None

    def _takes_place(self, network: str, limit: asyncio.Timeout) -> bool:
        """Take a place for a connection. Return False if its network already has its share of places.

        If all places are taken, the network with the most loses its oldest one, but only if it has more places than
        this network will have. So a few networks that never finish their logins cannot keep other networks out.
        """
        places, of_network = self._settings.unauthenticated_connections_max, self._waiting.get(network, [])
        if len(of_network) >= max(1, places // _PLACES_OF_A_NETWORK):
            return False
        if sum(map(len, self._waiting.values())) >= places:
            largest = max(self._waiting, key=lambda name: len(self._waiting[name]))
            if len(self._waiting[largest]) <= len(of_network) + 1:
                return False
            oldest = self._waiting[largest][0]
            self._free_place(largest, oldest)
            if not oldest.expired():  # otherwise its connection is being closed already
                oldest.reschedule(asyncio.get_running_loop().time())
        self._waiting.setdefault(network, []).append(limit)
        return True

    def _free_place(self, network: str, limit: asyncio.Timeout) -> None:
        limits = self._waiting.get(network, [])
        if limit in limits:
            limits.remove(limit)
            if not limits:
                del self._waiting[network]

    async def _admitted(self, reader: ClientReader, writer: asyncio.StreamWriter) -> Admitted:
        principal = ANONYMOUS
        if self._certificates is not None:
            timeout_s = self._settings.authentication_timeout_s
            context = self._certificates.context
            reader, writer = await start_tls(writer, context, timeout_s)
            if context.verify_mode == ssl.CERT_REQUIRED:
                subject = writer.get_extra_info("ssl_object").getpeercert()["subject"]
                principal = f"User:{distinguished_name(subject)}"
        if not self._settings.sasl_mechanisms:
            return Admitted(reader, writer, principal)
        try:
            return await self._logged_in(reader, writer)
        except BaseException:
            await end_connection(writer)
            raise

    async def _logged_in(self, reader: ClientReader, writer: asyncio.StreamWriter) -> Admitted:
        login, software = Login(self._settings, self._verifier), ""
        for _ in range(_REQUESTS_MAX):
            frame = await _read_frame(reader, self._settings.login_bytes_max)
            if login.takes_token:
                answer = await login.answer_token(bytes(frame))
            else:
                answer, told = await self._answer(login, frame)
                software = told or software
            writer.write(answer)
            await writer.drain()
            if login.failed:
                raise MalformedRequestError("authentication failed")
            if login.user is not None:
                return Admitted(reader, writer, f"User:{login.user}", software, login)
            await asyncio.sleep(0)  # other connections have their turn, even if further frames have arrived
        raise MalformedRequestError(f"more than {_REQUESTS_MAX} requests before authentication")

    async def _answer(self, login: Login, frame: memoryview) -> tuple[bytes, str]:
        """Return the response, and the client's software, which is empty if the request does not name it."""
        if len(frame) < _HEADER_BYTES_MIN:
            raise MalformedRequestError(f"a frame of {len(frame)} bytes")
        header = read_header(frame, self._apis)
        if header.api_key in KEYS:
            return await login.answer(header, frame), ""
        if header.api_key != _API_VERSIONS:
            raise MalformedRequestError(f"a request of API {header.api_key} before authentication")
        api = self._apis[_API_VERSIONS]
        if not api.serves(header.version):
            unsupported = versions_response(self._versions, UNSUPPORTED_VERSION)
            return encode_response(unsupported, 0, header.correlation_id), ""
        request = read_body(api.request, header.version, frame[header.body :])
        response = versions_response(self._versions)
        return encode_response(response, header.version, header.correlation_id), software_of(request, header.version)


async def _read_frame(reader: ClientReader, bytes_max: int) -> memoryview:
    size = int.from_bytes(await reader.readexactly(4), "big", signed=True)
    if not 0 <= size <= bytes_max:
        raise MalformedRequestError(f"a frame of {size} bytes before authentication")
    return memoryview(await reader.readexactly(size))
