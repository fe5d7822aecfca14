"""One workflow instance as the REST API shows it, turned into a line of text for each change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from project.demo.runner.client import Api

STUCK = ("errored", "terminated", "paused")
"""Statuses that a person has to do something about, or nobody can."""

SECONDS_PER_LOOK = 1
"""The server holds a look open for at most this long while nothing happens."""


@dataclass
class Watched:
    """An instance that was started through the API: what is known of it, and what has been said about it."""

    api: Api
    workflow: str
    instance_id: str
    seen: dict[str, str] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.workflow} {self.instance_id}"

    @property
    def path(self) -> str:
        """Its address in the API."""
        return f"/api/workflows/{self.workflow}/instances/{self.instance_id}/"

    @property
    def status(self) -> str:
        """As last seen."""
        return str(self.detail.get("status", "unknown"))

    @property
    def complete(self) -> bool:
        """Whether it has ended well."""
        return self.status == "complete"

    @property
    def stuck(self) -> bool:
        """Whether it does not go on by itself."""
        return self.status in STUCK

    @property
    def waits(self) -> list[dict[str, Any]]:
        """Its open waits: each with ``pending_event`` and ``name``."""
        return list(self.detail.get("waiting_for") or [])

    def look(self, say: Callable[[str], None]) -> None:
        """Ask once and say what has changed."""
        self.detail = self.api.get(f"{self.path}?wait={SECONDS_PER_LOOK}")
        for step in all_pages(self.api, f"{self.path}steps/"):
            self._changed(say, f"step {step['id']}", describe(step))
        waits = "".join(f", waits for {wait['name']!r}" for wait in self.waits)
        trouble = f": {self.trouble()}" if self.stuck else ""
        self._changed(say, "status", f"{self.status}{waits}{trouble}")

    def trouble(self) -> str:
        """The error or reason that it shows, in one line."""
        error = self.detail.get("error") or {}
        text = (
            f"{error.get('type', '')}: {error.get('message', '')}"
            if error
            else str(self.detail.get("blocked") or "no reason given")
        )
        return " ".join(text.split())

    def _changed(self, say: Callable[[str], None], what: str, text: str) -> None:
        if self.seen.get(what) != text:
            self.seen[what] = text
            say(f"{self}: {text}")


def describe(step: dict[str, Any]) -> str:
    """One step in a few words: its kind where it is no plain step, name, status, and attempts where it took several."""
    attempts = int(step.get("attempts") or 0)
    count = int(step.get("count") or 1)
    name = repr(step["name"]) if count == 1 else f"{step['name']!r} #{count}"
    kind = "step" if step["kind"] == "do" else str(step["kind"]).replace("_", " ")
    return f"{kind} {name} {step['status']}" + (f", attempt {attempts}" if attempts > 1 else "")


def all_pages(api: Api, path: str) -> list[dict[str, Any]]:
    """The rows of a list, whether the API gives them at once or page by page."""
    rows: list[dict[str, Any]] = []
    address: str | None = path
    while address:
        answer = api.get(address)
        if isinstance(answer, list):
            return rows + answer
        rows += answer["results"]
        address = answer.get("next")
    return rows
