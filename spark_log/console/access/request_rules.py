"""Decides which requests the console answers, and defines the security headers of its responses. Pure."""

from spark_log.gateway.http.requests import Sender

HEADER_BYTES_MAX = 32 * 1024
"""The maximum size of the names and values of all headers."""

BODY_BYTES_MAX = 8 * 1024 * 1024
"""The maximum size of a form. A record of 1 MiB fits in, even if all its bytes are percent-encoded."""

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
"""The headers of every response.

`img-src data:` is for the icons in Pico's style sheet. Referrer-Policy lets browsers without Sec-Fetch-Site and Origin
send the page of a form.
"""

METRICS = "/metrics"

_FOR_UNKNOWN_SENDERS = ("/", METRICS)
"""Pages that cost little. Prometheus sends none of the headers that tell the origin of a request."""


def may_send(method: str, path: str, sender: Sender, has_session: bool) -> bool:
    """Return whether a request is answered. Every answer has a cost, and that of a search or a download is high.

    `has_session` is true if a SameSite=Strict cookie authenticates the user. Browsers do not send it in requests that
    other sites cause. Without a session, the browser or the proxy adds the credentials to every request, whichever site
    causes it. Then a request without the headers that tell its origin may read only the first page and the metrics.
    """
    if method == "POST":
        return sender is Sender.OWN_SITE
    if sender is Sender.UNKNOWN:
        return has_session or path in _FOR_UNKNOWN_SENDERS
    return sender is not Sender.OTHER_SITE
