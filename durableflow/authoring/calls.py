"""Durable calls as values: what a facade hands to the engine (design 6, "sync and async facades share it")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Final

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import Group
from django.db import models
from django.forms import Form
from django.utils.functional import Promise

from durableflow.authoring.signatures import check_one_argument
from durableflow.authoring.undo import AnyRollback, coerce_rollback
from durableflow.core.durations import TEN_YEARS, parse_duration
from durableflow.core.exceptions import InvalidConfig, LimitExceeded
from durableflow.core.names import check_event_type, check_step_name, check_text
from durableflow.core.retries import Retries
from durableflow.core.statuses import StepKind
from durableflow.models import forms

TEXT_SIZE: Final = 255  # of columns


class Default:
    """The type of ``DEFAULT``."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = Default()


def checked(step: str, field: str, check: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a check of one option; its ValueError becomes an error that names step and field (case RET-09)."""
    try:
        return check(*args, **kwargs)
    except (ValueError, TypeError, OverflowError) as error:
        told = str(error)
        named = told if told.startswith(f"{field} ") else f"{field}: {told}"
        raise InvalidConfig(f"step {step!r}: {named}", step=step, field=field) from error


@dataclass(slots=True, kw_only=True)
class Call:
    """One durable call. Nobody changes it; it is not frozen because that makes one several times as dear, for each step."""

    kind: ClassVar[str]
    name: str

    def check(self) -> None:
        """Raise ValueError or LimitExceeded for a bad name."""
        check_step_name(self.name)


@dataclass(slots=True, kw_only=True)
class DoCall(Call):
    """``step.do``: a body with its options. ``retries`` and ``timeout`` None: inherited."""

    kind: ClassVar[str] = StepKind.DO.value
    body: Callable[[], Any]
    retries: Retries | None = None
    timeout: timedelta | None = None
    rollback: AnyRollback | None = None
    sensitive: bool = False
    atomic: bool = False


@dataclass(slots=True, kw_only=True)
class SleepCall(Call):
    """``step.sleep``."""

    kind: ClassVar[str] = StepKind.SLEEP.value
    duration: timedelta


@dataclass(slots=True, kw_only=True)
class SleepUntilCall(Call):
    """``step.sleep_until``."""

    kind: ClassVar[str] = StepKind.SLEEP_UNTIL.value
    when: datetime


@dataclass(slots=True, kw_only=True)
class WaitCall(Call):
    """``step.wait_for_event`` and, through its subclass, ``step.wait_for_approval``. ``timeout``: None for ever,
    DEFAULT the setting."""

    kind: ClassVar[str] = StepKind.WAIT_FOR_EVENT.value
    types: tuple[str, ...] = ()
    timeout: timedelta | Default | None = DEFAULT
    notify: Callable[[Any], object] | None = None


@dataclass(slots=True, kw_only=True)
class ApprovalCall(WaitCall):
    """``step.wait_for_approval``: how the wait is shown and who may decide it."""

    kind: ClassVar[str] = StepKind.WAIT_FOR_APPROVAL.value
    title: str = ""
    description: str = ""
    context: Mapping[str, Any] | None = None
    form: str = ""
    users: tuple[Any, ...] = ()
    groups: tuple[Any, ...] = ()
    permission: str = ""
    allow_requester: bool = True


@dataclass(slots=True, kw_only=True)
class NowCall(Call):
    """``step.now``."""

    kind: ClassVar[str] = StepKind.NOW.value


def do_call(
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    retries: Any = None,
    timeout: Any = None,
    rollback: Any = None,
    sensitive: Any = False,
    atomic: Any = False,
) -> DoCall:
    """Check the options of ``step.do`` and make the call of them. Raises InvalidConfig that names step and field,
    ValueError for the name."""
    check_step_name(name)
    if not callable(fn):
        raise InvalidConfig(f"step {name!r}: the body must be callable, not {fn!r}.", step=name, field="fn")
    return DoCall(
        name=name,
        body=partial(fn, *args) if args else fn,
        retries=None if retries is None else checked(name, "retries", Retries.coerce, retries),
        timeout=None if timeout is None else bound(name, timeout),
        rollback=None if rollback is None else checked(name, "rollback", coerce_rollback, rollback),
        sensitive=False if sensitive is False else flag(name, "sensitive", sensitive),
        atomic=False if atomic is False else flag(name, "atomic", atomic),
    )


def bound(name: str, timeout: Any) -> timedelta:
    """The timeout of an attempt or of a child: more than nothing."""
    given: timedelta = checked(
        name, "timeout", parse_duration, timeout, what="timeout", positive=True, maximum=TEN_YEARS
    )
    return given


def flag(name: str, field: str, value: Any) -> bool:
    """A switch: a text like "no" would count as true."""
    if not isinstance(value, bool):
        raise InvalidConfig(f"step {name!r}: {field} must be True or False, not {value!r}.", step=name, field=field)
    return value


def sleep_call(name: str, duration: Any) -> SleepCall:
    """Check the options of ``step.sleep``."""
    check_step_name(name)
    return SleepCall(name=name, duration=checked(name, "duration", parse_duration, duration, maximum=TEN_YEARS))


def sleep_until_call(name: str, when: Any) -> SleepUntilCall:
    """Check the options of ``step.sleep_until``: an aware datetime or seconds since the epoch (case TIM-07)."""
    check_step_name(name)
    return SleepUntilCall(name=name, when=checked(name, "when", _moment, when))


def _moment(when: Any) -> datetime:
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise ValueError(
                f"{when!r} has no time zone. Give an aware datetime, for example with tzinfo=datetime.UTC."
            )
        return when.astimezone(UTC)
    if isinstance(when, bool) or not isinstance(when, int | float):
        raise ValueError(f"must be an aware datetime or seconds since the epoch, not {when!r}.")
    return datetime.fromtimestamp(when, UTC)


def _types(name: str, type: Any) -> tuple[str, ...]:
    given = (type,) if isinstance(type, str) else _several(name, "type", type)
    if not given:
        raise InvalidConfig(f"step {name!r}: type must name at least one event type.", step=name, field="type")
    return tuple(checked(name, "type", check_event_type, item) for item in given)


def _text(name: str, field: str, given: Any, most: int | None = None) -> str:
    text: str = checked(name, field, check_text, field, str(given) if isinstance(given, Promise) else given)
    if most is not None and len(text) > most:
        raise LimitExceeded.of(f"step {name!r}: {field}", len(text), most, unit="characters")
    return text


def _several(name: str, field: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, str | models.Model) or not isinstance(given, Iterable):
        raise InvalidConfig(f"step {name!r}: {field} must be a list, not {given!r}.", step=name, field=field)
    return tuple(given)


def _timeout(name: str, timeout: Any) -> Any:
    if timeout is None or isinstance(timeout, Default):
        return timeout
    return checked(name, "timeout", parse_duration, timeout, what="timeout", maximum=TEN_YEARS)


def _notify(name: str, notify: Any) -> Any:
    if notify is not None and not callable(notify):
        raise InvalidConfig(f"step {name!r}: notify must be callable, not {notify!r}.", step=name, field="notify")
    if notify is not None:
        checked(name, "notify", check_one_argument, notify, "notify", "the pending event")
    return notify


def event_call(name: str, type: Any, timeout: Any, notify: Any) -> WaitCall:
    """Check the options of ``step.wait_for_event``."""
    check_step_name(name)
    return WaitCall(name=name, types=_types(name, type), timeout=_timeout(name, timeout), notify=_notify(name, notify))


def approval_call(
    name: str,
    *,
    title: str,
    description: str,
    context: Mapping[str, Any] | None,
    form: type[Form] | None,
    users: Iterable[AbstractBaseUser | int],
    groups: Iterable[Group | str],
    permission: str,
    allow_requester: bool,
    timeout: Any,
    notify: Any,
) -> ApprovalCall:
    """Check the options of ``step.wait_for_approval``. Who is named is looked up when the wait opens."""
    check_step_name(name)
    if context is not None and not isinstance(context, Mapping):
        raise InvalidConfig(f"step {name!r}: context must be a dict, not {context!r}.", step=name, field="context")
    permission = _text(name, "permission", permission, TEXT_SIZE)
    if permission and "." not in permission:
        raise InvalidConfig(
            f"step {name!r}: permission must be written app_label.codename, not {permission!r}.",
            step=name,
            field="permission",
        )
    return ApprovalCall(
        name=name,
        title=_text(name, "title", title, TEXT_SIZE),
        description=_text(name, "description", description),
        context=None if context is None else dict(context),
        form="" if form is None else checked(name, "form", forms.path_of, form),
        users=_several(name, "users", users),
        groups=_several(name, "groups", groups),
        permission=permission,
        allow_requester=flag(name, "allow_requester", allow_requester),
        timeout=_timeout(name, timeout),
        notify=_notify(name, notify),
    )
