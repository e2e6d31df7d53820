"""Checks of a request's headers: Host, the page that sent it, and the headers of answers. Pure."""

from collections.abc import Collection, Mapping
from enum import Enum
from urllib.parse import urlsplit

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Of a form: a record of 1 MiB whose bytes are all percent-encoded, with room."""

HEADER_BYTES_MAX = 32 * 1024
"""Of the names and values of all headers."""

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""`img-src data:` is for the icons in Pico's style sheet. Referrer: so that old browsers show where a form was sent."""


def host_allowed(host: str | None, allowed: Collection[str]) -> bool:
    """Whether header Host names this console. Other names are those of a page that rebinds its own name (DNS)."""
    if not host or any(each in host for each in "/@?#\\ "):
        return False
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and name in allowed


class Sender(Enum):
    """The site that made the browser send a request."""

    CONSOLE = "a page of the console"
    USER = "the user, who typed the address or has a bookmark"
    OTHER_SITE = "a page of another origin"
    UNKNOWN = "a script, or a browser that does not say it"


def sender_of(headers: Mapping[str, str], origins: Collection[str]) -> Sender:
    """By Sec-Fetch-Site, else Origin, else Referer; no page can set or change these.

    `headers`: names in lower case. `origins`: `host` or `host:port` of the console as browsers name it. Browsers send
    Sec-Fetch-Site to https and to this machine, and a page can ask them to send no Referer.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return {"same-origin": Sender.CONSOLE, "none": Sender.USER}.get(site, Sender.OTHER_SITE)
    sender = headers.get("origin") or headers.get("referer")
    if not sender:
        return Sender.UNKNOWN
    try:
        parts = urlsplit(sender)
    except ValueError:
        return Sender.OTHER_SITE
    own = parts.scheme in ("http", "https") and parts.netloc.lower() in {origin.lower() for origin in origins}
    return Sender.CONSOLE if own else Sender.OTHER_SITE


METRICS = "/metrics"

_FOR_UNKNOWN_SENDERS = ("/", METRICS)
"""Cheap pages. Prometheus sends none of the headers that name a sender."""


def may_send(method: str, path: str, sender: Sender, has_session: bool) -> bool:
    """Whether a request is answered. Every one costs something, and a search or a download costs much.

    `has_session`: a strict cookie proves the user, which browsers do not send for other sites. Without it the browser
    itself proves the user (passwords, proxies), whoever makes it send the request; then one without the headers reads
    the first page and the metrics only.
    """
    if method == "POST":
        return sender is Sender.CONSOLE
    if sender is Sender.UNKNOWN:
        return has_session or path in _FOR_UNKNOWN_SENDERS
    return sender is not Sender.OTHER_SITE
