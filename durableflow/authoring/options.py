"""``Meta`` of a workflow: merged key by key along the MRO (design 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from durableflow.authoring.schedule import Schedule, check_schedules
from durableflow.core.conf import get_settings
from durableflow.core.durations import TEN_YEARS, Duration, parse_duration
from durableflow.core.names import check_text, check_workflow_name, kebab
from durableflow.core.retries import Retention, Retries
from durableflow.models.instance_fields import Priority

MAX_KEY: Final = 190
"""Characters of a concurrency key: with the longest name of a workflow before it, it fits into its column."""
NOT_INHERITED: Final = frozenset({"name", "abstract", "previous_names"})


class WorkflowOptions:
    """Optional typed base of ``Meta``.

    ``abstract``: only a base of others. ``name``: default the class name in kebab-case. ``previous_names``: names that it had
    before; instances stored under them are its own. ``version``: an int that grows when instances must not go back to older code:
    they are of the highest version that has created or executed them. ``step_retries``, ``step_timeout``: for steps that say
    nothing of their own. ``max_duration``: of a whole run. ``retention``: how long finished instances are kept. ``priority``:
    which due instances are claimed first. ``max_concurrency``: how many instances are executed at the same time, in all
    clusters together; one that waits or sleeps does not count. ``concurrency_key``: a function of the params that gives
    a text: then the limit holds for each text by itself; None: this instance is not limited. ``schedules``: when it starts by
    itself, as ``Schedule(...)`` or cron lines; inherited from abstract bases alone, since a subclass of a workflow that is
    scheduled would be started beside it.
    """

    abstract: bool = False
    name: str = ""
    previous_names: Sequence[str] = ()
    version: int = 0
    step_retries: Retries | int | None = None
    step_timeout: Duration | None = None
    max_duration: Duration | None = None
    retention: Retention | None = None
    priority: Priority = Priority.NORMAL
    max_concurrency: int | None = None
    concurrency_key: Callable[[Any], str | None] | None = None
    schedules: Sequence[Schedule | str] = ()


KEYS: Final = frozenset(key for key in vars(WorkflowOptions) if not key.startswith("_"))


@dataclass(frozen=True, kw_only=True)
class Options:
    """The resolved Meta of one workflow class."""

    name: str
    abstract: bool
    version: int
    step_retries: Retries | None
    step_timeout: timedelta | None
    max_duration: timedelta | None
    retention: Retention | None
    priority: int
    max_concurrency: int | None = None
    concurrency_key: Callable[[Any], str | None] | None = None
    previous_names: tuple[str, ...] = ()
    schedules: tuple[Schedule, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which its instances are stored: the present one first."""
        return (self.name, *self.previous_names)

    def limit_key(self, params: Any) -> str:
        """The key whose slots an instance with these params needs (design 4, "Lock order"): the workflow's name, and after
        a colon what ``concurrency_key`` gives; '' where it is not limited.

        ``params`` are frozen, as ``run`` gets them. Raises ValueError (LimitExceeded) that names workflow and key where the
        function fails or gives no text.
        """
        if self.max_concurrency is None:
            return ""
        if self.concurrency_key is None:
            return self.name
        what = f"concurrency_key of workflow {self.name!r}"
        try:
            key = self.concurrency_key(params)
        except Exception as error:
            raise ValueError(f"The {what} cannot be had of these params: {type(error).__name__}: {error}") from error
        if key is None:
            return ""
        text: object = key  # whatever an untyped function gives
        if not isinstance(text, str) or not text:
            raise ValueError(f"The {what} must be a text of at least one character, or None for no limit, not {key!r}.")
        return f"{self.name}:{check_text(f'The {what}', text, MAX_KEY)}"

    def present_key(self, key: str) -> str:
        """A stored concurrency key under the workflow's present name: instances of all its names share one limit."""
        name, colon, rest = key.partition(":")
        return f"{self.name}{colon}{rest}" if name in self.previous_names else key

    def previous_keys(self, key: str) -> list[str]:
        """The keys under which a limit was counted before the workflow got its present name."""
        _, colon, rest = key.partition(":")
        return [f"{name}{colon}{rest}" for name in self.previous_names]

    def retries_for(self, own: Retries | None) -> Retries:
        """The retry policy of a step: its own values over Meta's over the setting's."""
        base = get_settings().STEP_RETRIES
        if self.step_retries is not None:
            base = self.step_retries.merge(base)
        return base if own is None else own.merge(base)

    def timeout_for(self, own: timedelta | None) -> timedelta:
        """The time that one attempt of a step has."""
        return own or self.step_timeout or get_settings().step_timeout


def resolve(cls: type[Any]) -> Options:
    """Read and check the Meta classes along the MRO. Raises TypeError for unknown keys and wrong values, naming
    class and key."""
    given = _merged(cls)
    where = f"{cls.__module__}.{cls.__qualname__}.Meta"
    try:
        retries = Retries.coerce(given.get("step_retries"))
        timeout, duration = given.get("step_timeout"), given.get("max_duration")
        version, priority = given.get("version", 0), Priority(given.get("priority", Priority.NORMAL))
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise ValueError(f"version must be a whole number of at least 0, not {version!r}.")
        if given.get("retention") is not None and not isinstance(given["retention"], Retention):
            raise ValueError("retention must be a Retention(success=..., error=...).")
        name = check_workflow_name(given.get("name") or kebab(cls.__name__))
        return Options(
            name=name,
            previous_names=_previous_names(name, given.get("previous_names", ())),
            abstract=bool(given.get("abstract", False)),
            version=version,
            step_retries=retries,
            step_timeout=None if timeout is None else _parse("step_timeout", timeout),
            max_duration=None if duration is None else _parse("max_duration", duration),
            retention=given.get("retention"),
            priority=int(priority),
            schedules=check_schedules(given.get("schedules", ())),
            **_limit(given),
        )
    except ValueError as error:
        raise TypeError(f"{where}: {error}") from error


def _previous_names(name: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"previous_names must be a list of names, not {given!r}.")
    names = tuple(check_workflow_name(previous) for previous in given)
    for previous in names:
        if previous == name:
            raise ValueError(f"previous_names has the present name {name!r}.")
        if names.count(previous) > 1:
            raise ValueError(f"previous_names has {previous!r} twice.")
    return names


def _limit(given: dict[str, Any]) -> dict[str, Any]:
    maximum, key = given.get("max_concurrency"), given.get("concurrency_key")
    if maximum is not None and (isinstance(maximum, bool) or not isinstance(maximum, int) or maximum < 1):
        raise ValueError(f"max_concurrency must be a whole number of at least 1, not {maximum!r}.")
    if key is not None and not callable(key):
        raise ValueError(f"concurrency_key must be a function of the params, not {key!r}.")
    if key is not None and maximum is None:
        raise ValueError("concurrency_key needs max_concurrency: how many instances of one key may run at once.")
    return {"max_concurrency": maximum, "concurrency_key": key}


def _parse(key: str, value: Duration) -> timedelta:
    return parse_duration(value, what=key, positive=True, maximum=TEN_YEARS)


def _merged(cls: type[Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        meta = base.__dict__.get("Meta")
        if meta is None:
            continue
        for key, value in _values(meta).items():
            if key not in KEYS:
                raise TypeError(
                    f"{base.__module__}.{base.__qualname__}.Meta has an unknown key {key!r}. Known keys: {', '.join(sorted(KEYS))}."
                )
            if key in NOT_INHERITED and base is not cls:
                continue
            if key == "step_retries" and merged.get(key) is not None and value is not None:
                value = _merge_retries(value, merged[key])
            if key == "schedules" and base is not cls and not _is_abstract(base):
                merged.pop(key, None)
                continue
            merged[key] = value
    return merged


def _is_abstract(base: type[Any]) -> bool:
    """Whether nothing is ever started as ``base``: an abstract workflow, or a plain class that only carries a Meta."""
    options = base.__dict__.get("options")
    return options is None or bool(options.abstract)


def _merge_retries(own: Any, base: Any) -> Retries | None:
    mine, other = Retries.coerce(own), Retries.coerce(base)
    return mine if mine is None or other is None else mine.merge(other)


def _values(meta: type[Any]) -> dict[str, Any]:
    """What a Meta class says itself, with its own bases except the typed one."""
    values: dict[str, Any] = {}
    for base in reversed(meta.__mro__):
        if base in (object, WorkflowOptions):
            continue
        own = {key: value for key, value in vars(base).items() if not key.startswith("__")}
        # ``class Meta(Base.Meta)`` takes over what can be inherited, as in Django.
        kept = own.keys() - NOT_INHERITED - (set() if own.get("abstract") else {"schedules"})
        values.update(own if base is meta else {key: own[key] for key in kept})
    return values
