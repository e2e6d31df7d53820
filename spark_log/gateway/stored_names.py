"""Names in the requests of group members that the metadata store cannot keep: PostgreSQL stores no NUL.

Such requests are refused before their handlers, with the same codes on both stores.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_log.config.values import can_be_stored
from spark_log.errors import InconsistentGroupProtocolError, InvalidGroupIdError, UnknownMemberIdError
from spark_log.gateway.access.refusals import refusal
from spark_log.gateway.api import Client, Handler
from spark_log.gateway.error_codes import error_code
from spark_log.gateway.wire import Message

if TYPE_CHECKING:
    from spark_log.gateway.gateway import Gateway

_CODES = {
    "group_id": error_code(InvalidGroupIdError()),
    "member_id": error_code(UnknownMemberIdError()),
    "group_instance_id": error_code(UnknownMemberIdError()),
    "protocol_type": error_code(InconsistentGroupProtocolError()),
    "protocol_name": error_code(InconsistentGroupProtocolError()),
}


def with_storable_names(handler: Handler) -> Handler:
    """The handler of a request of a member, which answers what it cannot store with an error for the whole request."""

    async def checked(gateway: "Gateway", request: Message, client: Client) -> Message | None:
        for name, text in _names(request):
            if not can_be_stored(text):
                return refusal(request, _CODES[name])
        return await handler(gateway, request, client)

    return checked


def _names(request: Message) -> Iterator[tuple[str, str]]:
    for name in _CODES:
        text = getattr(request, name, None)
        if isinstance(text, str):
            yield name, text
    for protocol in getattr(request, "protocols", None) or ():
        yield "protocol_name", protocol.name
