"""The codec: every value that is stored (params, outputs, payloads, errors) goes through it, before anybody sees it.

What is stored is JSON text, compact, in UTF-8, with the order of keys kept (design 6 "Codec", design 12 "Codec").
Where JSON has no type of its own, the value is a tagged object `{"$df": "<tag>", "v": <what the tag says>}`:

=========  =====================================================================================================
tag        v
=========  =====================================================================================================
datetime   ISO 8601 with microseconds and offset; `[ISO, zone key or "", fold]` where it has a ZoneInfo or a fold
time       the same
date       ISO 8601
timedelta  `[days, seconds, microseconds]`
decimal    its text, exact
uuid       its text
bytes      base64 (bytearray and memoryview come back as bytes)
tuple      list
set        list, sorted by the members' JSON text; `frozenset` the same
enum       `[module, qualified name, member]`; looked up among the imported modules, never imported
flag       `[module, qualified name, number]`: a combination of flags that has no name
float      `"nan"`, `"inf"`, `"-inf"`
int        hexadecimal text, for numbers of very many digits (Python refuses to read or write those in decimal)
dict       list of `[key, value]`: for keys that are no strings, and for a dict that has the key "$df" itself
=========  =====================================================================================================

A later format of a type gets a new tag (`datetime.2`); the old one stays readable for ever. An unknown tag is a
`CodecError`.

Subclasses of str, int, float, dict, list and of the date, number and UUID types become their base; lazy text
becomes str. Everything else is refused with the path to the offender, its type and the cure: rows, files and
functions would not come back as what they were.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from django.utils.functional import Promise

from durableflow.core import lookup, refusals
from durableflow.core.exceptions import CodecError, LimitExceeded

TAG = "$df"
MAX_DEPTH = 100
"""Levels of containers in containers. Deeper values cannot be read back everywhere: Python's own stack is short."""

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_LONG_INT_BITS = 2000
# What the encoder writes by itself, or through _default: these types exactly, not their subclasses.
_SCALARS = frozenset({str, int, float, bool, type(None), datetime, date, timedelta, Decimal, UUID})
_PLAIN = _SCALARS | {dict, list}
_STR = frozenset({str})


def dumps(value: Any, *, what: str = "value", max_bytes: int | None = None) -> str:
    """The text that stores `value`.

    `what` names the value in errors ('The output of step "charge card"'); `max_bytes` bounds the text's size in UTF-8.
    Raises `CodecError` for what cannot be stored, with the JSON path to it, and `LimitExceeded`. Nothing is
    changed in `value`.
    """
    text = _fast(value)
    if text is None:
        text = _write(value, what)
    if max_bytes is not None:
        size = len(text) if text.isascii() else len(text.encode())
        if size > max_bytes:
            raise LimitExceeded.of(what, size, max_bytes, hint="Store a reference (a key, a file name) instead.")
    return text


def attempt(number: int, started: datetime) -> str:
    """The same text as ``dumps({"attempt": number, "started": started})``, made in a fifth of the time: each checkpoint
    writes one."""
    if started.tzinfo is not UTC:
        return dumps({"attempt": number, "started": started})
    return f'{{"attempt":{number},"started":{{"{TAG}":"datetime","v":"{started.isoformat(timespec="microseconds")}"}}}}'


def loads(text: str) -> Any:
    """The value that `dumps` stored as `text`, in fresh objects. Raises `CodecError` for a text that cannot be read."""
    try:
        decoder = _TAGGED if TAG in text else _UNTAGGED
        value, end = decoder.raw_decode(text)
        return value if end == len(text) else decoder.decode(text)  # which tells what is wrong
    except RecursionError:
        raise CodecError("A stored value cannot be read: it is nested too deeply.") from None
    except CodecError:
        raise
    except (ValueError, TypeError) as error:
        raise CodecError(f"A stored value cannot be read: {error}. The stored text is damaged.") from error


# Writing
# ---------------------------------------------------------------------------------------------------------------------


def _fast(value: Any) -> str | None:
    """The text of a value of plain JSON types, dates, decimals and UUIDs; None for every other one, and where anything is
    doubtful."""
    if not (type(value) in _SCALARS or _is_plain(value, 1)):
        return None
    try:
        text = _FAST_ENCODER.encode(value)
        # Lone surrogates cannot be encoded; a NUL is written as an escape (which a backslash before "u0000" resembles).
        if not text.isascii():
            text.encode()
        return None if "\\u0000" in text else text
    except Exception:  # NaN, very long integers, lone surrogates, a time zone that fails: the careful way tells
        return None


def _is_plain(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind is dict:
        if TAG in value or not _STR.issuperset(map(type, value)):
            return False
        members = value.values()
    elif kind is list:
        members = value
    else:
        return False
    if _SCALARS.issuperset(map(type, members)):
        return True
    # The first path that is too deep ends the search, so that a cycle does too.
    return depth < MAX_DEPTH and all(
        type(m) in _SCALARS or (type(m) in _PLAIN and _is_plain(m, depth + 1)) for m in members
    )


def _write(value: Any, what: str) -> str:
    """The text of any value that can be stored, the careful way."""
    writer = _Writer(what)
    try:
        return _ENCODER.encode(writer.tree(value))
    except RecursionError:
        raise writer.error("is nested too deeply for the stack that is left") from None


class _Writer:
    """Turns one value into a tree of plain JSON types, and knows at any time where in the value it is."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.path: list[str | int | tuple[Any]] = []
        self.open: set[int] = set()

    def error(self, problem: str, cure: str = "") -> CodecError:
        what = self.what[:1].upper() + self.what[1:]
        return CodecError(f"{what} cannot be stored: {refusals.path(self.path)} {problem}.{' ' if cure else ''}{cure}")

    def tree(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return self.text(value)
        if kind is bool or value is None:
            return value
        if kind in (dict, list, tuple, set, frozenset) or (
            isinstance(value, (dict, list)) and not refusals.is_dataclass(value)
        ):
            return self.container(value)
        for base, write in _WRITERS:
            if isinstance(value, base):
                try:
                    return write(self, value)
                except CodecError:
                    raise
                except (
                    Exception
                ) as error:  # a subclass with methods of its own (pandas.NaT is a datetime without a year)
                    raise self.error(f"is of type {lookup.dotted(kind)}, which failed: {error!r}") from error
        raise self.error(*refusals.explain(value))

    def text(self, value: str) -> str:
        bad = _UNSTORABLE.search(value)
        if bad is None:
            return value
        name = "NUL character" if bad.group() == "\0" else "lone surrogate"
        cure = "Remove it, or return bytes."
        raise self.error(f"has a {name} at position {bad.start()}, which databases cannot store", cure)

    def container(self, value: Any) -> Any:
        if id(value) in self.open:
            raise self.error("contains itself (a cycle)")
        if len(self.open) >= MAX_DEPTH:
            raise self.error(f"is nested deeper than {MAX_DEPTH} levels", "Make it flatter.")
        self.open.add(id(value))
        try:
            if isinstance(value, dict):
                return self.mapping(value)
            if isinstance(value, (set, frozenset)):
                members = [self.at("{}", member) for member in value]
                # Their order in memory changes from process to process.
                return _tagged(type(value).__name__, sorted(members, key=_ENCODER.encode))
            members = [self.at(i, member) for i, member in enumerate(value)]
            return members if isinstance(value, list) else _tagged("tuple", members)
        finally:
            self.open.discard(id(value))

    def mapping(self, value: dict[Any, Any]) -> Any:
        pairs = [(self.at("{key}", key), self.at((key,), member)) for key, member in value.items()]
        if all(type(key) is str for key, _ in pairs):
            tree = dict(pairs)
            if len(tree) < len(pairs):
                raise self.error("has two keys with the same text")
            if TAG not in tree:
                return tree
        return _tagged("dict", [list(pair) for pair in pairs])

    def at(self, part: str | int | tuple[Any], value: Any) -> Any:
        self.path.append(part)
        tree = self.tree(value)
        self.path.pop()  # not on errors: the path is part of their message
        return tree

    def integer(self, value: int) -> Any:
        number = int.__int__(value)
        return number if number.bit_length() <= _LONG_INT_BITS else _tagged("int", hex(number))

    def real(self, value: float) -> Any:
        number = float.__float__(value)
        return number if number - number == 0 else _tagged("float", repr(number))

    def enum(self, value: Enum) -> Any:
        cls = type(value)
        if lookup.find(cls.__module__, cls.__qualname__) is not cls:
            raise self.error(
                f"is of the enum {lookup.dotted(cls)}, which cannot be found by its name",
                "Define it at the top level of a module, or return its value.",
            )
        if cls.__members__.get(value.name or "") is value:
            return _tagged("enum", [cls.__module__, cls.__qualname__, value.name])
        if isinstance(value, Flag) and type(value.value) is int:
            return _tagged("flag", [cls.__module__, cls.__qualname__, value.value])
        raise self.error(f"is a member without a name of the enum {lookup.dotted(cls)}", "Return its value.")

    def moment(self, value: datetime) -> Any:
        iso = datetime.isoformat(value, timespec="microseconds")
        return _zoned("datetime", iso, value)

    def clock(self, value: time) -> Any:
        return _zoned("time", time.isoformat(value, timespec="microseconds"), value)


def _tagged(tag: str, value: Any) -> dict[str, Any]:
    return {TAG: tag, "v": value}


def _zoned(tag: str, iso: str, value: datetime | time) -> dict[str, Any]:
    zone = value.tzinfo
    key = (zone.key or "") if isinstance(zone, ZoneInfo) else ""
    return _tagged(tag, [iso, key, value.fold] if key or value.fold else iso)


def _default(value: Any) -> Any:
    """For the encoder of ``_fast``: the tree of a value of one of the exact types."""
    return _EXACT[type(value)](value)


_EXACT: dict[type, Callable[[Any], Any]] = {
    datetime: lambda value: _zoned("datetime", value.isoformat(timespec="microseconds"), value),
    date: lambda value: _tagged("date", value.isoformat()),
    timedelta: lambda value: _tagged("timedelta", [value.days, value.seconds, value.microseconds]),
    Decimal: lambda value: _tagged("decimal", str(value)),
    UUID: lambda value: _tagged("uuid", str(value)),
}

# In this order: an enum may be a str or an int, a datetime is a date. The exact containers are met before.
_WRITERS: tuple[tuple[type | tuple[type, ...], Callable[[_Writer, Any], Any]], ...] = (
    (Enum, _Writer.enum),
    (str, lambda writer, value: writer.text(str.__str__(value))),
    (int, _Writer.integer),
    (float, _Writer.real),
    (datetime, _Writer.moment),
    (date, lambda _, value: _tagged("date", date.isoformat(value))),
    (time, _Writer.clock),
    (timedelta, lambda _, value: _tagged("timedelta", [value.days, value.seconds, value.microseconds])),
    (Decimal, lambda _, value: _tagged("decimal", Decimal.__str__(value))),
    (UUID, lambda _, value: _tagged("uuid", UUID.__str__(value))),
    ((bytes, bytearray, memoryview), lambda _, value: _tagged("bytes", base64.b64encode(bytes(value)).decode())),
    (Promise, lambda writer, value: writer.text(str(value))),
)

# Reading
# ---------------------------------------------------------------------------------------------------------------------


def _read(tree: dict[str, Any]) -> Any:
    if TAG not in tree:
        return tree
    tag = tree[TAG]
    read = _READERS.get(tag) if isinstance(tag, str) else None
    if read is None:
        raise CodecError(
            f"A stored value cannot be read: the tag {tag!r} is not known. A newer durableflow has written it."
        )
    try:
        return read(tree["v"])
    except CodecError:
        raise
    except Exception as error:
        raise CodecError(f"A stored value cannot be read: bad content of a {tag} ({error!r}).") from error


def _read_zoned(cls: type[datetime] | type[time]) -> Callable[[Any], Any]:
    def read(content: str | list[Any]) -> datetime | time:
        if isinstance(content, str):
            return cls.fromisoformat(content)
        iso, key, fold = content
        moment = cls.fromisoformat(iso).replace(fold=fold)
        if not key:
            return moment
        try:
            return moment.replace(tzinfo=ZoneInfo(key))
        except Exception as error:
            raise CodecError(
                f'A stored value cannot be read: the time zone "{key}" is not known here. Install the package tzdata.'
            ) from error

    return read


def _find_enum(module: str, qualname: str) -> type[Enum]:
    found = lookup.find(module, qualname)
    if isinstance(found, type) and issubclass(found, Enum):
        return found
    raise CodecError(
        f"A stored value cannot be read: the enum {module}.{qualname} is not among the imported modules. "
        f"Import it in the workflow's module: import {module}"
    )


def _read_enum(content: list[str]) -> Enum:
    module, qualname, name = content
    cls = _find_enum(module, qualname)
    if name not in cls.__members__:
        raise CodecError(
            f"A stored value cannot be read: the enum {module}.{qualname} has no member {name} (any more)."
        )
    return cls.__members__[name]


def _read_flag(content: list[Any]) -> Enum:
    module, qualname, number = content
    return cast(Callable[[int], Enum], _find_enum(module, qualname))(number)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_READERS: dict[str, Callable[[Any], Any]] = {
    "datetime": _read_zoned(datetime),
    "time": _read_zoned(time),
    "date": date.fromisoformat,
    "timedelta": lambda content: timedelta(*content),
    "decimal": Decimal,
    "uuid": UUID,
    "bytes": lambda content: base64.b64decode(content, validate=True),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "enum": _read_enum,
    "flag": _read_flag,
    "float": float,
    "int": lambda content: int(content, 16),
    "dict": dict,
}
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)
_FAST_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False, default=_default
)
_UNTAGGED = json.JSONDecoder(parse_constant=_refuse_constant)
_TAGGED = json.JSONDecoder(object_hook=_read, parse_constant=_refuse_constant)
