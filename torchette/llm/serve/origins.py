# SPDX-License-Identifier: BSD-3-Clause
# Decides which web pages may use a server. A browser sends requests for any page that the user opens: the Origin header names
# the page's site, and the Host header names the address that the page asked for, which DNS rebinding forges.
"""`Origins`: the hosts and origins that a server accepts."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

from torchette.errors import InputError
from torchette.llm.serve.refusal import Refusal

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def _split_port(netloc: str) -> tuple[str, str]:
    """The host without brackets, and ":port" or nothing."""
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d*)?", netloc.strip().lower())
    return (match[1].strip("[]").rstrip("."), match[2] or "") if match else (netloc, "")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Origins:
    """The hosts and origins that a server accepts.

    Args:
        host: the name or address that the server listens at.
        hosts: further names of the server, such as the name that a proxy uses.
        origins: other sites with pages that may use the server, such as "http://localhost:3000"; "*" for all.

    Raises:
        InputError: an origin or a host is malformed.
    """

    def __init__(self, host: str, hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> None:
        self.origins = {origin.lower().rstrip("/") for origin in origins}
        for origin in self.origins:
            if origin not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+", origin):
                raise InputError(
                    f"the origin {origin!r} is malformed: an origin is a scheme and a host, without a path",
                    hints=["http://localhost:3000"],
                )
        for name in hosts:
            if not re.fullmatch(r"[\w.-]+", name) and not _is_address(name.strip("[]")):
                raise InputError(
                    f"the host {name!r} is malformed: a host is a name without scheme, port and path",
                    hints=["model.example.org"],
                )
        machine = socket.gethostname().lower()
        self._hosts = {
            "localhost", machine, f"{machine}.local", *(_split_port(name)[0] for name in (host, *hosts)),
        }  # fmt: skip

    def check(self, host: str | None, origin: str | None, site: str | None, *, writes: bool) -> None:
        """Checks the headers of a request.

        Args:
            host: the header Host. An address is always accepted, because DNS rebinding needs a name.
            origin: the header Origin.
            site: the header Sec-Fetch-Site, for browsers that send no Origin with a form.
            writes: whether the request can change the server or use the model.

        Raises:
            Refusal: status 403; code "forbidden_host" or "forbidden_origin".
        """
        if host is not None:
            name = _split_port(host)[0]
            if name not in self._hosts and not name.endswith(".localhost") and not _is_address(name):
                raise Refusal(
                    403,
                    f"the host {name[:200]!r} is not a name of this server: start it with --allow-host NAME to add a name",
                    name="forbidden_host",
                )
        if origin is not None and not self._is_same(host, origin) and not self.allows(origin):
            raise Refusal(
                403,
                f"pages of {origin[:200]!r} may not use this server: start it with --cors-origin {origin[:200]} to allow them",
                name="forbidden_origin",
            )
        if origin is None and writes and site in ("cross-site", "same-site") and "*" not in self.origins:
            raise Refusal(403, "pages of another origin may not use this server", name="forbidden_origin")

    def allows(self, origin: str) -> bool:
        """Whether pages of another origin may use the server."""
        return "*" in self.origins or origin.lower() in self.origins

    def _is_same(self, host: str | None, origin: str) -> bool:
        """Whether the page comes from this server, with TLS of a proxy or without."""
        scheme, mark, netloc = origin.partition("://")
        default = _DEFAULT_PORTS.get(scheme.lower())
        if host is None or not mark or default is None:
            return False
        (name, port), (own_name, own_port) = _split_port(netloc), _split_port(host)
        return name == own_name and (port or default) == (own_port or default)
