"""Stored errors: described without ever failing, rebuilt without calling `__init__`."""

from __future__ import annotations

import errno
import json
import sys
import threading
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from durableflow.core import codec, exceptions, failures
from durableflow.core.exceptions import NonRetryableError, StepFailed, StepTimeout
from durableflow.core.failures import describe, public, rebuild, step_of


class Declined(Exception):
    """Two required arguments, neither of them in `args`."""

    def __init__(self, code: str, amount: Decimal) -> None:
        super().__init__(f"card declined {code}")
        self.code = code
        self.amount = amount


class Slotted(Exception):
    __slots__ = ("code",)

    def __init__(self, *, code: int) -> None:
        self.code = code


class Picky(Exception):
    def __new__(cls, *args: Any, **options: Any) -> Picky:
        if "key" not in options:
            raise TypeError("key is wanted")
        return super().__new__(cls, *args)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args)


class NotFound(OSError):
    def __init__(self, path: str, *, retry: bool) -> None:
        super().__init__(errno.ENOENT, "no such thing", path)
        self.retry = retry


class Mute(Exception):
    def __str__(self) -> str:
        return self.text  # type: ignore[attr-defined]


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Guarded(Exception):
    def __init__(self, code: int) -> None:
        self.__dict__["code"] = code

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError("frozen")


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def stored(error: BaseException, **options: Any) -> dict[str, Any]:
    """Described, and through the database."""
    described = describe(error, **options)
    text = codec.dumps(described)
    assert json.loads(text) == described, "plain JSON, without tags"
    back: dict[str, Any] = codec.loads(text)
    return back


def roundtrip(error: BaseException) -> Exception:
    return rebuild(stored(error))


def test_an_error_of_the_project_comes_back_as_itself() -> None:
    """SER-05: `except Declined` is entered at every replay, though `__init__` cannot be called."""
    described = stored(raised(Declined("51", Decimal("9.90"))), step="charge card")
    assert public(described) == {
        "type": f"{__name__}.Declined",
        "message": "card declined 51",
        "traceback": described["traceback"],
        "step": "charge card",
    }
    assert "in raised" in described["traceback"]
    error = rebuild(described)
    assert type(error) is Declined
    assert (str(error), error.code, error.amount) == ("card declined 51", "51", Decimal("9.90"))
    assert error.args == ("card declined 51",)
    assert error.durableflow_traceback == described["traceback"]  # type: ignore[attr-defined]
    assert step_of(error) == "charge card"


def test_the_same_error_comes_back_again_and_again() -> None:
    """ENG-09: a caught failure is the same type and message at each replay."""
    first = stored(Declined("51", Decimal(1)), step="s")
    second = stored(rebuild(first))
    third = stored(rebuild(second))
    assert second == third == first


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        KeyError("k"),
        Exception(),
        Exception(1, "two", Decimal(3), ("t",)),
        OSError(errno.ENOENT, "gone", "/tmp/x"),
        NotFound("/x", retry=True),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        ImportError("no module", name="shop", path="/shop"),
        json.JSONDecodeError("bad", "{", 1),
        SyntaxError("bad", ("f.py", 1, 2, "x", 1, 3)),
        StopIteration(5),
        AttributeError("x", name="n"),
        Slotted(code=5),
        Guarded(5),
        NonRetryableError(),
        NonRetryableError(""),
        TimeoutError("late"),
        StepTimeout('The step "x" took longer than 10 minutes.'),
        StepFailed("raised by an author"),
        exceptions.WorkflowFailed("failed", workflow="w", instance_id="i", error={"type": "ValueError"}),
        exceptions.InstanceAlreadyExists(workflow="w", instance_id="i"),
        exceptions.InvalidTransition("is complete", status="complete"),
        exceptions.StaleDecision("late", code="timed_out", status="timed_out"),
        exceptions.LimitExceeded.of("the output", 5, 4),
        exceptions.InvalidConfig("limit", step="s", field="limit"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_type_text_arguments_and_attributes_survive(error: Exception) -> None:
    """SER-05, RET-06: also an empty message; built-in classes with their state outside of `__dict__`."""
    back = roundtrip(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    kept = {key: value for key, value in vars(back).items() if not key.startswith("durableflow_")}
    assert kept == vars(error)
    for name in ("errno", "filename", "name", "path", "code", "value", "start", "object", "lineno", "pos", "retry"):
        assert getattr(back, name, None) == getattr(error, name, None)


def test_every_public_error_is_rebuilt_as_itself() -> None:
    classes = [cls for cls in vars(exceptions).values() if isinstance(cls, type) and issubclass(cls, Exception)]
    assert len(classes) == 20
    for cls in classes:
        assert issubclass(cls, exceptions.DurableflowError)
        assert cls.__doc__
        assert type(roundtrip(cls("text"))) is cls


def test_what_cannot_be_stored_of_an_error_is_left_out() -> None:
    """SER-05: the class stays, arguments become text, attributes are dropped."""
    error = Exception("payment", lock := threading.Lock(), "nul \0", "\ud800")
    error.lock, error.code = lock, 5  # type: ignore[attr-defined]
    back = roundtrip(error)
    assert back.args == ("payment", repr(lock), "nul \\x00", "\\ud800")
    assert back.code == 5  # type: ignore[attr-defined]
    assert not hasattr(back, "lock")


def test_texts_are_made_storable_and_cut() -> None:
    described = stored(ValueError("a\0b\ud800" + "x" * 10_000))
    assert described["message"].startswith("a\\x00b\\ud800xxx")
    assert len(described["message"]) <= failures.MAX_MESSAGE
    assert "10,012 characters" in described["message"]
    huge = stored(raised(ValueError("x" * 1_000_000)), traceback_limit=1000)
    assert len(huge["traceback"]) <= 1000
    assert huge["traceback"].startswith("Traceback")
    assert len(codec.dumps(huge)) < 20_000
    assert type(rebuild(huge)) is ValueError
    many = stored(ValueError(*range(100_000)))
    assert len(codec.dumps(many)) < 40_000
    assert type(rebuild(many)) is ValueError


def test_the_end_of_a_long_traceback_is_kept() -> None:
    def dive(depth: int) -> None:
        if not depth:
            raise ValueError("at the bottom")
        for _ in range(1):
            dive(depth - 1)

    with pytest.raises(ValueError, match="bottom") as caught:
        dive(100)
    text = describe(caught.value, traceback_limit=600)["traceback"]
    assert text.endswith("ValueError: at the bottom\n")
    assert text.startswith("Traceback (most recent call last)")
    assert len(text) <= 600


@pytest.mark.parametrize("error", [Hostile("x", Hostile()), Mute(), ExceptionGroup("g", [Hostile()])])
def test_describing_never_raises(error: Exception) -> None:
    """SER-05: reading a status never fails."""
    described = stored(raised(error, Hostile()), step="s")
    assert described["type"].endswith(type(error).__name__)
    assert described["step"] == "s"
    assert isinstance(described["message"], str)
    assert type(rebuild(described)) is type(error)


def test_a_rebuilt_error_without_its_text_keeps_the_message() -> None:
    """RET-07: what support works with is not lost on the way to the instance."""
    error = Mute()
    error.text, error.lock = "out of paper", threading.Lock()  # type: ignore[attr-defined]
    described = stored(error)
    del described["attrs"]["text"]
    assert stored(rebuild(described))["message"] == "out of paper"


def test_a_class_that_is_not_there_becomes_step_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """SER-05: type name, text and traceback stay; nothing is imported."""
    module = ModuleType("a_shop.errors")
    monkeypatch.setitem(sys.modules, "a_shop.errors", module)
    cls = type("CardDeclined", (Exception,), {"__module__": "a_shop.errors"})
    vars(module)["CardDeclined"] = cls
    described = stored(raised(cls("card declined 51")), step="charge")
    assert type(rebuild(described)) is cls
    monkeypatch.delitem(sys.modules, "a_shop.errors")
    error = rebuild(described)
    assert type(error) is StepFailed
    assert (error.type, error.message) == ("a_shop.errors.CardDeclined", "card declined 51")
    assert error.traceback == described["traceback"]
    assert str(error) == "a_shop.errors.CardDeclined: card declined 51"
    again = stored(error)
    assert public(again) == public(described), "type and message of the original, also on the instance"
    monkeypatch.setitem(sys.modules, "a_shop.errors", module)
    assert type(rebuild(again)) is cls, "a process that has the class rebuilds it"


@pytest.mark.parametrize("name", ["Local", "os.path", "sys", "int", "builtins.KeyError.x", "x.y", "", "."])
def test_names_that_are_no_error_class_become_step_failed(name: str) -> None:
    error = rebuild({**stored(ValueError("text")), "type": name})
    assert type(error) is StepFailed
    assert error.message == "text"


def test_a_local_class_becomes_step_failed() -> None:
    class Local(Exception):
        pass

    error = roundtrip(Local("text"))
    assert type(error) is StepFailed
    assert error.type.endswith("<locals>.Local")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit("x")])
def test_errors_outside_of_exception_become_step_failed(error: BaseException) -> None:
    """RET-13: recorded like any other, never raised as themselves."""
    back = roundtrip(error)
    assert type(back) is StepFailed
    assert back.type == type(error).__name__


def test_a_class_whose_new_refuses_is_made_all_the_same() -> None:
    back = roundtrip(Picky("text", key="k"))
    assert type(back) is Picky
    assert back.args == ("text",)


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        None,
        5,
        {"type": 5},
        {"type": "ValueError", "args": "{"},
        {"type": "ValueError", "args": 5, "attrs": 5, "cause": 5},
    ],
)
def test_rebuilding_never_raises(damaged: Any) -> None:
    assert isinstance(rebuild(damaged), StepFailed)


def test_a_damaged_attribute_spoils_only_itself() -> None:
    described = stored(Declined("51", Decimal(1)))
    described["attrs"]["amount"] = '{"$df":"enum","v":["gone","Gone","X"]}'
    back = rebuild(described)
    assert type(back) is Declined
    assert back.code == "51"
    assert not hasattr(back, "amount")


def test_a_validation_error_keeps_class_and_message() -> None:
    described = stored(raised(ValidationError("too small", code="min")))
    back = rebuild(described)
    assert type(back) is ValidationError
    assert back.message == "too small"
    assert stored(back)["message"] == described["message"] == "['too small']"
