"""What every request passes: who may ask, how much they may send, and what browsers are told to refuse.

Plain ASGI, around everything else, so that no page can forget it.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from meshplan.errors import InputError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
"""Of every answer, unless it says otherwise itself."""
MOST_QUERY = 32 << 10
MOST_BODY = 256 << 10
COOKIE = "meshplan_token"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

log = logging.getLogger("meshplan.web")


@dataclass(frozen=True, slots=True)
class Guard:
    """The outermost application. ``hosts``: names the server answers to (``None``: any, as the token
    then decides); ``token``: what a visitor must show once, in the address, and then as a cookie."""

    app: App
    hosts: frozenset[str] | None
    token: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, busy = time.perf_counter(), time.process_time()
        started = False

        async def out(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                spent = f"total;dur={1e3 * (time.perf_counter() - begun):.1f}"
                spent += f", cpu;dur={1e3 * (time.process_time() - busy):.1f}"  # of all requests under way
                message["headers"] = _with_headers(message.get("headers", []), spent)
            await send(message)

        refusal = self._refusal(scope)
        try:
            if refusal is not None:
                await _answer(out, *refusal)
            else:
                await self.app(scope, _limited(receive), out)
        except TooLargeError as error:
            if not started:
                await _answer(out, 413, str(error), [])
        except Exception:  # one request's bug is not the server's end
            log.exception("%s %s", scope["method"], scope["path"])
            if not started:
                await _answer(out, 500, "a bug in meshplan; the server's log says more", [])

    def _refusal(self, scope: Scope) -> tuple[int, str, list[tuple[bytes, bytes]]] | None:
        """Status, sentence and headers of a refusal, or ``None``."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if self.hosts is not None and _host(headers.get("host", "")) not in self.hosts:
            return 421, "this address is not one the server answers to", []
        if len(scope["query_string"]) > MOST_QUERY:
            return 414, f"an address may be {MOST_QUERY:,} letters long at most", []
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "only GET, HEAD and POST are answered", [(b"allow", b"GET, HEAD, POST")]
        if scope["method"] == "POST" and headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return 403, "another site may not send anything here", []
        return self._token_refusal(scope, headers)

    def _token_refusal(
        self, scope: Scope, headers: dict[str, str]
    ) -> tuple[int, str, list[tuple[bytes, bytes]]] | None:
        if self.token is None or _same(_cookie(headers.get("cookie", "")), self.token):
            return None
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not _same(dict(pairs).get("token", ""), self.token):
            return 401, "open the address with the token that the server printed", []
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        place = scope["path"] + (f"?{rest}" if rest else "")
        cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        where = "/" + place.lstrip("/\\")  # never another site: '//x' would be one
        return 303, "", [(b"location", where.encode("latin-1")), (b"set-cookie", cookie.encode())]


class TooLargeError(InputError):
    """A request's body is larger than ``MOST_BODY``."""

    def __init__(self) -> None:
        super().__init__(f"a request may hold {MOST_BODY:,} bytes at most")


def _limited(receive: Receive) -> Receive:
    """``receive`` that counts, and raises when a body grows too large."""
    got = 0

    async def counted() -> Message:
        nonlocal got
        message = await receive()
        got += len(message.get("body", b""))
        if got > MOST_BODY:
            raise TooLargeError
        return message

    return counted


def _with_headers(headers: Any, spent: str) -> list[tuple[bytes, bytes]]:
    given = list(headers)
    names = {name.lower() for name, _ in given}
    given += [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in names]
    return [*given, (b"server-timing", spent.encode())]


async def _answer(send: Send, status: int, text: str, headers: list[tuple[bytes, bytes]]) -> None:
    body = f"{text}\n".encode() if text else b""
    plain = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*plain, *headers]})
    await send({"type": "http.response.body", "body": body})


def _host(text: str) -> str:
    """The name in a Host header, without the port."""
    if text.startswith("["):
        return text.partition("]")[0].lower() + "]"
    return text.partition(":")[0].lower()


def _cookie(text: str) -> str:
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(), b.encode())
