"""What every request passes first: a host that is this server, no other site's hand in what
changes something, and headers that forbid a page to load or run anything from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from embeddb.ui.serve.access.address import Address

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADERS", "POLICY", "Guard"]

POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
#: Longest address (path and question together) that is looked at.
_MOST_ADDRESS = 4096


class Guard:
    """Wraps the application. A header that a response sets itself is kept; what a public address
    has before our paths is taken off, which a proxy may do or leave to us."""

    def __init__(self, app: ASGIApp, address: Address) -> None:
        self._app, self._address = app, address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = _refused(scope := _ours(scope, self._address.root), self._address)
        if refused is None:
            await self._app(scope, receive, guarded)
        else:
            status, text = refused
            await PlainTextResponse(text + "\n", status)(scope, receive, guarded)


def _ours(scope: Scope, root: str) -> Scope:
    """A request with the path that it has here."""
    path: str = scope["path"]
    if not root or not (path == root or path.startswith(f"{root}/")):
        return scope
    raw = scope.get("raw_path", b"")
    return {**scope, "path": path[len(root) :] or "/", "raw_path": raw[len(root) :] or b"/"}


def _refused(scope: Scope, address: Address) -> tuple[int, str] | None:
    """Status and reason, or None for what may pass."""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not address.takes(host, (scope.get("server") or ("",))[0]):
        seen = address.origin or ("localhost and " if address.ip.is_loopback else "") + address.host
        return 400, f"this page answers to {seen} only"
    if len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > _MOST_ADDRESS:
        return 414, "this address is too long"
    if scope["method"] not in ("GET", "HEAD", "POST"):
        return 405, "GET, HEAD and POST only"
    # Asking keeps an answer, also by GET: a foreign page must not do that with a picture's address.
    if scope["method"] != "POST" and not scope["path"].startswith("/ask"):
        return None
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return 403, "another site asked for this; open the page itself"
    if "origin" in headers and not address.may_ask(headers["origin"], host):
        return 403, "another site asked for this; open the page itself"
    return None
