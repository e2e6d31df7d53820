"""Recognizes HTTP requests that pages of other sites make a browser send, and limits bodies."""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.types import Message, Receive

LOOPBACK = ("127.0.0.1", "::1", "localhost")

_NOT_A_LENGTH = 10**20


def too_large(bytes_max: int) -> str:
    """Return the text of a refusal with status 413."""
    return f"a request has at most {bytes_max:,} bytes"


def host_allowed(host: str | None, allowed: Collection[str]) -> bool:
    """Whether header Host names this server. Requests of a page that rebinds its DNS name to this server do not."""
    if not host or any(each in host for each in "/@?#\\ "):
        return False
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and name in allowed


class Sender(Enum):
    """The site that made the browser send a request."""

    OWN_SITE = "a page of this server"
    USER = "the user, who typed the address or has a bookmark"
    OTHER_SITE = "a page of another origin"
    UNKNOWN = "a script, or a browser that does not say it"


def sender_of(headers: Mapping[str, str], origins: Collection[str]) -> Sender:
    """Return the sender by Sec-Fetch-Site, else Origin, else Referer. A page cannot set or change these headers.

    `headers` have names in lower case. `origins` are `host` or `host:port` of the server as browsers name it. Browsers
    send Sec-Fetch-Site to https and to this machine. A page can make them send no Referer.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return {"same-origin": Sender.OWN_SITE, "none": Sender.USER}.get(site, Sender.OTHER_SITE)
    sender = headers.get("origin") or headers.get("referer")
    if not sender:
        return Sender.UNKNOWN
    try:
        parts = urlsplit(sender)
    except ValueError:
        return Sender.OTHER_SITE
    own = parts.scheme in ("http", "https") and parts.netloc.lower() in {origin.lower() for origin in origins}
    return Sender.OWN_SITE if own else Sender.OTHER_SITE


def declared_length(header: str | None) -> int:
    """Return the bytes of a body by header Content-Length, or a number above any limit if the header is invalid."""
    text = header or "0"
    return int(text) if text.isdecimal() and len(text) < 20 else _NOT_A_LENGTH


def limited(receive: "Receive", bytes_max: int) -> "Receive":
    """Wrap `receive` to raise HTTPException 413 after more than `bytes_max` bytes, whatever Content-Length claims."""
    from starlette.exceptions import HTTPException

    received = 0

    async def limited_receive() -> "Message":
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > bytes_max:
            raise HTTPException(413, too_large(bytes_max))
        return message

    return limited_receive
