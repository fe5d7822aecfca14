"""Names of workflows and their classes. It lives at the bottom because rows look up their class's options (design
5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from durableflow.core import lookup

_classes: dict[str, type[Any]] = {}
_previous: dict[str, type[Any]] = {}


def register(name: str, cls: type[Any], previous: Iterable[str] = ()) -> None:
    """Make ``cls`` known as ``name``, and as the heir of the instances that are stored under its ``previous`` names.

    A class that is defined again under the same module and qualified name (a reload) replaces the old one. Raises
    TypeError that names both where another class has one of these names, now or as a previous one; then nothing is
    registered.
    """
    previous = tuple(previous)
    _check_free(name, cls, "is")
    for old in previous:
        _check_free(old, cls, "was")
    replaced = _classes.get(name)
    for old in [old for old, known in _previous.items() if known is replaced]:
        del _previous[old]
    for old in previous:
        _classes.pop(old, None)  # this class, before a reload gave it its new name
        _previous[old] = cls
    _previous.pop(name, None)
    _classes[name] = cls


def _check_free(name: str, cls: type[Any], is_or_was: str) -> None:
    now, before = _classes.get(name), _previous.get(name)
    if now is not None and not _same(now, cls) and is_or_was == "is":
        raise TypeError(
            f"Two workflows are named {name!r}: {_dotted(now)} and {_dotted(cls)}. Give one of them another Meta.name."
        )
    for other, other_is_or_was in ((now, "is"), (before, "was")):
        if other is not None and not _same(other, cls):
            raise TypeError(
                f"Two workflows claim the instances that are stored as {name!r}: {_dotted(other)}, which {other_is_or_was} "
                f"named so, and {_dotted(cls)}, which {is_or_was} named so. Take it from the Meta.previous_names of one of "
                "them, or give another Meta.name."
            )


def _same(one: type[Any], other: type[Any]) -> bool:
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def _dotted(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def find(name: str) -> type[Any] | None:
    """The class that runs instances stored as ``name``: registered so, or having it among its previous names; else None.
    Nothing is ever imported by name (case SEC-08)."""
    return _classes.get(name) or _previous.get(name)


def names() -> list[str]:
    """All registered names, sorted; without the previous ones."""
    return sorted(_classes)


def items() -> list[tuple[str, type[Any]]]:
    """All registered names with their classes, sorted by name."""
    return sorted(_classes.items())


def options() -> list[Any]:
    """The options of all registered classes, in the order of their registration: the same objects as long as nothing has
    changed, so that comparing two lists is quick."""
    return [cls.options for cls in _classes.values()]


@contextmanager
def isolated() -> Iterator[None]:
    """Forget at the end what was registered inside (for tests, case TST-04).

    A class of a module that was first imported inside stays known: the import will not happen again.
    """
    kept = [(known, dict(known)) for known in (_classes, _previous)]
    try:
        yield
    finally:
        for known, before in kept:
            late = {name: cls for name, cls in known.items() if lookup.find(cls.__module__, cls.__qualname__) is cls}
            known.clear()
            known.update(late)
            known.update(before)
