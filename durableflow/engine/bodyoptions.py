"""What an attempt of a body may do: retries, time, secrecy, one transaction (design 5)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

from django.db import connections

from durableflow.authoring.calls import DoCall
from durableflow.authoring.group_calls import MapCall
from durableflow.core import codec
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import InvalidConfig
from durableflow.core.retries import Retries
from durableflow.engine.journal import Record
from durableflow.engine.session import Session

ATOMIC_SHARE: Final = 3  # an atomic body on SQLite keeps the renewal out, so it must end within this part of the lease


@dataclass(frozen=True)
class BodyOptions:
    """The resolved options of a body; what the first execution stored wins over what the code says now (design 5)."""

    retries: Retries
    timeout: float
    sensitive: bool
    atomic: bool
    rollback: bool = False

    def to_config(self) -> dict[str, Any]:
        """What the record stores and ``get_step_context().config`` shows."""
        return {
            "retries": self.retries.to_config(),
            "timeout": self.timeout,
            "sensitive": self.sensitive,
            "atomic": self.atomic,
            "rollback": self.rollback,
        }


def options_of(session: Session, step: str, record: Record | None, call: DoCall | MapCall) -> BodyOptions:
    """The options of a ``do``, or of the steps of a ``map``; see ``resolve``."""
    rollback: Any = call.rollback
    if rollback is not None:  # a handler that cannot run must be heard of before there is something to undo
        _check_limit(step, "rollback: retries", session.options.retries_for(rollback.retries))
    handled = rollback is not None
    return resolve(session, step, record, call.retries, call.timeout, call.sensitive, call.atomic, handled)


def _check_limit(step: str, field: str, retries: Retries) -> None:
    maximum = get_settings().LIMITS.retries
    if (retries.limit or 0) > maximum:
        raise InvalidConfig(
            f"step {step!r}: {field}: limit {retries.limit} is above DURABLEFLOW['LIMITS'] retries {maximum}.",
            step=step,
            field=field,
        )


def resolve(
    session: Session,
    step: str,
    record: Record | None,
    retries: Retries | None,
    timeout: timedelta | None,
    sensitive: bool,
    atomic: bool,
    rollback: bool = False,
) -> BodyOptions:
    """Merge the step's options with Meta, settings and what is recorded. ``rollback``: whether the call has a handler. Raises
    InvalidConfig that names step and field."""
    live = session.options.retries_for(retries)
    seconds = session.options.timeout_for(timeout).total_seconds()
    _check_limit(step, "retries", live)
    if record is not None and record.config is not None:
        stored = session.decode(record.config, record.identity)
        with session.reading(record.identity):
            return BodyOptions(
                Retries.from_config(stored["retries"], live),
                float(stored["timeout"]),
                sensitive or record.sensitive,
                bool(stored["atomic"]),
                bool(stored.get("rollback", False)),
            )
    if atomic and connections[session.lease.using].vendor == "sqlite":
        longest = get_settings().LEASE / ATOMIC_SHARE
        if timeout is not None and seconds > longest:
            raise InvalidConfig(
                f"step {step!r}: timeout: an atomic step on SQLite may take at most a third of the lease, "
                f"{longest:g} seconds, not {seconds:g}: "
                "it keeps everybody else from writing.",
                step=step,
                field="timeout",
            )
        seconds = min(seconds, longest)
    return BodyOptions(live, seconds, sensitive, atomic, rollback)


def config_text(options: BodyOptions) -> str:
    """The stored form of options. A delay function is the author's object: it need not be hashable, and is not kept."""
    return codec.dumps(options.to_config()) if callable(options.retries.delay) else _plain_config_text(options)


@lru_cache(maxsize=256)
def _plain_config_text(options: BodyOptions) -> str:
    """The same for options that are values: most steps of a workflow have equal ones."""
    return codec.dumps(options.to_config())
