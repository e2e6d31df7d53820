"""Authenticates users by a trusted proxy, which sends the user and the groups in headers."""

import ipaddress
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from spark_log.console.access.access_file import ProxyHeaders
from spark_log.console.access.authentication import Refused, user_with_role
from spark_log.console.access.roles import Role, User
from spark_log.console.access.sessions import Sessions


class HeaderAuthentication:
    """Takes the user and the groups from the headers of a trusted proxy.

    A request from any other address is refused, whatever its headers say.
    """

    def __init__(self, settings: ProxyHeaders, roles: Mapping[str, Role]) -> None:
        self.sessions: Sessions | None = None
        self._settings = settings
        self._networks = settings.networks()
        self._roles = roles

    async def answer(self, request: Request) -> Response | None:
        return None

    async def user(self, request: Request) -> User:
        if request.client is None or not self._trusted(request.client.host):
            raise Refused("Only the configured proxies may send requests to this console.", status=403)
        names = [name.strip() for name in request.headers.getlist(self._settings.user)]
        if len(names) != 1 or not names[0]:
            raise Refused(f"The proxy must send one header {self._settings.user}.")
        listed = ",".join(request.headers.getlist(self._settings.groups))
        return user_with_role(names[0], [group.strip() for group in listed.split(",")], self._roles)

    def _trusted(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)
