"""Where the server listens, and under which address others see it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from embeddb.core.errors import UsageError

__all__ = ["LOOPBACK", "Address"]

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
