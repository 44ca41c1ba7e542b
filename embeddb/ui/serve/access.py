"""Who may see the page: where it listens and how others reach it, what every request passes first,
and the token that is asked for.

A host that is this server, no other site's hand in what changes something, headers that forbid a
page to load or run anything from elsewhere; then the token, as a header of every request, or once
on a page after which the browser has a session."""

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
    """`host` is an IP address of this machine, `public` the URL under which a reverse proxy shows
    the page, empty without one.

    Raises: UsageError for a host that is no address, or a URL that can be none of a page.
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
                hint="127.0.0.1, 0.0.0.0 for all of this machine, or one of them",
            ) from None

    @property
    def others_see_it(self) -> bool:
        """Whether anybody but this machine's users can ask."""
        return bool(self.public) or not self.ip.is_loopback

    def url(self, port: int) -> str:
        """Where to look, with a slash at its end."""
        host = f"[{self.host}]" if self.ip.version == 6 else self.host
        return self.public.rstrip("/") + "/" if self.public else f"http://{host}:{port}/"

    # -- as others see it ------------------------------------------------------------------

    @cached_property
    def _public(self) -> tuple[str, str, str]:
        """Scheme, host (with a port that is not the usual one) and path, or three empty texts."""
        if not self.public:
            return "", "", ""
        refused = UsageError(
            f"--public-url {self.public[:200]}: not the address of a page",
            hint="as in https://tuning.example.org/embeddb",
        )
        try:
            parts = urlsplit(self.public)
            scheme, name, port = parts.scheme, parts.hostname or "", parts.port
        except ValueError:
            raise refused from None
        path = parts.path.rstrip("/")
        sound = (
            scheme in _PORTS
            and (_NAME.fullmatch(name) or _is_ip(name))
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
        """What comes before every path of ours: `/embeddb`, or nothing."""
        return self._public[2]

    @property
    def secure(self) -> bool:
        """Whether nobody on the way can read what is sent."""
        return self._public[0] == "https"

    # -- what a request says ---------------------------------------------------------------

    def takes(self, host: str, reached: str) -> bool:
        """Whether a Host header means us; `reached` is the address that the connection came to.

        A name that is not ours may have been made to point here (DNS rebinding); an address
        cannot, and it has to be the one that was asked for.
        """
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        if self._is_public(host):
            return True
        name = found[1].strip("[]").lower()
        if self.ip.is_loopback:
            return name in ("localhost", self.host)
        if self.ip.is_unspecified:
            return _is_ip(name) and _plain(name) == _plain(reached)
        return _is_ip(name) and _plain(name) == _plain(self.host)

    def may_ask(self, origin: str, host: str) -> bool:
        """Whether a page of that origin may ask what changes something: one that came from here."""
        if origin.lower() == self.origin:
            return bool(origin)
        return not self._is_public(host) and origin.lower() == f"http://{host}".lower()

    def _is_public(self, host: str) -> bool:
        scheme, public, _ = self._public
        usual = f":{_PORTS[scheme]}" if scheme else ""
        return bool(public) and host.lower().removesuffix(usual) == public.lower()


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _plain(text: str) -> str:
    """One text for an address: an IPv4 address may come as IPv6."""
    try:
        found = ip_address(text)
    except ValueError:
        return ""
    inner = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(inner or found)


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


#: Wrong tokens from one address within so many seconds.
MOST_FAILURES, WINDOW_S = 10, 60.0
#: Addresses that are remembered.
_MOST_ADDRESSES = 10_000


class Failures:
    """By address; of IPv6 by network, of which one user has all addresses. Of one process."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Seconds until an address may try again; 0 where it may."""
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
        found = ip_address(address)
    except ValueError:
        return address[:64]
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or int(found) >> 64)


VARIABLE = "EMBEDDB_TOKEN"
#: Characters that a token has to have, and how many of them have to differ.
FEWEST, _FEWEST_KINDS, _MOST = 24, 10, 512
#: Seconds for which a browser need not give it again.
SESSION_S = 30 * 24 * 3600
_MAKE = "make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))' > FILE"


def read_token(file: str) -> str:
    """The token in a file that others may not read, else in `EMBEDDB_TOKEN`; empty if nobody gave
    one.

    Raises: UsageError for one that can be guessed, or that others can read.
    """
    if not file:
        where, text = VARIABLE, os.environ.get(VARIABLE, "")
        return _sound(text.strip(), where) if text else ""
    try:
        with Path(file).open("rb") as told:
            about = os.fstat(told.fileno())
            raw = told.read(_MOST + 100) if stat.S_ISREG(about.st_mode) else None
    except OSError as e:
        raise UsageError(f"{file}: {(e.strerror or str(e)).lower()}", hint=_MAKE) from None
    if raw is None:
        raise UsageError(f"{file}: not a file", hint=_MAKE)
    if about.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise UsageError(f"{file}: everybody here can read it", hint=f"chmod 600 {file}")
    return _sound(raw.decode("ascii", "replace").strip(), file)


def _sound(text: str, where: str) -> str:
    if len(text) < FEWEST or len(set(text)) < _FEWEST_KINDS:
        raise UsageError(f"{where}: a token needs {FEWEST} random characters or more", hint=_MAKE)
    if len(text) > _MOST or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"{where}: a token is a word of at most {_MOST} letters and digits")
    return text


class Token:
    """Compared in a time that tells nothing. A browser keeps a session instead of it: a date,
    signed by the token, so that every worker knows it and another token ends it."""

    def __init__(self, text: str) -> None:
        self._digest = hashlib.sha256(text.encode()).digest()
        key = hashlib.sha256(b"embeddb session\0" + text.encode()).digest()
        self._signer = TimestampSigner(key, digest_method=hashlib.sha256)
        #: Of the cookie: two servers of one machine share a browser's cookies.
        self.cookie = f"embeddb-{hashlib.sha256(key).hexdigest()[:12]}"

    def is_it(self, given: str) -> bool:
        digest = hashlib.sha256(given.encode("utf-8", "replace")).digest()
        return hmac.compare_digest(digest, self._digest)

    def session(self) -> str:
        """What a browser keeps."""
        return self._signer.sign("session").decode("ascii")

    def is_session(self, given: str) -> bool:
        try:
            return self._signer.unsign(given, max_age=SESSION_S) == b"session"
        except (BadSignature, UnicodeError):
            return False


LOGIN = "/login"
#: Bytes of the form, and seconds in which it must have come.
_MOST_FORM, _FORM_S = 8192, 10.0
#: A form that is sent without a referrer says that it comes from nowhere, and is refused.
_POLICY = {"referrer-policy": "same-origin"}
_LACKING = "this server asks for a token"
_HINT = "send it as the header `Authorization: Bearer TOKEN`, or open the page in a browser"


class Gate:
    """Wraps the application, within the guard. Files of the program itself are nobody's secret."""

    def __init__(self, app: ASGIApp, token: Token, address: Address) -> None:
        self._app, self._token, self._address = app, token, address
        self._failures = Failures()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/static/"):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        if scope["path"] == LOGIN:
            reply: Response | None = await self._login(request)
        elif self._has_session(request):
            reply = None
        else:
            reply = self._by_header(request)
        await (self._app if reply is None else reply)(scope, receive, send)

    def _has_session(self, request: Request) -> bool:
        """Somebody else may have given the browser one of that name, too: any will do."""
        found = (
            part.strip().partition("=") for part in request.headers.get("cookie", "").split(";")
        )
        given = [value for name, _, value in found if name == self._token.cookie]
        return any(map(self._token.is_session, given[:4]))

    def _by_header(self, request: Request) -> Response | None:
        """None where the header has the token."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return self._asking(request)
        return self._tried(request, given.strip())

    def _tried(self, request: Request, given: str) -> Response | None:
        """None for the token; a wrong one counts, and after some nobody looks any more."""
        who = "" if request.client is None else request.client.host
        wait_s = self._failures.wait_s(who)
        if wait_s:
            more = {"Retry-After": str(int(wait_s) + 1)}
            return self._asking(request, 429, "too many wrong tokens: try again later", more)
        if self._token.is_it(given):
            return None
        self._failures.add(who)
        return self._asking(request, 401, "that is not the token")

    def _asking(
        self,
        request: Request,
        status: int = 401,
        wrong: str = "",
        more: dict[str, str] | None = None,
    ) -> Response:
        """For the token: a page for who asked for one, and else a document."""
        path = request.scope["path"]
        page = request.method == "GET" and not path.endswith(".json")
        if not (page or path == LOGIN) or "authorization" in request.headers:
            headers = {"www-authenticate": "Bearer", **(more or {})}
            told = {"error": wrong or _LACKING, "hint": _HINT}
            return JSONResponse(told, status, headers=headers)
        after = path + (f"?{request.url.query}" if request.url.query else "")
        if path == LOGIN:
            after = getattr(request.state, "after", "/")
        return self._page(status, wrong, after, more or {})

    def _page(self, status: int, wrong: str, after: str, more: dict[str, str]) -> Response:
        found = {"wrong": wrong, "after": after, "action": self._address.root + LOGIN}
        body = render("login.html", root=self._address.root, f=found)
        return HTMLResponse(body, status, headers={**_POLICY, **more})

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return self._page(200, "", "/", {})
        form = await _form(request)
        if form is None:
            return self._asking(request, 400, "that is no form with a token")
        request.state.after = _inner(form.get("after", ""))
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
    """The fields of a small form; None for what is none."""
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


def _inner(path: str) -> str:
    """A path of ours: what leads elsewhere, or is none, is the first page."""
    sound = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if sound and path.isascii() and len(path) < 2000 else "/"
