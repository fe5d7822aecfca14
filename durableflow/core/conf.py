"""The ``DURABLEFLOW`` setting as a frozen, typed object that follows ``override_settings`` (design 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cached_property
from typing import Any, Final

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from durableflow.core.durations import Duration, parse_duration
from durableflow.core.retries import DEFAULT_RETRIES, Retention, Retries

MIB: Final = 1024 * 1024
DEFAULT_RETENTION: Final = Retention(success="30 days", error="90 days")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Sizes and counts that an instance may reach (design 6, "Codec").

    ``steps``: ``step.do`` records per run; ``records``: records of all kinds per run; ``bytes``: outputs of a
    run; ``output``, ``params``, ``payload``: one stored value, in bytes of UTF-8; ``retries``: the largest retry limit
    of a step.
    """

    steps: int = 10_000
    records: int = 25_000
    bytes: int = 100 * MIB
    output: int = MIB
    params: int = MIB
    payload: int = MIB
    retries: int = 10_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """``settings.DURABLEFLOW`` with its defaults (api.md, "Settings").

    STEP_RETRIES, STEP_TIMEOUT: for steps that say nothing of their own. EVENT_TIMEOUT: how long a wait lasts by default
    (None: for ever). RETENTION: how long finished instances are kept. LEASE: seconds for which a claim holds without
    renewal. SHUTDOWN_GRACE: seconds that a running body has to end when its process is asked to stop. THREADS:
    instances that one process executes at the same time. LIMITS: see ``Limits``. REDACT: names of keys whose values no
    screen and no API shows. BASE_URL: what decision links start with. CLUSTER: the ALT_CLUSTERS entry that
    ``durableflow_cluster`` runs. DISPATCH: dotted path of a function called after each commit that made work due.
    PREPARE: whether PostgreSQL statements are prepared. LISTEN_DATABASE: alias whose direct connection LISTENs (None:
    the app's own).
    """

    STEP_RETRIES: Retries = DEFAULT_RETRIES
    STEP_TIMEOUT: Duration = "10 minutes"
    EVENT_TIMEOUT: Duration | None = "24 hours"
    RETENTION: Retention = DEFAULT_RETENTION
    LEASE: float = 15
    SHUTDOWN_GRACE: float = 10
    THREADS: int = 1
    BRANCH_THREADS: int = 8
    LIMITS: Limits = field(default_factory=Limits)
    REDACT: tuple[str, ...] = ()
    BASE_URL: str = ""
    CLUSTER: str | None = None
    DISPATCH: str | None = None
    PREPARE: bool = True
    LISTEN_DATABASE: str | None = None

    @cached_property
    def step_timeout(self) -> timedelta:
        """STEP_TIMEOUT as a timedelta."""
        return parse_duration(self.STEP_TIMEOUT, what="DURABLEFLOW['STEP_TIMEOUT']", positive=True)

    @cached_property
    def event_timeout(self) -> timedelta | None:
        """EVENT_TIMEOUT as a timedelta, or None: for ever."""
        if self.EVENT_TIMEOUT is None:
            return None
        return parse_duration(self.EVENT_TIMEOUT, what="DURABLEFLOW['EVENT_TIMEOUT']")


def _known(cls: type, given: Mapping[str, Any], where: str) -> None:
    names = {item.name for item in fields(cls)}
    unknown = sorted(set(given) - names)
    if unknown:
        raise ImproperlyConfigured(
            f"{where} has unknown keys: {', '.join(unknown)}. Known keys: {', '.join(sorted(names))}."
        )


def build(given: Any) -> Settings:
    """Check the dict of the project's settings and make the object of it.

    Raises ImproperlyConfigured that names the key for an unknown key or a value that does not fit.
    """
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"DURABLEFLOW must be a dict, not {type(given).__name__}.")
    _known(Settings, given, "DURABLEFLOW")
    values = dict(given)
    if "LIMITS" in values:
        if not isinstance(values["LIMITS"], Mapping):
            raise ImproperlyConfigured(f"DURABLEFLOW['LIMITS'] must be a dict, not {values['LIMITS']!r}.")
        _known(Limits, values["LIMITS"], "DURABLEFLOW['LIMITS']")
        values["LIMITS"] = Limits(**values["LIMITS"])
    try:
        if "REDACT" in values:
            values["REDACT"] = _names(values["REDACT"])
        if "STEP_RETRIES" in values:
            given_retries = Retries.coerce(values["STEP_RETRIES"])
            values["STEP_RETRIES"] = given_retries.merge(DEFAULT_RETRIES) if given_retries else DEFAULT_RETRIES
        if isinstance(values.get("RETENTION"), Retention):
            values["RETENTION"] = values["RETENTION"].merge(DEFAULT_RETENTION)
        result = Settings(**values)
        _check(result)
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"DURABLEFLOW: {error}") from error
    return result


def _names(given: Any) -> tuple[str, ...]:
    """A single text is refused: ``("password")`` would hide nothing but keys of one letter."""
    if not isinstance(given, list | tuple | set | frozenset) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"REDACT must be a list of names of keys, such as ['password'], not {given!r}.")
    return tuple(given)


def _check(result: Settings) -> None:
    _ = result.step_timeout, result.event_timeout
    base_url: object = result.BASE_URL
    if not isinstance(base_url, str):
        raise ValueError(f"BASE_URL must be a text, such as 'https://shop.example', not {base_url!r}.")
    lease: object = result.LEASE
    if isinstance(lease, bool) or not isinstance(lease, int | float) or not 1 <= lease <= 3600:
        raise ValueError(f"LEASE must be a number of seconds from 1 to 3600, not {lease!r}.")
    grace: object = result.SHUTDOWN_GRACE
    if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace <= 86400:
        raise ValueError(f"SHUTDOWN_GRACE must be a number of seconds from 0 to 86400, not {grace!r}.")
    threads: object = result.THREADS
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1000:
        raise ValueError(f"THREADS must be a whole number from 1 to 1000, not {threads!r}.")
    branches: object = result.BRANCH_THREADS
    if isinstance(branches, bool) or not isinstance(branches, int) or not 0 <= branches <= 1000:
        raise ValueError(f"BRANCH_THREADS must be a whole number from 0 to 1000, not {branches!r}.")
    for item in fields(result.LIMITS):
        limit = getattr(result.LIMITS, item.name)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise ValueError(f"LIMITS['{item.name}'] must be a whole number of at least 0, not {limit!r}.")
    if not isinstance(result.RETENTION, Retention):
        raise ValueError("RETENTION must be a Retention(success=..., error=...).")


_current: Settings | None = None


def get_settings() -> Settings:
    """The settings in force now; cheap enough to call at each use.

    Raises ImproperlyConfigured for a wrong ``DURABLEFLOW`` dict.
    """
    global _current
    if _current is None:
        _current = build(getattr(django_settings, "DURABLEFLOW", {}))
    return _current


def _forget(*, setting: str, **_kwargs: Any) -> None:
    global _current
    if setting == "DURABLEFLOW":
        _current = None


setting_changed.connect(_forget, dispatch_uid="durableflow.conf")
