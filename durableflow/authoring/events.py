"""What ``run`` gets: the workflow event with its read-only params (design 5)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NoReturn, TypeVar

Params = TypeVar("Params")
_CURE = "params cannot be changed: the change would be lost at the next replay. Work on copy.deepcopy(event.params)."


@dataclass(frozen=True, kw_only=True)
class WorkflowEvent(Generic[Params]):
    """The input of one execution; equal at every replay.

    ``params``: read-only; ``copy.deepcopy(event.params)`` gives a plain copy to work on. ``timestamp``: when the
    instance was created. ``scheduled_for``: the slot of a schedule for which it was started (however late), in UTC, else None;
    ``cron``: the cron line of the schedule as it was then, else ''.
    """

    params: Params
    timestamp: datetime
    instance_id: str
    workflow: str
    run_number: int
    scheduled_for: datetime | None = None
    cron: str = ""


def _refuse(self: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
    raise TypeError(_CURE)


class FrozenDict(dict[Any, Any]):
    """A dict that refuses mutation and is still a dict to json, ``**`` and isinstance."""

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: thaw(value) for key, value in self.items()}

    def copy(self) -> dict[Any, Any]:
        """A plain, shallow copy."""
        return dict(self)

    __copy__ = copy

    def __reduce__(self) -> Any:
        return (dict, (dict(self),))


class FrozenList(list[Any]):
    """A list that refuses mutation and is still a list to json and isinstance."""

    __setitem__ = __delitem__ = append = extend = insert = pop = remove = _refuse
    clear = sort = reverse = __iadd__ = __imul__ = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [thaw(value) for value in self]

    def copy(self) -> list[Any]:
        """A plain, shallow copy."""
        return list(self)

    __copy__ = copy

    def __reduce__(self) -> Any:
        return (list, (list(self),))


def freeze(value: Any) -> Any:
    """The same value with dicts and lists that refuse mutation, at every depth."""
    if isinstance(value, dict):
        return FrozenDict((key, freeze(item)) for key, item in value.items())
    if isinstance(value, list):
        return FrozenList(freeze(item) for item in value)
    if isinstance(value, tuple):
        return tuple(freeze(item) for item in value)
    return value


def thaw(value: Any) -> Any:
    """The same value with plain dicts and lists, at every depth."""
    if isinstance(value, dict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list):
        return [thaw(item) for item in value]
    if isinstance(value, tuple):
        return tuple(thaw(item) for item in value)
    return value
