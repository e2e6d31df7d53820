"""Makes the console an ASGI application, with the table of routes and the handlers of each kind of route."""

import asyncio
import importlib
import json
import logging
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

from prometheus_client.registry import CollectorRegistry
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from spark_log.cluster.cluster import Cluster
from spark_log.console import pages
from spark_log.console.access.authentication import Authentication
from spark_log.console.access.guard import HEALTH, Guard
from spark_log.console.access.request_rules import BODY_BYTES_MAX, METRICS
from spark_log.console.access.roles import User
from spark_log.console.audit import audited
from spark_log.console.downloads import DownloadResponse, RunningDownloads
from spark_log.console.paths import decode_segment
from spark_log.console.rendering import environment, to_json
from spark_log.console.routes import Call, Change, Done, Forbidden, NotFound, Preference, Preview, Stream, View
from spark_log.console.settings import ConsoleSettings
from spark_log.console.snapshots import Snapshots
from spark_log.errors import (
    GroupIdNotFoundError,
    InvalidConfigurationError,
    MetadataStoreUnavailableError,
    RetriableError,
    SparkLogError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
    redact,
)
from spark_log.facts.metrics.exposition import CONTENT_TYPE, exposition
from spark_log.gateway.http.requests import LOOPBACK

API = "/api/v1"
_MESSAGE_COOKIE = "spark-log-message"
_MESSAGE_LENGTH_MAX = 1000
_PAGES_WITHOUT_USER_MAX = 64
_YEAR_S = 365 * 24 * 3600
_NAVIGATION = ("/", "/topics", "/groups", "/transactions", "/brokers", "/maintenance", "/queries", "/audit")
_NOT_FOUND = (NotFound, UnknownTopicOrPartitionError, GroupIdNotFoundError, TransactionalIdNotFoundError)
_LOGGER = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Table:
    """All routes of the pages."""

    views: tuple[View, ...] = ()
    changes: tuple[Change, ...] = ()
    streams: tuple[Stream, ...] = ()
    preferences: tuple[Preference, ...] = ()
    previews: tuple[Preview, ...] = ()

    @property
    def navigation(self) -> list[View]:
        by_path = {view.path: view for view in self.views if view.title}
        return [by_path[path] for path in _NAVIGATION if path in by_path]


def table() -> Table:
    """Return the routes of every module in `console/pages`."""
    names = sorted(module.name for module in pkgutil.iter_modules(pages.__path__))
    modules = [importlib.import_module(f"{pages.__name__}.{name}") for name in names]

    def of(kind: str) -> Iterator[object]:
        for module in modules:
            yield from getattr(module, kind, ())

    kinds = ("VIEWS", "CHANGES", "STREAMS", "PREFERENCES", "PREVIEWS")
    return Table(*(tuple(of(kind)) for kind in kinds))  # type: ignore[arg-type]


def application(
    cluster: Cluster, settings: ConsoleSettings, authentication: Authentication, registry: CollectorRegistry
) -> Guard:
    """Return the console of `cluster` behind the checks of its guard. `registry` has the metrics that it serves."""
    console = _Console(cluster, settings, authentication, table(), registry)
    hosts = {*LOOPBACK, settings.host} - {"0.0.0.0", "::"}
    return Guard(console.starlette(), authentication, hosts, settings.public_url, console.error)


@dataclass
class _Console:
    cluster: Cluster
    settings: ConsoleSettings
    authentication: Authentication
    table: Table
    registry: CollectorRegistry
    snapshots: Snapshots = field(init=False)
    downloads: RunningDownloads = field(init=False)

    def __post_init__(self) -> None:
        self.snapshots = Snapshots(self.cluster)
        self.downloads = RunningDownloads()
        self._templates = environment()
        self._pages_without_user = lru_cache(_PAGES_WITHOUT_USER_MAX)(self._page_without_user)

    def starlette(self) -> Starlette:
        routes: list[BaseRoute] = [Mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))]
        for base in (API, ""):
            for view in self.table.views:
                routes.append(self._route(base + view.path, "GET", self._view(view)))
            for stream in self.table.streams:
                routes.append(self._route(base + stream.path, "GET", self._stream(stream)))
            for change in self.table.changes:
                routes.append(self._route(base + change.path, "POST", self._change(change)))
            for preview in self.table.previews:
                routes.append(self._route(base + preview.path, "POST", self._preview(preview)))
            for preference in self.table.preferences:
                routes.append(self._route(base + preference.path, "POST", self._preference(preference)))
        routes.append(self._route(METRICS, "GET", self._metrics))
        routes.append(Route(HEALTH, _health, methods=["GET"]))
        routes.append(Route("/logout", self._log_out, methods=["POST"]))
        return Starlette(routes=routes, exception_handlers={HTTPException: self._http_error})

    def _route(self, path: str, method: str, answer: Callable[[Request, Call], object]) -> Route:
        async def endpoint(request: Request) -> Response:
            user: User = request.scope["user"]
            try:
                call = self._call(request, user, await _form(request) if method == "POST" else {})
                response = await answer(request, call)  # type: ignore[misc]
            except ClientDisconnect:
                return Response()
            except Exception as error:
                status = _status_of(error)
                if status is None:  # a bug, whose text may contain secrets
                    _LOGGER.exception("%s %s failed", method, path)
                    return await self.error(request, user, 500, f"An error of the console: {type(error).__name__}")
                return await self.error(request, user, status, _error_text(error))
            assert isinstance(response, Response)
            return response

        route = Route(path, endpoint, methods=[method])
        route.methods = {method}  # without HEAD, which Starlette adds and which would do all the work of a GET
        return route

    def _call(self, request: Request, user: User, form: Mapping[str, str]) -> Call:
        path = {name: decode_segment(value) for name, value in request.path_params.items()}
        query = dict(request.query_params)
        cookies = {name: unquote(value) for name, value in request.cookies.items()}
        return Call(self.cluster, user, path, query, form, self.snapshots, self.settings.allow, cookies=cookies)

    def _view(self, view: View | Preview) -> Callable[[Request, Call], object]:
        async def answer(request: Request, call: Call) -> Response:
            facts = await _watched(request, call, view.facts)
            if _of_api(request):
                return _json(facts)
            return await run_in_threadpool(self._page, request, call.user, view.template, call=call, facts=facts)

        return answer

    def _preview(self, preview: Preview) -> Callable[[Request, Call], object]:
        show = self._view(preview)

        async def answer(request: Request, call: Call) -> Response:
            call.require(preview.allow)
            return await show(request, call)  # type: ignore[misc,no-any-return]

        return answer

    def _stream(self, stream: Stream) -> Callable[[Request, Call], object]:
        async def answer(request: Request, call: Call) -> Response:
            download = await _watched(request, call, stream.serve)
            return DownloadResponse(download, self.downloads, f"{stream.path} of {call.user.name}", call.left)

        return answer

    async def _metrics(self, request: Request, call: Call) -> Response:
        """Return the metrics for Prometheus. Only users who see all topics get them, because their labels name all
        topics.
        """
        if not call.role.sees_all:
            raise Forbidden("Only users who see all topics see the metrics.")
        return Response(await run_in_threadpool(exposition, self.registry), headers={"Content-Type": CONTENT_TYPE})

    def _change(self, change: Change) -> Callable[[Request, Call], object]:
        async def answer(request: Request, call: Call) -> Response:
            try:
                done: Done = await run_in_threadpool(audited, change, call)
            except Forbidden:  # nothing was changed
                raise
            except BaseException:
                self.snapshots.forget()
                raise
            self.snapshots.forget()
            return _done(request, done)

        return answer

    def _preference(self, preference: Preference) -> Callable[[Request, Call], object]:
        async def answer(request: Request, call: Call) -> Response:
            return _done(request, preference.apply(call))

        return answer

    def _page(self, request: Request, user: User, template: str, status: int = 200, **values: object) -> Response:
        message = unquote(request.cookies.get(_MESSAGE_COOKIE, ""))
        text = self._templates.get_template(template).render(
            user=user,
            message=message,
            navigation=self.table.navigation,
            here=request.scope["path"],
            may_log_out=self.authentication.sessions is not None,
            cluster=str(self.cluster.store.address),
            **values,
        )
        response = Response(text, status, media_type="text/html")
        if message:
            response.delete_cookie(_MESSAGE_COOKIE, httponly=True, samesite="strict")
        return response

    def _page_without_user(self, status: int, text: str) -> str:
        template = self._templates.get_template("error.html")
        return template.render(user=None, message="", navigation=[], link=None, status_code=status, text=text)

    async def error(
        self, request: Request, user: User | None, status: int, text: str, link: str | None = None
    ) -> Response:
        """Return an error as a page, or as JSON for paths of the API. The page has a link to `link`, which is a path.

        A page for a client without a user is rendered once for each status and text, and then cached. Therefore the
        requests of such clients take no threads from users.
        """
        if _of_api(request):
            return _json({"error": text}, status)
        if user is None:
            return Response(self._pages_without_user(status, text), status, media_type="text/html")
        return await run_in_threadpool(
            self._page, request, user, "error.html", status, status_code=status, text=text, link=link
        )

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = "There is no such page." if error.status_code == 404 else str(error.detail)
        return await self.error(request, request.scope.get("user"), error.status_code, text)

    async def _log_out(self, request: Request) -> Response:
        sessions = self.authentication.sessions
        response = await self.error(request, None, 200, "You have logged out.")
        if sessions is not None:
            sessions.end(request, response)
        return response


async def _health(_: Request) -> Response:
    """Show load balancers, which have no user, that the server answers. --metrics-port serves /ready, with reasons."""
    return _json({"status": "ok"})


def _of_api(request: Request) -> bool:
    return bool(request.scope["path"].startswith(f"{API}/"))


def _done(request: Request, done: Done) -> Response:
    if _of_api(request):
        response = _json(done.facts if done.facts is not None else {"message": done.message})
    else:
        response = RedirectResponse(done.location, 303)
        message = quote(done.message[:_MESSAGE_LENGTH_MAX], safe="")
        response.set_cookie(_MESSAGE_COOKIE, message, max_age=60, httponly=True, samesite="strict")
    for name, value in done.cookies.items():
        response.set_cookie(name, quote(value, safe=""), max_age=_YEAR_S, httponly=True, samesite="strict")
    return response


def _json(facts: object, status: int = 200) -> Response:
    return Response(to_json(facts), status, media_type="application/json")


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form, or of a JSON object."""
    if request.headers.get("content-type", "").split(";")[0].strip() == "application/json":
        try:
            found = json.loads(await request.body())
        except (RecursionError, ValueError) as error:
            raise InvalidConfigurationError(f"the body is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise InvalidConfigurationError("the body must be a JSON object")
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}
    async with request.form(max_part_size=BODY_BYTES_MAX) as form:
        return {name: value for name, value in form.multi_items() if isinstance(value, str)}


async def _watched(request: Request, call: Call, function: Callable[[Call], _Result]) -> _Result:
    """Run `function` in a thread, and set `call.left` if the browser closes the connection meanwhile."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        call.left.set()

    watcher = asyncio.create_task(watch())
    try:
        return await run_in_threadpool(function, call)
    finally:
        watcher.cancel()


def _status_of(error: Exception) -> int | None:
    """Return the HTTP status of an error, or None for a bug.

    The status is 404 for an unknown object, 403 for a change that is not allowed, 503 for an error after which a retry
    may succeed, that of an HTTPException, and 400 for every other error of spark-log.
    """
    if isinstance(error, _NOT_FOUND):
        return 404
    if isinstance(error, Forbidden):
        return 403
    if isinstance(error, MetadataStoreUnavailableError | RetriableError):
        return 503
    if isinstance(error, HTTPException):
        return error.status_code
    return 400 if isinstance(error, SparkLogError) else None


def _error_text(error: Exception) -> str:
    """Return the message of an error without secrets."""
    return redact(str(error.detail if isinstance(error, HTTPException) else error))
