"""Errors as stored data, and back (design 6 "Errors too"; cases SER-05, RET-06, RET-07, ENG-09).

A workflow always meets the rebuilt error, also the first time: so an `except` branch is the same at every replay.
A class is found among the imported modules, never imported, and made without calling its `__init__`, which may
want other arguments than the error has kept. What cannot be rebuilt becomes a `StepFailed` that has its type,
message and traceback as text.

A described error is plain JSON: `type`, `message`, `traceback`, `step` for everybody who may see it (`public`),
and for `rebuild` alone `args`, `attrs` (texts of the codec, so that a value that can no longer be read spoils only
itself), `cause` and `errors` (the members of a group).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from types import MemberDescriptorType
from typing import Any, Final, cast

from durableflow.core import codec, lookup
from durableflow.core.exceptions import DurableflowError, StepFailed

MAX_MESSAGE: Final = 4_000
TRACEBACK_LIMIT: Final = 20_000
REDACTED: Final = "[REDACTED]"

_MAX_DEPTH: Final = 10
_MAX_MEMBERS: Final = 500
_MAX_ATTRIBUTE: Final = 16 * 1024
_MAX_DATA: Final = 256 * 1024
_TRACEBACKS: Final = 4
_MIN_TRACEBACK: Final = 500
_MARK: Final = "durableflow_"
_OWN: Final = f"{DurableflowError.__module__}."
# AttributeError.obj is the object that lacked the attribute; a group's members are described one by one.
_NOT_KEPT: Final = frozenset({"obj", "exceptions"})
_AGAIN: Final = "\nThe error above was stored, and raised again in the workflow:\n\n"


def describe(error: BaseException, *, step: str = "", traceback_limit: int = TRACEBACK_LIMIT) -> dict[str, Any]:
    """`error` as plain JSON that both databases can store. Never raises, whatever the error's own methods do.

    `step` names the step that failed; by default the one that the error, its cause or its context was rebuilt for.
    Messages are cut at 4,000 characters and tracebacks at `traceback_limit`; arguments and attributes that cannot
    be stored are shown as text and left out, respectively; the chain of causes is kept to a depth of 10. Where an
    error is marked as sensitive, neither its text nor a traceback that shows it is kept.
    """
    try:
        return _Describer(traceback_limit).describe(error, step)
    except Exception:
        return {
            "type": type(error).__name__,
            "message": "(the error cannot be described)",
            "traceback": "",
            "step": step,
        }


def rebuild(described: Mapping[str, Any]) -> Exception:
    """The error that `describe` stored, as an instance of its class where that is possible, else a StepFailed.
    Never raises.

    The text of the original traceback is `error.durableflow_traceback`.
    """
    return _rebuild(described, 0)


def public(described: Mapping[str, Any]) -> dict[str, Any]:
    """What people and programs may see of a described error: `type`, `message`, `traceback`, `step`."""
    shown = {key: described.get(key, "") for key in ("type", "message", "traceback", "step")}
    if isinstance(shown["type"], str) and shown["type"].startswith(_OWN):
        shown["type"] = "durableflow." + shown["type"].removeprefix(_OWN)  # where authors import it from
    return shown


def leaves(described: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """The first of the errors that a group consists of, and how many more there are; of another error itself and 0."""
    first, found = None, 0
    todo: list[Any] = [described]
    while todo:
        error = todo.pop()
        members = error.get("errors") if isinstance(error, Mapping) else None
        if isinstance(members, list) and members:
            todo += reversed(members)
        elif isinstance(error, Mapping):
            first = first or error
            found += error.get("more", 1)
    return first or described, max(found - 1, 0)


def masked(described: Mapping[str, Any]) -> dict[str, Any]:
    """A described error of a sensitive step: its type and step alone (it is rebuilt as a StepFailed)."""
    return {**public(described), "message": REDACTED, "traceback": ""}


def mark_sensitive(error: BaseException) -> None:
    """Make every later `describe` of `error`, and of errors that it causes, leave its text out."""
    error.__dict__[_MARK + "sensitive"] = True


def step_of(error: BaseException) -> str:
    """The name of the step whose stored failure is `error`, its cause or its context; "" if none is."""
    return next((step for link in _chain(error) if (step := _mark(link, "step"))), "")


# Describing --------------------------------------------------------------------------------------


class _Describer:
    """Describes one error with its causes and members, within one budget of space."""

    def __init__(self, traceback_limit: int) -> None:
        self.traceback_limit = traceback_limit
        self.room = traceback_limit * _TRACEBACKS
        self.data = _MAX_DATA
        self.members = _MAX_MEMBERS

    def describe(self, error: BaseException, step: str, depth: int = 0) -> dict[str, Any]:
        described: dict[str, Any] = {
            "type": lookup.dotted(type(error)),
            "message": _message(error),
            "traceback": "",
            "step": step or step_of(error),
        }
        if isinstance(error, StepFailed) and error.type:  # it stands for an error of that type
            described |= {"type": clean(error.type), **(_mark(error, "private") or {})}
        else:
            described |= self.private(error)
        secrets = [_message(link) for link in _chain(error) if _mark(link, "sensitive")]
        if _mark(error, "sensitive") or _shows(described, secrets):
            return masked(described)
        described["traceback"] = self.traceback(error, chain=not secrets)
        if depth < _MAX_DEPTH:
            if error.__cause__ is not None:
                described["cause"] = self.describe(error.__cause__, "", depth + 1)
            if isinstance(error, BaseExceptionGroup):
                described["errors"] = self.describe_members(error, depth)
        return described

    def private(self, error: BaseException) -> dict[str, Any]:
        """What `rebuild` needs: arguments that cannot be stored as their text, attributes that can be stored."""
        args = _args_text(error)
        if len(args) > self.data:
            args = f"[{codec.dumps(_message(error))}]"
        self.data -= len(args)
        attrs: dict[str, str] = {}
        for name, value in _attributes(error):
            text = _storable(value)
            if text is not None and len(text) <= self.data:
                self.data -= len(text)
                attrs[name] = text
        return {"args": args, "attrs": attrs}

    def describe_members(self, group: BaseExceptionGroup[BaseException], depth: int) -> list[dict[str, Any]]:
        kept = group.exceptions[: max(self.members, 1)]
        self.members -= len(kept)
        described = [self.describe(member, "", depth + 1) for member in kept]
        if len(kept) < len(group.exceptions):
            more = StepFailed(f"{len(group.exceptions) - len(kept):,} more errors of this group are not kept.")
            described.append({**self.describe(more, "", depth + 1), "more": len(group.exceptions) - len(kept)})
        return described

    def traceback(self, error: BaseException, *, chain: bool) -> str:
        limit = min(self.traceback_limit, self.room)
        if limit < _MIN_TRACEBACK:
            return ""
        text = _cut(clean(_traceback(error, chain=chain)), limit, keep_end=True)
        self.room -= len(text)
        return text


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it or was being handled, and the members of groups; each once."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        link = todo.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        if isinstance(link, BaseExceptionGroup):
            todo += reversed(link.exceptions)
        todo += [None if link.__suppress_context__ else link.__context__, link.__cause__]


def _mark(error: BaseException, name: str) -> Any:
    return error.__dict__.get(_MARK + name)


def _message(error: BaseException) -> str:
    # A rebuilt error may lack what its __str__ wants; its text is known all the same.
    known: str = _mark(error, "message") or ""
    try:
        own = (isinstance(error, StepFailed) and error.type) or isinstance(error, BaseExceptionGroup)
        text = error.message if own else str(error)  # type: ignore[attr-defined]
        return _cut(clean(text), MAX_MESSAGE) or known
    except Exception as failure:
        return known or f"(its text cannot be shown: str() raised {type(failure).__name__})"


def _traceback(error: BaseException, *, chain: bool) -> str:
    """The error's traceback; without its chain also without the text of any other error."""
    links = list(_chain(error)) if chain else [error]
    stored = _outermost([_mark(link, "traceback") or "" for link in reversed(links)])
    if stored and error.__traceback__ is None and _mark(error, "traceback"):
        return "\n".join(stored)  # rebuilt and never raised: there is nothing new to tell
    earlier = "".join(text.rstrip("\n") + "\n" + _AGAIN for text in stored)
    title = f"{lookup.dotted(type(error))}: "
    try:
        if chain:
            return earlier + "".join(traceback.format_exception(error))
        frames = "".join(traceback.format_tb(error.__traceback__))
        return f"{earlier}Traceback (most recent call last):\n{frames}{title}{_message(error)}\n"
    except Exception:
        return f"{earlier}{title}(its traceback cannot be shown)\n"


def _outermost(texts: list[str]) -> list[str]:
    """The texts without those that another one contains: a traceback has that of its cause in it."""
    unique = [text for text in dict.fromkeys(texts) if text]
    return [text for text in unique if not any(text in other for other in unique if other != text)]


def _args_text(error: BaseException) -> str:
    args = (error.message,) if isinstance(error, BaseExceptionGroup) else error.args
    texts = [_storable(arg) or codec.dumps(_cut(clean(_safe_text(arg)), MAX_MESSAGE)) for arg in args]
    return f"[{','.join(texts)}]"


def _attributes(error: BaseException) -> Iterator[tuple[str, Any]]:
    for cls in type(error).__mro__:
        for name, slot in vars(cls).items():  # of built-in classes (OSError.errno) and __slots__
            if isinstance(slot, MemberDescriptorType) and not name.startswith("__") and name not in _NOT_KEPT:
                value = getattr(error, name, None)
                if value is not None:
                    yield name, value
    for name, value in list(error.__dict__.items()):
        if not name.startswith(_MARK) and clean(name) == name:
            yield name, value


def _storable(value: Any) -> str | None:
    try:
        return codec.dumps(value, max_bytes=_MAX_ATTRIBUTE)
    except DurableflowError:
        return None


def _safe_text(value: Any) -> str:
    try:
        return value if isinstance(value, str) else repr(value)
    except Exception:
        return f"<{lookup.dotted(type(value))}>"


def _shows(described: Mapping[str, Any], secrets: list[str]) -> bool:
    texts = [described["message"], described.get("args", ""), *described.get("attrs", {}).values()]
    # Inside the codec's texts a secret is escaped as JSON escapes it.
    wanted = [form for secret in secrets if secret for form in (secret, codec.dumps(secret)[1:-1])]
    return any(form in text for form in wanted for text in texts)


def clean(text: str) -> str:
    """`text` without what databases cannot store: NUL characters and lone surrogates are shown as escapes."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def _cut(text: str, limit: int, *, keep_end: bool = False) -> str:
    """`text` within `limit` characters. A traceback's end says most, a message's start."""
    if len(text) <= limit:
        return text
    note = f"\n[... {len(text):,} characters in all ...]\n"
    room = max(limit - len(note), 0)
    head = room // 4 if keep_end else room
    return text[:head] + note + (text[len(text) - (room - head) :] if room > head else "")


# Rebuilding --------------------------------------------------------------------------------------


def _rebuild(described: Any, depth: int) -> Exception:
    try:
        error = _instance(described, depth) or _stand_in(described)
        marks = {
            _MARK + "traceback": _text_of(described, "traceback"),
            _MARK + "message": _text_of(described, "message"),
            _MARK + "step": _text_of(described, "step"),
        }
        error.__dict__.update(marks)  # past any __setattr__ of the class, here and below
        if described.get("cause") and depth < _MAX_DEPTH:
            object.__setattr__(error, "__cause__", _rebuild(described["cause"], depth + 1))
    except Exception as failure:
        return StepFailed(f"The stored error cannot be read ({type(failure).__name__}).")
    return error


def _text_of(described: Mapping[str, Any], key: str) -> str:
    value = described.get(key, "")
    return value if isinstance(value, str) else str(value)


def _stand_in(described: Mapping[str, Any]) -> StepFailed:
    error = StepFailed(
        _text_of(described, "message"), type=_text_of(described, "type"), traceback=_text_of(described, "traceback")
    )
    # Described again, it keeps what another process may be able to rebuild it from.
    error.__dict__[_MARK + "private"] = {key: described[key] for key in ("args", "attrs") if key in described}
    return error


def _instance(described: Mapping[str, Any], depth: int) -> Exception | None:
    """The error as an instance of its own class, or None where the class is not found or refuses."""
    cls = lookup.find_dotted(_text_of(described, "type"))
    members = described.get("errors")
    if cls is BaseExceptionGroup:  # its members are all of them Exceptions once they are rebuilt
        cls = ExceptionGroup
    if not (isinstance(cls, type) and issubclass(cls, Exception)) or "args" not in described:
        return None
    try:
        args = tuple(codec.loads(described["args"]))
        if issubclass(cls, ExceptionGroup):
            if not members:
                return None
            args = (args[0], [_rebuild(member, depth + 1) for member in members])
        error = _make(cls, args)
        if error is not None:
            _restore(error, described.get("attrs") or {})
    except Exception:  # whatever a class of the project does
        return None
    return error


def _make(cls: type[Exception], args: tuple[Any, ...]) -> Exception | None:
    builtin = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    try:
        error = cls.__new__(cls, *args)
    except Exception:
        error = builtin.__new__(cls, *args)
    if not isinstance(error, cls):
        return None
    # Built-in classes keep some of their state outside of __dict__, and fill it in their own __init__ only.
    initialise = cast(Any, builtin).__init__
    try:
        initialise(error, *args)
    except Exception:
        object.__setattr__(error, "args", args)
    return error


def _restore(error: Exception, attrs: Mapping[str, str]) -> None:
    for name, text in attrs.items():
        try:
            value = codec.loads(text)
            if isinstance(getattr(type(error), name, None), MemberDescriptorType):
                object.__setattr__(error, name, value)
            else:
                error.__dict__[name] = value
        except Exception:  # noqa: S112 - an attribute that cannot be restored is left out
            continue
