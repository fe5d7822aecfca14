"""Names of workflows and their classes. It lives at the bottom because rows look up their class's options (design
5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from durableflow.core import lookup

_classes: dict[str, type[Any]] = {}


def register(name: str, cls: type[Any]) -> None:
    """Make ``cls`` known as ``name``.

    A class that is defined again under the same module and qualified name (a reload) replaces the old one. Raises
    TypeError that names both for two different classes of one name.
    """
    known = _classes.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise TypeError(
            f"Two workflows are named {name!r}: {known.__module__}.{known.__qualname__} and {cls.__module__}.{cls.__qualname__}. "
            "Give one of them another Meta.name."
        )
    _classes[name] = cls


def find(name: str) -> type[Any] | None:
    """The class registered as ``name``, or None. Nothing is ever imported by name (case SEC-08)."""
    return _classes.get(name)


def names() -> list[str]:
    """All registered names, sorted."""
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
    before = dict(_classes)
    try:
        yield
    finally:
        late = {name: cls for name, cls in _classes.items() if lookup.find(cls.__module__, cls.__qualname__) is cls}
        _classes.clear()
        _classes.update(late)
        _classes.update(before)
