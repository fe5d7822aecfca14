"""What the codec refuses: each time a CodecError or LimitExceeded that says what, where and what to do."""

from __future__ import annotations

import array
import dataclasses
import enum
import functools
import io
import re
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import User
from django.core.files.base import ContentFile

from durableflow.core import codec
from durableflow.core.exceptions import CodecError, LimitExceeded


class Colour(enum.Enum):
    RED = "red"
    CRIMSON = "red"


class Text(str):
    pass


@dataclasses.dataclass
class Point:
    x: int


@dataclasses.dataclass
class Bag(dict[str, int]):
    size: int = 0


class Pair(NamedTuple):
    left: int
    right: int


def roundtrip(value: Any) -> Any:
    return codec.loads(codec.dumps(value))


def cyclic_dict() -> Any:
    value: dict[str, Any] = {"a": {}}
    value["a"]["b"] = [value]
    return value


def cyclic_list() -> Any:
    value: list[Any] = []
    value += [value, value]
    return value


def generator() -> Iterator[int]:
    yield 1


def local_enum() -> Any:
    return enum.Enum("Local", "ONE").ONE  # type: ignore[attr-defined]


class Pydantic:
    def model_dump(self) -> dict[str, int]:
        return {}


REFUSED = [
    pytest.param(cyclic_dict, "$.a.b[0]", "contains itself", id="cyclic dict"),
    pytest.param(cyclic_list, "$[0]", "contains itself", id="cyclic list"),
    pytest.param(
        lambda: User(pk=1), "$", r"a model instance \(django.contrib.auth.models.User\).*primary key", id="model"
    ),
    pytest.param(lambda: [User.objects.all()], "$[0]", "a queryset .*values_list", id="queryset"),
    pytest.param(lambda: User.objects, "$", "a manager", id="manager"),
    pytest.param(lambda: {"f": io.StringIO()}, "$.f", "a file .*storage", id="file"),
    pytest.param(lambda: ContentFile(b""), "$", "a file", id="django file"),
    pytest.param(lambda: {"a b": [1, lambda: 1]}, "$['a b'][1]", "a function", id="lambda"),
    pytest.param(lambda: functools.partial(print), "$", "a function", id="partial"),
    pytest.param(lambda: print, "$", "a function", id="builtin"),
    pytest.param(lambda: "".join, "$", "a function", id="method"),
    pytest.param(lambda: dict, "$", "a class", id="class"),
    pytest.param(lambda: [Point(1)], "$[0]", r"a dataclass .*dataclasses.asdict\(value\)", id="dataclass"),
    pytest.param(lambda: Bag(), "$", "a dataclass", id="dataclass that is a dict"),
    pytest.param(lambda: {"p": Pair(1, 2)}, "$.p", r"a namedtuple .*tuple\(value\)", id="namedtuple"),
    pytest.param(generator, "$", r"a.* generator .*list\(value\)", id="generator"),
    pytest.param(lambda: map(str, []), "$", "iterator", id="map"),
    pytest.param(lambda: range(3), "$", r"list\(value\)", id="range"),
    pytest.param(lambda: {}.keys(), "$", r"list\(value\)", id="dict view"),
    pytest.param(lambda: ValueError("x"), "$", "an error", id="error"),
    pytest.param(lambda: array.array("i"), "$", "an array", id="array"),
    pytest.param(lambda: Pydantic(), "$", r"value.model_dump\(\)", id="pydantic"),
    pytest.param(lambda: object(), "$", "of type object.*plain data", id="object"),
    pytest.param(lambda: 1j, "$", "of type complex", id="complex"),
    pytest.param(lambda: threading.Lock(), "$", "of type _thread.lock", id="lock"),
    pytest.param(lambda: re, "$", "of type module", id="module"),
    pytest.param(lambda: "a\0b", "$", "a NUL character at position 1", id="nul"),
    pytest.param(lambda: {"a": [("x\0",)]}, "$.a[0][0]", "a NUL character", id="nul inside"),
    pytest.param(lambda: {"k\0": 1}, "${key}", "a NUL character", id="nul in a key"),
    pytest.param(lambda: Text("a\0"), "$", "a NUL character", id="nul in a subclass"),
    pytest.param(lambda: ["\ud800"], "$[0]", "a lone surrogate", id="surrogate"),
    pytest.param(lambda: {"\ud800": 1}, "${key}", "a lone surrogate", id="surrogate key"),
    pytest.param(lambda: {"x": {1, (2, print)}}, "$.x{}[1]", "a function", id="in a set"),
    pytest.param(lambda: {(1, print): 1}, "${key}[1]", "a function", id="in a key"),
    pytest.param(lambda: {1: {2: print}}, "$[1][2]", "a function", id="number keys"),
    pytest.param(local_enum, "$", "cannot be found by its name", id="local enum"),
]


@pytest.mark.parametrize(("make", "path", "problem"), REFUSED)
def test_what_cannot_be_stored_is_refused_with_its_path_and_the_cure(make: Any, path: str, problem: str) -> None:
    """SER-02, SER-04."""
    value = make()
    with pytest.raises(CodecError, match=problem) as caught:
        codec.dumps(value, what='the output of step "load cart"')
    assert str(caught.value).startswith(f'The output of step "load cart" cannot be stored: {path} ')
    str(caught.value).encode()  # the message can be stored itself
    assert "\0" not in str(caught.value)


def test_an_unstorable_subclass_of_a_storable_type_is_a_codec_error() -> None:
    class Broken(Decimal):
        def __new__(cls) -> Broken:
            return super().__new__(cls, "1")

        def __str__(self) -> str:
            raise RuntimeError("no")

    class NotATime(datetime):
        @property
        def tzinfo(self) -> Any:
            raise RuntimeError("NaT")

    assert roundtrip(Broken()) == Decimal(1)
    with pytest.raises(CodecError, match="which failed: RuntimeError"):
        codec.dumps([NotATime(2026, 1, 1)])


def deep(levels: int, make: Any) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = make(value)
    return value


@pytest.mark.parametrize(
    "make", [lambda v: [v], lambda v: {"a": v}, lambda v: (v,), lambda v: {1: v}], ids=["list", "dict", "tuple", "keys"]
)
def test_nesting_has_a_limit_and_everything_within_it_comes_back(make: Any) -> None:
    within = deep(codec.MAX_DEPTH, make)
    assert roundtrip(within) == within
    for levels in (codec.MAX_DEPTH + 1, 100_000):
        with pytest.raises(CodecError, match="nested deeper than 100 levels"):
            codec.dumps(deep(levels, make))


def test_shared_values_are_no_cycle() -> None:
    shared = [1, (2,)]
    assert roundtrip([shared, {"a": shared}]) == [[1, (2,)], {"a": [1, (2,)]}]


def test_sizes_are_counted_in_utf8_and_named() -> None:
    """SER-06."""
    assert codec.dumps("ü" * 10, max_bytes=22) == '"' + "ü" * 10 + '"'
    with pytest.raises(LimitExceeded) as caught:
        codec.dumps("ü" * 1000, what='the output of step "x"', max_bytes=1500)
    assert str(caught.value).startswith(
        'The output of step "x" is too large: 2,002 bytes, at most 1,500 bytes are allowed.'
    )
    assert (caught.value.size, caught.value.limit, caught.value.what) == (2002, 1500, 'the output of step "x"')
    with pytest.raises(LimitExceeded):
        codec.dumps((1, "a" * 100), max_bytes=50)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1,]",
        "nul",
        "NaN",
        "[Infinity]",
        '{"$df":"tuple"}',
        '{"$df":"tuple","v":1}',
        '{"$df":"from the future","v":1}',
        '{"$df":["tuple"],"v":[]}',
        '{"$df":null,"v":[]}',
        '{"$df":"datetime","v":"yesterday"}',
        '{"$df":"datetime","v":["2026-01-01T00:00:00","Mars/Olympus",0]}',
        '{"$df":"datetime","v":["2026-01-01T00:00:00"]}',
        '{"$df":"decimal","v":"one"}',
        '{"$df":"uuid","v":5}',
        '{"$df":"bytes","v":"*"}',
        '{"$df":"set","v":[[1]]}',
        '{"$df":"dict","v":[[[1],2]]}',
        '{"$df":"timedelta","v":[1e300,0,0]}',
        '{"$df":"enum","v":["os","path","sep"]}',
        '{"$df":"enum","v":"x"}',
        '{"$df":"flag","v":["enum","Flag",true,1]}',
        '{"$df":"int","v":"zz"}',
        "9" * 5000,
        "[" * 100_000,
        None,
        5,
        b"[]\xff",
    ],
    ids=lambda text: f"{str(text)[:40]!a}",
)
def test_a_damaged_text_is_a_codec_error(text: Any) -> None:
    with pytest.raises(CodecError, match="A stored value cannot be read"):
        codec.loads(text)


def test_an_enum_is_looked_up_and_never_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    text = codec.dumps(Colour.RED).replace(__name__, "a_shop.colours")
    with pytest.raises(
        CodecError, match=r"a_shop\.colours\.Colour is not among the imported modules.*import a_shop\.colours"
    ):
        codec.loads(text)
    module = ModuleType("a_shop.colours")
    monkeypatch.setitem(sys.modules, "a_shop.colours", module)
    vars(module)["Colour"] = Colour
    assert codec.loads(text) is Colour.RED
    vars(module)["Colour"] = enum.Enum("Colour", "BLUE")
    with pytest.raises(CodecError, match="has no member RED"):
        codec.loads(text)
    vars(module)["__getattr__"] = pytest.fail
    vars(module).pop("Colour")
    with pytest.raises(CodecError):
        codec.loads(text)


def test_an_alias_of_an_enum_member_is_the_member() -> None:
    assert roundtrip(Colour.CRIMSON) is Colour.RED
