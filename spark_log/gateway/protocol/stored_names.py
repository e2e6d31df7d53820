"""Refuses, before the handler, requests of group members with names that cannot be stored or returned.

PostgreSQL stores no NUL; requests are refused in the same way with SQLite. In old versions of responses, a string has
at most 32,767 bytes. Newer requests allow longer names, and one such group would make ListGroups fail for old clients.
"""

from spark_log.config.values import can_be_stored
from spark_log.errors import InconsistentGroupProtocolError, InvalidGroupIdError, UnknownMemberIdError
from spark_log.gateway.access.refusals import refusal
from spark_log.gateway.api import Client, Handler
from spark_log.gateway.protocol.error_codes import error_code
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services

_CODES = {
    "group_id": error_code(InvalidGroupIdError()),
    "member_id": error_code(UnknownMemberIdError()),
    "group_instance_id": error_code(UnknownMemberIdError()),
    "protocol_type": error_code(InconsistentGroupProtocolError()),
    "protocol_name": error_code(InconsistentGroupProtocolError()),
}
_PROTOCOL_LENGTH_MAX = 255
"""The maximum number of characters of a protocol type and of a protocol's name."""


def with_storable_names(request_type: type[Message], handler: Handler) -> Handler:
    """Wrap the handler of a member's request, to refuse the whole request if one of its names is not allowed."""
    fields = request_type._struct.fields
    names, has_protocols = [name for name in _CODES if name in fields], "protocols" in fields

    async def checked(services: Services, request: Message, client: Client) -> Message | None:
        for name in names:
            text = getattr(request, name)
            if text is not None and not _accepts(name, text):
                return refusal(request, _CODES[name])
        for protocol in request.protocols if has_protocols else ():
            if not _accepts("protocol_name", protocol.name):
                return refusal(request, _CODES["protocol_name"])
        return await handler(services, request, client)

    return checked


def _accepts(field: str, text: str) -> bool:
    return can_be_stored(text) and (not field.startswith("protocol") or len(text) <= _PROTOCOL_LENGTH_MAX)
