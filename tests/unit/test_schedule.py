"""``Schedule`` and ``Meta.schedules`` (api.md; design 5, 9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from durableflow import CodecError, LimitExceeded, Schedule, Workflow
from durableflow.core import registry


@pytest.fixture(autouse=True)
def isolated_registry() -> Iterator[None]:
    with registry.isolated():
        yield


def define(name: str, *bases: type, **meta: Any) -> Any:
    """A workflow class, as a ``class`` statement makes it."""
    space: dict[str, Any] = {"__module__": __name__, "__qualname__": name, "run": lambda self, event, step: None}
    if meta:
        space["Meta"] = type("Meta", (), meta)
    return type(name, bases or (Workflow,), space)


def shown(cls: Any) -> list[tuple[str, str]]:
    return [(schedule.name, schedule.cron) for schedule in cls.options.schedules]


def test_defaults() -> None:
    """Api.md."""
    schedule = Schedule("0 2  * * *")
    assert (schedule.cron, schedule.timezone, schedule.params, schedule.name) == ("0 2 * * *", "UTC", None, "")
    assert (schedule.catch_up, schedule.overlap) == ("latest", "allow")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cron": "0 0 30 2 *"}, "never matches"),
    ({"cron": 5}, "cron must be a text"),
    ({"timezone": "Europe/Atlantis"}, "The time zone 'Europe/Atlantis' is unknown"),
    ({"timezone": None}, "timezone must be"),
    ({"catch_up": "all"}, "catch_up must be"),
    ({"catch_up": 0}, "catch_up must be"),
    ({"catch_up": 101}, "catch_up must be"),
    ({"catch_up": True}, "catch_up must be"),
    ({"catch_up": 1.5}, "catch_up must be"),
    ({"overlap": "maybe"}, "overlap must be"),
    ({"overlap": ["skip"]}, "overlap must be"),
    ({"name": "every night"}, "begins the ids of its instances"),
    ({"name": "-x"}, "begins the ids of its instances"),
    ({"name": None}, "must be a str"),
]


@pytest.mark.parametrize(("values", "why"), WRONG)
def test_wrong_values(values: dict[str, Any], why: str) -> None:
    """SCH-02, SCH-05: at construction, with the field's name."""
    with pytest.raises(ValueError, match=why):
        Schedule(**{"cron": "* * * * *", **values})


def test_values_of_a_wrong_size_or_kind() -> None:
    """Design 12: what is too long is LimitExceeded, params that cannot be stored a CodecError."""
    with pytest.raises(LimitExceeded):
        Schedule("* * * * *", name="x" * 61)
    with pytest.raises(CodecError, match="Params of the schedule"):
        Schedule("* * * * *", params={"f": print})
    with pytest.raises(LimitExceeded):
        Schedule("* * * * *", params="x" * (1 << 20))


def test_names_by_position() -> None:
    """Design 9: a changed cron line stays the same row; texts are cron lines."""
    flow = define("Positions", schedules=["0 1 * * *", Schedule("0 2 * * *", name="two"), "0 3 * * *"])
    assert shown(flow) == [("schedule", "0 1 * * *"), ("two", "0 2 * * *"), ("schedule-3", "0 3 * * *")]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("* * * * *", "schedules must be a list"),
        (None, "schedules must be a list"),
        ([5], "with 5 in it"),
        (["bad"], "1 field"),
        (["* * * * *"] * 101, "101 entries"),
        ([Schedule("* * * * *", name="a"), Schedule("0 * * * *", name="a")], "Two of the schedules are named 'a'"),
        ([Schedule("* * * * *", name="schedule-2"), "0 * * * *"], "Two of the schedules are named 'schedule-2'"),
    ],
)
def test_wrong_lists(given: Any, why: str) -> None:
    """Design 5: a TypeError at import that names class and cause; nothing is registered."""
    with pytest.raises(TypeError, match=f"Wrong.Meta: .*{why}"):
        define("Wrong", schedules=given)
    assert registry.find("wrong") is None


def test_abstract_bases_hand_them_down() -> None:
    """Design 9: like other keys, but from abstract bases alone: a subclass of a scheduled workflow is not started beside it."""
    base = define("Base", abstract=True, schedules=["0 1 * * *"])
    scheduled = define("Scheduled", base)
    special = define("Special", scheduled)
    other = define("Other", define("Own", schedules=["0 2 * * *"]))
    mixed = define("Mixed", type("Mixin", (), {"Meta": type("Meta", (), {"schedules": ["0 3 * * *"]})}), Workflow)
    none = define("Nothing", base, schedules=[])
    assert shown(scheduled) == shown(special) == [("schedule", "0 1 * * *")]
    assert (shown(other), shown(none)) == ([], [])
    assert shown(mixed) == [("schedule", "0 3 * * *")]


def test_a_meta_that_derives_from_another() -> None:
    """The same for ``class Meta(Base.Meta)``."""
    base = define("Base", abstract=True, schedules=["0 1 * * *"], version=2)
    own = define("Own", schedules=["0 2 * * *"], version=3)
    from_base = type("Meta", (base.Meta,), {})
    from_own = type("Meta", (own.Meta,), {})
    first: Any = type("A", (Workflow,), {"Meta": from_base, "run": own.run})
    assert shown(first) == [("schedule", "0 1 * * *")]
    second: Any = type("B", (Workflow,), {"Meta": from_own, "run": own.run})
    assert (shown(second), second.options.version) == ([], 3)
