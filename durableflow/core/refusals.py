"""Why the codec refuses a value, and what to do: the path to the offender, what it is, the cure (case SER-02)."""

from __future__ import annotations

import dataclasses
import io
import reprlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from django.core.files.base import File
from django.db.models import Manager, Model
from django.db.models.query import QuerySet

from durableflow.core import lookup

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


def path(parts: Sequence[str | int | tuple[Any]]) -> str:
    """A JSON path for people: `$.items[3]["unit price"]`.

    An int is a position, a one-tuple holds a key, a str stands for itself (`{}`: a member of a set; `{key}`: a key).
    """
    return "$" + "".join(_part(part) for part in parts)


def _part(part: str | int | tuple[Any]) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, int):
        return f"[{part}]"
    (key,) = part
    if type(key) is str and key.isidentifier():
        return f".{key}"
    try:
        # A message is stored too: what cannot be stored is shown escaped.
        return f"[{_REPR.repr(key)}]".encode("utf-8", "backslashreplace").decode()
    except Exception:
        return f"[<{lookup.dotted(type(key))}>]"


def is_dataclass(value: Any) -> bool:
    """Whether `value` is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def explain(value: Any) -> tuple[str, str]:
    """What is wrong with `value`, to go on after "<what> cannot be stored: <path>", and the cure."""
    kind = lookup.dotted(type(value))
    for test, name, cure in _KINDS:
        if test(value):
            return f"is {name} ({kind})", cure
    return f"is of type {kind}", "Give plain data: text, numbers, lists, dicts."


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _is_function(value: Any) -> bool:
    return callable(value) and (hasattr(value, "__qualname__") or isinstance(value, partial))


_KINDS: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    (_is(type), "a class", "Give its name."),
    (_is(Model), "a model instance", "Give its primary key and load the row where it is needed."),
    (_is(QuerySet), "a queryset", "Give a list of keys or values: list(queryset.values_list(...))."),
    (_is(Manager), "a manager", "Give a list of keys or values."),
    (_is(File, io.IOBase), "a file", "Save it in a storage and give its name."),
    (is_dataclass, "a dataclass", "Give dataclasses.asdict(value)."),
    (
        lambda value: isinstance(value, tuple) and hasattr(value, "_fields"),
        "a namedtuple",
        "Give tuple(value) or value._asdict().",
    ),
    (_is(tuple), "a subclass of tuple", "Give tuple(value)."),
    (_is(set, frozenset), "a subclass of set", "Give set(value)."),
    (_is(Awaitable), "an awaitable", "Await it and give its result."),
    (_is(AsyncIterator), "an asynchronous iterator", "Give a list of what it yields."),
    (_is(Iterator), "an iterator or generator", "Give list(value)."),
    (_is_function, "a function", "Give what it returns, or its name."),
    (_is(BaseException), "an error", "Raise it, or give str(error)."),
    (
        _is(range, deque, type({}.keys()), type({}.values()), type({}.items())),
        "a sequence of its own kind",
        "Give list(value).",
    ),
    (lambda value: hasattr(type(value), "model_dump"), "a model object", "Give value.model_dump()."),
    (lambda value: hasattr(type(value), "tolist"), "an array", "Give value.tolist()."),
)
