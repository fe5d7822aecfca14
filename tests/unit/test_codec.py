"""The codec: what comes back is equal and of the same types; what cannot come back is refused with its path."""

from __future__ import annotations

import collections
import enum
import json
import math
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.utils.functional import lazystr
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import given, settings
from hypothesis import strategies as st

from durableflow.core import codec
from durableflow.core.exceptions import CodecError

BERLIN = ZoneInfo("Europe/Berlin")


class Colour(enum.Enum):
    RED = "red"
    GREEN = ("green", 2)
    CRIMSON = "red"


class Size(enum.IntEnum):
    SMALL = 1


class Mode(enum.StrEnum):
    FAST = "fast"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


def roundtrip(value: Any) -> Any:
    return codec.loads(codec.dumps(value))


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, Decimal):
        return str(left) == str(right)
    if isinstance(left, dict):
        pairs = zip(left.items(), right.items(), strict=True)
        return len(left) == len(right) and all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, set | frozenset):
        return left == right and sorted(str(type(m)) for m in left) == sorted(str(type(m)) for m in right)
    if isinstance(left, datetime | time):
        offsets = left.utcoffset() == right.utcoffset()
        zones = not isinstance(left.tzinfo, ZoneInfo) or left.tzinfo is right.tzinfo
        return offsets and zones and left.replace(tzinfo=None) == right.replace(tzinfo=None) and left.fold == right.fold
    return bool(left == right)


VALUES: list[Any] = [
    None,
    True,
    0,
    -(10**25),
    1e16,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "ünï 🎈 \\u0000 \x01\x7f",
    "$df",
    [],
    {},
    (),
    set(),
    [None, [True, (1, 2)]],
    {"b": 1, "a": [1, {"c": ()}]},
    {1: "a", None: 2, (1, "x"): 3, False: 4, 1.5: 5, frozenset({1}): 6},
    {"$df": "tuple", "v": [1]},
    {"$df": 1, 2: 3},
    {"nested": {"$df": {"$df": []}}},
    {"1": "text", 1: "number"},
    datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC),
    datetime(2026, 1, 2, 3, 4),
    datetime(2026, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    datetime(2026, 1, 2, 3, 4, tzinfo=timezone(timedelta(seconds=-1))),
    datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
    datetime(2026, 10, 25, 2, 30, fold=1),
    datetime(2026, 1, 2, tzinfo=ZoneInfo("UTC")),
    datetime.min,
    datetime.max,
    date(1, 1, 1),
    time(1, 2, 3, 4),
    time(1, 2, tzinfo=UTC),
    time(1, 2, fold=1, tzinfo=BERLIN),
    timedelta(days=-1, microseconds=7),
    timedelta.max,
    Decimal("1.10"),
    Decimal("-0E-10"),
    Decimal("NaN"),
    Decimal("Infinity"),
    UUID(int=7),
    b"",
    bytes(range(256)),
    frozenset({(1, 2), "a"}),
    {1, "1", 2.5, None},
    Colour.GREEN,
    Size.SMALL,
    Mode.FAST,
    Rights.READ,
    Rights.READ | Rights.WRITE,
    Rights(0),
    {Mode.FAST: [Colour.RED]},
    2**16000,
    -(10**5000),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back_equal_and_of_the_same_types(value: Any) -> None:
    """SER-01, SER-03, SER-04."""
    text = codec.dumps(value)
    assert same(codec.loads(text), value)
    assert codec.dumps(codec.loads(text)) == text
    json.loads(text.encode(), parse_constant=pytest.fail)  # strict JSON, and UTF-8


def test_the_types_of_a_step_result_survive() -> None:
    """SER-01: the case's own value."""
    value = {
        "t": (1, 2),
        1: "a",
        "d": Decimal("1.10"),
        "w": datetime(2026, 1, 1, tzinfo=UTC),
        "u": UUID(int=1),
        "s": {1},
    }
    assert same(roundtrip(value), value)


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    | st.decimals()
    | st.uuids()
    | st.binary()
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.timezones(), allow_imaginary=True)
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.sampled_from([*Colour, *Size, *Mode, *Rights])
)
# Neither NaN (never equal to itself) nor numbers equal to other types' values (1, True, 1.0, Size.SMALL are one key).
KEYS = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    | st.uuids()
    | st.dates()
    | st.binary()
    | st.just("$df")
)
TREES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS | st.tuples(KEYS, KEYS), inner)
        | st.sets(KEYS)
        | st.frozensets(KEYS)
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(TREES)
def test_any_tree_of_storable_values_comes_back(value: Any) -> None:
    """SER-01: round trip of values and types, recursively."""
    text = codec.dumps(value)
    assert same(codec.loads(text), value)
    assert codec.dumps(codec.loads(text)) == text


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=2)), ZoneInfo("Europe/Berlin")])
@pytest.mark.parametrize("microsecond", [0, 120, 999999])
def test_the_text_of_an_attempt_is_the_codecs(zone: tzinfo, microsecond: int) -> None:
    """It is made by hand, for speed."""
    started = datetime(2026, 11, 30, 9, 8, 7, microsecond, zone)
    assert codec.attempt(12, started) == codec.dumps({"attempt": 12, "started": started})


def test_the_text_is_compact_utf8_and_keeps_the_order_of_keys() -> None:
    assert codec.dumps({"b": "ü", "a": [1, 2.5, None]}) == '{"b":"ü","a":[1,2.5,null]}'
    assert codec.dumps({"b": ("ü",), "a": 1}) == '{"b":{"$df":"tuple","v":["ü"]},"a":1}'


class Text(str):
    def __str__(self) -> str:
        return "other"


class Number(int):
    def __int__(self) -> int:
        return -1


class Real(float):
    pass


class Moment(datetime):
    def isoformat(self, *args: Any, **kwargs: Any) -> str:
        return "never"


@pytest.mark.parametrize(
    ("value", "base"),
    [
        (Text("a"), "a"),
        (mark_safe("<b>"), "<b>"),
        (gettext_lazy("Yes"), "Yes"),
        (lazystr("a"), "a"),
        (Number(5), 5),
        (Real(1.5), 1.5),
        (Moment(2026, 1, 2), datetime(2026, 1, 2)),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.defaultdict(list, {"a": [1]}), {"a": [1]}),
        (collections.UserString, None),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
    ],
)
def test_subclasses_and_lazy_text_become_their_base(value: Any, base: Any) -> None:
    """Design 12; SER-07 for the binary types."""
    if base is None:
        with pytest.raises(CodecError):
            codec.dumps(value)
        return
    assert same(roundtrip(value), base)
    assert same(roundtrip({"in": [value]}), {"in": [base]})


def test_keys_of_subclasses_become_their_base() -> None:
    assert same(roundtrip({Text("a"): 1, "$": Number(2)}), {"a": 1, "$": 2})


def test_binary_data_counts_within_the_factor_of_base64() -> None:
    """SER-07: sizes are predictable."""
    for size in (10, 200_000, 900_000):
        value = b"\xff" * size
        text = codec.dumps(value)
        assert codec.loads(text) == value
        assert len(text) <= size * 4 / 3 + 40


def test_sets_are_stored_in_one_order_in_every_process() -> None:
    members = [f"member {n}" for n in range(20)]
    backwards = members[::-1]
    texts = {codec.dumps(set(members)), codec.dumps(set(backwards))}
    program = f"from durableflow.core import codec; print(codec.dumps(set({members!r})))"
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        texts.add(run.stdout.strip())
    assert len(texts) == 1


def test_loads_gives_fresh_objects() -> None:
    """SER-01: appending to a result does not change the stored one."""
    value = {"a": [1, {"b": (1, [2])}]}
    text = codec.dumps(value)
    first, second = codec.loads(text), codec.loads(text)
    first["a"].append(3)
    first["a"][1]["b"][1].append(3)
    assert second == value == {"a": [1, {"b": (1, [2])}]}


def test_tags_are_versioned_by_name() -> None:
    """The stored forms are a promise: texts that are in databases must be readable for ever."""
    stored = {
        '{"$df":"datetime","v":"2026-01-02T03:04:05.000006+00:00"}': datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        '{"$df":"datetime","v":["2026-10-25T02:30:00.000000+01:00","Europe/Berlin",1]}': datetime(
            2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN
        ),
        '{"$df":"date","v":"2026-01-02"}': date(2026, 1, 2),
        '{"$df":"time","v":"03:04:05.000006"}': time(3, 4, 5, 6),
        '{"$df":"timedelta","v":[-1,0,7]}': timedelta(days=-1, microseconds=7),
        '{"$df":"decimal","v":"1.10"}': Decimal("1.10"),
        '{"$df":"uuid","v":"00000000-0000-0000-0000-000000000007"}': UUID(int=7),
        '{"$df":"bytes","v":"/w=="}': b"\xff",
        '{"$df":"tuple","v":[1]}': (1,),
        '{"$df":"set","v":[1,2]}': {1, 2},
        '{"$df":"frozenset","v":[]}': frozenset(),
        '{"$df":"float","v":"-inf"}': -math.inf,
        '{"$df":"int","v":"-0x1' + "0" * 4000 + '"}': -(16**4000),
        '{"$df":"dict","v":[[1,{"$df":"dict","v":[["$df",null]]}]]}': {1: {"$df": None}},
        f'{{"$df":"enum","v":["{__name__}","Colour","RED"]}}': Colour.RED,
        f'{{"$df":"flag","v":["{__name__}","Rights",3]}}': Rights.READ | Rights.WRITE,
    }
    for text, value in stored.items():
        assert same(codec.loads(text), value)
        assert codec.dumps(value) == text


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 11, 30, 6, 40, tzinfo=UTC),
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=3, seconds=7))),
        date(2026, 1, 2),
        timedelta(days=-1, microseconds=5),
        Decimal("1E+5"),
        Decimal("NaN"),
        UUID(int=7),
    ],
    ids=str,
)
def test_the_fast_way_writes_what_the_careful_one_does(value: Any) -> None:
    """One format: which way a value takes depends on its neighbours, and is nobody's business."""
    for whole in (value, {"a": [value, {"b": value}], "c": None}):
        fast = codec._fast(whole)
        assert fast is not None and fast == codec._write(whole, "value")
        assert codec.loads(fast) == whole or value != value


def test_a_time_zone_that_fails_is_reported_by_the_careful_way() -> None:
    class Broken(tzinfo):
        def utcoffset(self, moment: datetime | None) -> timedelta:
            raise RuntimeError("no such zone")

        dst = tzname = utcoffset  # type: ignore[assignment]

    with pytest.raises(CodecError, match="no such zone"):
        codec.dumps({"at": datetime(2026, 1, 1, tzinfo=Broken())})
