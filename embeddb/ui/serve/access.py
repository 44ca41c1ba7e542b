"""Access control of the web interface: listening address and public URL, checks of every request,
and the token.

The Host header must name this server, other sites may not cause changes, and response headers
forbid external resources; the token comes in a header of every request, or once on a page, after
which the browser has a session."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import anyio
from itsdangerous import BadSignature, TimestampSigner
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)

from embeddb.core.errors import UsageError
from embeddb.ui.serve.rendering import render

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


LOOPBACK = "127.0.0.1"
_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.I)
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::(\d{1,5}))?", re.I)


@dataclass(frozen=True)
class Address:
    """Address of the server: `host` is an IP address of this machine, `public` the URL behind a
    reverse proxy, empty without one.

    Raises: UsageError for a host that is no address, or an invalid URL.
    """

    host: str = LOOPBACK
    public: str = ""

    def __post_init__(self) -> None:
        _ = self.ip, self.origin, self.root

    @cached_property
    def ip(self) -> IPv4Address | IPv6Address:
        try:
            return ip_address(self.host)
        except ValueError:
            raise UsageError(
                f"--host {self.host}: not an IP address",
                hint="127.0.0.1, 0.0.0.0 for all addresses of this machine, or one of them",
            ) from None

    @property
    def others_see_it(self) -> bool:
        """True if other machines can send requests."""
        return bool(self.public) or not self.ip.is_loopback

    def url(self, port: int) -> str:
        """URL of the first page, with a slash at its end."""
        host = f"[{self.host}]" if self.ip.version == 6 else self.host
        return self.public.rstrip("/") + "/" if self.public else f"http://{host}:{port}/"

    # -- as others see it ------------------------------------------------------------------

    @cached_property
    def _public(self) -> tuple[str, str, str]:
        """Scheme, host (with a port if not the default) and path, or three empty texts."""
        if not self.public:
            return "", "", ""
        refused = UsageError(
            f"--public-url {self.public[:200]}: not a URL of a page",
            hint="for example https://tuning.example.org/embeddb",
        )
        try:
            parts = urlsplit(self.public)
            scheme, name, port = parts.scheme, parts.hostname or "", parts.port
        except ValueError:
            raise refused from None
        path = parts.path.rstrip("/")
        sound = (
            scheme in _PORTS
            and (_NAME.fullmatch(name) or _plain(name))
            and not {".", ".."} & set(path.split("/"))
            and _PATH.fullmatch(path)
        )
        if not sound or parts.query or parts.fragment or parts.username is not None:
            raise refused
        shown = f"[{name}]" if ":" in name else name
        return scheme, shown if port in (None, _PORTS[scheme]) else f"{shown}:{port}", path

    @property
    def origin(self) -> str:
        """`https://tuning.example.org`; empty without a public URL."""
        scheme, host, _ = self._public
        return f"{scheme}://{host}" if scheme else ""

    @property
    def root(self) -> str:
        """Prefix of every path: `/embeddb`, or empty."""
        return self._public[2]

    @property
    def secure(self) -> bool:
        """True if traffic is encrypted by the proxy."""
        return self._public[0] == "https"

    # -- what a request says ---------------------------------------------------------------

    def takes(self, host: str, reached: str) -> bool:
        """True if a Host header names this server; `reached` is the connection's local address.

        A foreign name may resolve to this server (DNS rebinding); an IP address cannot, but it must
        be the address that was requested.
        """
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        if self._is_public(host):
            return True
        name = match[1].strip("[]").lower()
        if self.ip.is_loopback:
            return name in ("localhost", self.host)
        address = _plain(name)
        listening = reached if self.ip.is_unspecified else self.host
        return bool(address) and address == _plain(listening)

    def may_ask(self, origin: str, host: str) -> bool:
        """True if a page of that origin may cause changes: only this server's own pages."""
        if origin.lower() == self.origin:
            return bool(origin)
        return not self._is_public(host) and origin.lower() == f"http://{host}".lower()

    def _is_public(self, host: str) -> bool:
        scheme, public, _ = self._public
        usual = f":{_PORTS[scheme]}" if scheme else ""
        return bool(public) and host.lower().removesuffix(usual) == public.lower()


def _plain(text: str) -> str:
    """Canonical text of an IP address: IPv4 may be mapped into IPv6; empty for another text."""
    try:
        address = ip_address(text)
    except ValueError:
        return ""
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(inner or address)


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
#: Longest accepted path and query, together.
_MOST_ADDRESS = 4096


class Guard:
    """Middleware that checks requests and adds headers; those that a response sets itself are kept.
    The path prefix of a public URL is removed, unless the proxy has done so."""

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
    """A request without the public path prefix."""
    path: str = scope["path"]
    if not root or not (path == root or path.startswith(f"{root}/")):
        return scope
    raw = scope.get("raw_path", b"")
    return {**scope, "path": path[len(root) :] or "/", "raw_path": raw[len(root) :] or b"/"}


def _refused(scope: Scope, address: Address) -> tuple[int, str] | None:
    """Status and reason of a refused request, or None."""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not address.takes(host, (scope.get("server") or ("",))[0]):
        seen = address.origin or ("localhost and " if address.ip.is_loopback else "") + address.host
        return 400, f"this server answers requests to {seen} only"
    if len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > _MOST_ADDRESS:
        return 414, "this address is too long"
    if scope["method"] not in ("GET", "HEAD", "POST"):
        return 405, "GET, HEAD and POST only"
    # A query stores an answer, also by GET: a foreign page must not cause it by an image address.
    if scope["method"] != "POST" and not scope["path"].startswith("/ask"):
        return None
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return 403, "request from another site refused; open the page itself"
    if "origin" in headers and not address.may_ask(headers["origin"], host):
        return 403, "request from another site refused; open the page itself"
    return None


#: Wrong tokens allowed from one address within this many seconds.
MOST_FAILURES, WINDOW_S = 10, 60.0
#: Addresses that are remembered.
_MOST_ADDRESSES = 10_000


class Failures:
    """Failed logins by address, in one process; for IPv6 by network: a user has all of one."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Seconds until an address may try again; 0 if it may now."""
        times = self._times.get(_network(address))
        if times is None or len(times) < MOST_FAILURES:
            return 0.0
        return max(0.0, times[0] + WINDOW_S - time.monotonic())

    def add(self, address: str) -> None:
        network = _network(address)
        times = self._times.setdefault(network, deque(maxlen=MOST_FAILURES))
        times.append(time.monotonic())
        self._times.move_to_end(network)
        while len(self._times) > _MOST_ADDRESSES:
            self._times.popitem(last=False)


def _network(address: str) -> str:
    try:
        parsed = ip_address(address)
    except ValueError:
        return address[:64]
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or int(parsed) >> 64)


VARIABLE = "EMBEDDB_TOKEN"
#: Fewest characters of a token, fewest different ones, and most characters.
FEWEST, _FEWEST_KINDS, _MOST = 24, 10, 512
#: Lifetime of a browser session, in seconds.
SESSION_S = 30 * 24 * 3600
_MAKE = "create one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))' > FILE"


def read_token(file: str) -> str:
    """The token in a file that others may not read, else in `EMBEDDB_TOKEN`; empty if there is
    none.

    Raises: UsageError for a token that is easy to guess, or that others can read.
    """
    if not file:
        where, text = VARIABLE, os.environ.get(VARIABLE, "")
        return _sound(text.strip(), where) if text else ""
    try:
        with Path(file).open("rb") as token_file:
            about = os.fstat(token_file.fileno())
            raw = token_file.read(_MOST + 100) if stat.S_ISREG(about.st_mode) else None
    except OSError as e:
        raise UsageError(f"{file}: {(e.strerror or str(e)).lower()}", hint=_MAKE) from None
    if raw is None:
        raise UsageError(f"{file}: not a file", hint=_MAKE)
    if about.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise UsageError(f"{file}: other users can read it", hint=f"chmod 600 {file}")
    return _sound(raw.decode("ascii", "replace").strip(), file)


def _sound(text: str, where: str) -> str:
    if len(text) < FEWEST or len(set(text)) < _FEWEST_KINDS:
        raise UsageError(f"{where}: a token needs {FEWEST} random characters or more", hint=_MAKE)
    if len(text) > _MOST or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(
            f"{where}: a token has at most {_MOST} printable ASCII characters and no spaces"
        )
    return text


class Token:
    """The access token, compared in constant time. A browser has a session instead: a date signed
    with the token, so that every worker accepts it and a new token ends it."""

    def __init__(self, text: str) -> None:
        self._digest = hashlib.sha256(text.encode()).digest()
        key = hashlib.sha256(b"embeddb session\0" + text.encode()).digest()
        self._signer = TimestampSigner(key, digest_method=hashlib.sha256)
        #: Name of the cookie: two servers of one machine share a browser's cookies.
        self.cookie = f"embeddb-{hashlib.sha256(key).hexdigest()[:12]}"

    def is_it(self, text: str) -> bool:
        digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        return hmac.compare_digest(digest, self._digest)

    def session(self) -> str:
        """Value of a browser's session cookie."""
        return self._signer.sign("session").decode("ascii")

    def is_session(self, text: str) -> bool:
        try:
            return self._signer.unsign(text, max_age=SESSION_S) == b"session"
        except (BadSignature, UnicodeError):
            return False


LOGIN = "/login"
#: Largest form, in bytes, and its time limit, in seconds.
_MOST_FORM, _FORM_S = 8192, 10.0
#: A form sent without a referrer has a null origin, and is refused.
_POLICY = {"referrer-policy": "same-origin"}
_LACKING = "this server needs a token"
_HINT = "send it as the header `Authorization: Bearer TOKEN`, or open the page in a browser"


class Gate:
    """Middleware inside the guard that requires the token, except for static files."""

    def __init__(self, app: ASGIApp, token: Token, address: Address) -> None:
        self._app, self._token, self._address = app, token, address
        self._failures = Failures()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/static/"):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scope["path"] == LOGIN:
            reply: Response | None = await self._login(request)
        elif self._has_session(request):
            reply = None
        elif scheme.lower() != "bearer":
            reply = self._asking(request)
        else:
            reply = self._tried(request, token.strip())
        await (self._app if reply is None else reply)(scope, receive, send)

    def _has_session(self, request: Request) -> bool:
        """True if any cookie of that name is a valid session: other sites may set one, too."""
        cookies = (
            part.strip().partition("=") for part in request.headers.get("cookie", "").split(";")
        )
        sessions = [value for name, _, value in cookies if name == self._token.cookie]
        return any(map(self._token.is_session, sessions[:4]))

    def _tried(self, request: Request, token: str) -> Response | None:
        """None for the right token; wrong ones are counted, and after some all are refused."""
        who = "" if request.client is None else request.client.host
        wait_s = self._failures.wait_s(who)
        if wait_s:
            more = {"Retry-After": str(int(wait_s) + 1)}
            return self._asking(request, 429, "too many wrong tokens: try again later", more)
        if self._token.is_it(token):
            return None
        self._failures.add(who)
        return self._asking(request, 401, "wrong token")

    def _asking(
        self,
        request: Request,
        status: int = 401,
        wrong: str = "",
        more: dict[str, str] | None = None,
    ) -> Response:
        """Request for the token: the login page for a page request, else a JSON document."""
        path = request.scope["path"]
        page = request.method == "GET" and not path.endswith(".json")
        if not (page or path == LOGIN) or "authorization" in request.headers:
            headers = {"www-authenticate": "Bearer", **(more or {})}
            document = {"error": wrong or _LACKING, "hint": _HINT}
            return JSONResponse(document, status, headers=headers)
        after = path + (f"?{request.url.query}" if request.url.query else "")
        if path == LOGIN:
            after = getattr(request.state, "after", "/")
        return self._page(status, wrong, after, more or {})

    def _page(self, status: int, wrong: str, after: str, more: dict[str, str]) -> Response:
        facts = {"wrong": wrong, "after": after, "action": self._address.root + LOGIN}
        body = render("login.html", root=self._address.root, f=facts)
        return HTMLResponse(body, status, headers={**_POLICY, **more})

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return self._page(200, "", "/", {})
        form = await _form(request)
        if form is None:
            return self._asking(request, 400, "not a form with a token")
        after = form.get("after", "")
        # Only a path on this server.
        inner = after.startswith("/") and not after.startswith(("//", "/\\"))
        inner = inner and after.isprintable() and after.isascii() and len(after) < 2000
        request.state.after = after if inner else "/"
        refused = self._tried(request, form.get("token", ""))
        if refused is not None:
            return refused
        reply = RedirectResponse(self._address.root + request.state.after, 303)
        reply.set_cookie(
            self._token.cookie,
            self._token.session(),
            max_age=SESSION_S,
            path=self._address.root or "/",
            secure=self._address.secure,
            httponly=True,
            samesite="strict",
        )
        return reply


async def _form(request: Request) -> dict[str, str] | None:
    """The fields of a small form; None for any other body."""
    body = b""
    try:
        with anyio.fail_after(_FORM_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_FORM:
                    return None
        fields = parse_qs(body.decode("utf-8"), keep_blank_values=True, max_num_fields=8)
    except (TimeoutError, ClientDisconnect, ValueError):
        return None
    return {name: values[0].strip() for name, values in fields.items()}
