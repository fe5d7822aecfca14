"""The REST API as a person's program would call it: the standard library, a token, and patience with a restart."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from project.demo.runner.errors import DemoFailed

PATIENCE = 60.0
"""Seconds for which one call is repeated while the server is away or answers 5xx."""

PAUSE = 0.5


class Refused(Exception):
    """The API understood the call and said no (4xx)."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{status} {body.get('code', '')}: {body.get('detail', body)}")
        self.status = status
        self.code = str(body.get("code", ""))


class Api:
    """Calls with one user's token. Every call may be repeated, so a POST needs a key or must be safe to say twice."""

    def __init__(self, base_url: str, token: str, *, tick: Callable[[], None]) -> None:
        """``tick`` runs before each try: it may raise to give up, or start a server again."""
        self._base_url = base_url
        self._token = token
        self._tick = tick

    def get(self, path: str) -> Any:
        """The decoded body; ``path`` may be a whole URL of the same server (a ``next`` link)."""
        return self._call("GET", path)

    def post(self, path: str, body: dict[str, Any], **headers: str) -> Any:
        """The decoded body."""
        return self._call("POST", path, json.dumps(body).encode(), headers)

    def _call(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Any:
        url = path if path.startswith(self._base_url + "/") else self._base_url + path
        limit = time.monotonic() + PATIENCE
        while True:
            self._tick()
            try:
                return self._once(method, url, body, headers or {})
            except HTTPError as error:
                with error:
                    text = error.read(4000).decode(errors="replace")
                if error.code < 500 and error.code != 429:
                    raise Refused(error.code, _decoded(text)) from None
                trouble = f"it answered {error.code}"
            except (URLError, OSError, http.client.HTTPException, json.JSONDecodeError) as error:
                trouble = str(error) or type(error).__name__
            if time.monotonic() > limit:
                raise DemoFailed(f"{method} {url} did not work for {PATIENCE:.0f} seconds: {trouble}")
            time.sleep(PAUSE)

    def _once(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> Any:
        everything = {"Authorization": f"Token {self._token}", "Accept": "application/json", **headers}
        if body is not None:
            everything["Content-Type"] = "application/json"
        request = Request(url, body, everything, method=method)  # noqa: S310  our own server
        with urlopen(request, timeout=30) as response:  # noqa: S310
            return json.load(response)


def _decoded(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return {"detail": text[:300]}
    return found if isinstance(found, dict) else {"detail": found}
