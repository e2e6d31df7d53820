"""Checks of a request's headers: Host, the page that sent a change, and the headers of answers. Pure."""

from collections.abc import Collection, Mapping
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


def same_origin(headers: Mapping[str, str], origins: Collection[str]) -> bool:
    """Whether a page of the console sent the request, by Sec-Fetch-Site, else Origin, else Referer.

    `headers`: names in lower case. `origins`: `host` or `host:port` of the console as browsers name it. A request
    without any of the three headers is refused: it may come from an old browser.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    sender = headers.get("origin") or headers.get("referer")
    if not sender:
        return False
    try:
        parts = urlsplit(sender)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() in {origin.lower() for origin in origins}
