"""Checks every request before it reaches a page, as the ASGI middleware in front of all routes."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_log.console.access.authentication import Authentication, Refused
from spark_log.console.access.request_rules import BODY_BYTES_MAX, HEADER_BYTES_MAX, SECURITY_HEADERS, may_send
from spark_log.console.access.roles import User
from spark_log.gateway.http.requests import declared_length, host_allowed, limited, sender_of, too_large

STATIC = "/static/"
HEALTH = "/health"

OF_ONE_USER_MAX = 10
"""The maximum number of requests of a user that are processed at the same time. A browser sends 6. The console has
threads for 40.
"""


ErrorPage = Callable[..., Awaitable[Response]]
"""The function `error` of the application: request, user or None, status, text, and the path of a link."""


class Guard:
    """Checks Host, size, method, user and origin, in this order, and adds the security headers to every response.

    `hosts` are the host names under which browsers may address the console. `public_url` is the address that browsers
    use if there is a proxy in front of the console.
    """

    def __init__(
        self,
        application: ASGIApp,
        authentication: Authentication,
        hosts: Collection[str],
        public_url: str | None,
        error_page: ErrorPage,
    ) -> None:
        self._application = application
        self._authentication = authentication
        public = urlsplit(public_url) if public_url else None
        self._hosts = {*hosts, *([public.hostname] if public and public.hostname else [])}
        self._public_origins = {public.netloc} if public else set()
        self._error_page = error_page
        self._answered: Counter[str] = Counter()
        """The number of requests that are being processed, by user. Only one event loop uses the counter."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        is_static = scope["path"].startswith(STATIC)
        guarded_send = _with_headers(send, is_static)
        try:
            response = await self._refusal(request, is_static)
            if response is None:
                response = await self._answer(request, limited(receive, BODY_BYTES_MAX), guarded_send)
                if response is None:
                    return
        except Refused as refused:
            response = await self._error_page(request, None, refused.status, str(refused))
            response.headers.update(refused.headers)
        await response(scope, receive, guarded_send)

    async def _answer(self, request: Request, receive: Receive, send: Send) -> Response | None:
        """Pass the request to the application. Return None, or an error response if too many requests of the user are
        being processed.
        """
        user: User | None = request.scope.get("user")
        name = "" if user is None else user.name
        if user is not None and self._answered[name] >= OF_ONE_USER_MAX:
            text = f"{OF_ONE_USER_MAX} requests of yours are being answered: try again later."
            return await self._error_page(request, user, 429, text)
        self._answered[name] += 1
        try:
            await self._application(request.scope, receive, send)
        finally:
            self._answered[name] -= 1
            if not self._answered[name]:
                del self._answered[name]
        return None

    async def _refusal(self, request: Request, is_static: bool) -> Response | None:
        """Return the response to a request that must not reach the routes, or None if the request may reach them."""
        if not host_allowed(request.headers.get("host"), self._hosts):
            return Response(
                "Header Host does not name this console. Give the name that browsers use as --public-url.\n",
                400,
                media_type="text/plain",
            )
        if sum(len(name) + len(value) for name, value in request.scope["headers"]) > HEADER_BYTES_MAX:
            return await self._error_page(request, None, 431, "the headers of a request are too large")
        if declared_length(request.headers.get("content-length")) > BODY_BYTES_MAX:
            return await self._error_page(request, None, 413, too_large(BODY_BYTES_MAX))
        if request.method not in ("GET", "HEAD", "POST"):
            return await self._error_page(request, None, 405, "only GET, HEAD and POST are known here")
        if is_static or request.scope["path"] == HEALTH:
            return None
        answer = await self._authentication.answer(request)
        if answer is not None:
            return answer
        user = await self._authentication.user(request)
        request.scope["user"] = user
        origins = {request.headers["host"], *self._public_origins}
        sender = sender_of(dict(request.headers), origins)
        if may_send(request.method, request.scope["path"], sender, self._authentication.sessions is not None):
            return None
        if request.method == "POST":
            text = "Only pages of this console may change something (a header Origin is needed)."
            return await self._error_page(request, user, 403, text)
        text = f"The request comes from {sender.value}. Scripts send the header Sec-Fetch-Site: same-origin."
        return await self._error_page(request, user, 403, text, _address(request))


def _address(request: Request) -> str:
    """Return the path and the query of the request, for a link on a page of the console."""
    path = "/" + quote(request.scope["path"]).lstrip("/")
    return f"{path}?{request.url.query}" if request.url.query else path


def _with_headers(send: Send, is_static: bool) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(SECURITY_HEADERS)
            headers["Cache-Control"] = "max-age=3600" if is_static else "no-store"
        await send(message)

    return with_headers
