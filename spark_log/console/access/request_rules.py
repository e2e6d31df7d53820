"""Which requests the console answers, and the headers of its answers. Pure."""

from spark_log.gateway.http.requests import Sender

HEADER_BYTES_MAX = 32 * 1024
"""Of the names and values of all headers."""

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Of a form: a record of 1 MiB whose bytes are all percent-encoded, with room."""

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
        return sender is Sender.OWN_SITE
    if sender is Sender.UNKNOWN:
        return has_session or path in _FOR_UNKNOWN_SENDERS
    return sender is not Sender.OTHER_SITE
