"""Rules for names: whatever is accepted can stand in URLs and command lines."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import quote

import pytest
from django.utils.safestring import mark_safe

from durableflow.core.exceptions import LimitExceeded
from durableflow.core.names import (
    check_event_type,
    check_instance_id,
    check_step_name,
    check_workflow_name,
    kebab,
)

CHECKS = [(check_instance_id, 100), (check_workflow_name, 64), (check_event_type, 100)]


@pytest.mark.parametrize(("check", "longest"), CHECKS)
@pytest.mark.parametrize("name", ["order-1", "_", "A_b-9", "batch", str(uuid.UUID(int=1)), "0", "_--"])
def test_accepted_names_need_no_quoting(check: Any, longest: int, name: str) -> None:
    """SEC-14."""
    assert check(name) == name == quote(name, safe="")
    assert check("x" * longest) == "x" * longest


@pytest.mark.parametrize(("check", "longest"), CHECKS)
@pytest.mark.parametrize(
    "name",
    [
        "inv.2026-01",
        "a/b",
        "ü",
        " x",
        "x ",
        "..",
        "x.json",
        "",
        "-x",
        "x\n",
        "\n",
        "a b",
        "a\0",
        "\ud800",
        "٣",
        5,
        None,
        b"x",
        ["x"],
    ],
)
def test_other_names_are_refused_with_the_rule(check: Any, longest: int, name: Any) -> None:
    """SEC-14: refused at create, never accepted and then unreachable."""
    with pytest.raises(ValueError, match="letters A-Z and a-z, digits") as caught:
        check(name)
    str(caught.value).encode()
    assert "\0" not in str(caught.value)


@pytest.mark.parametrize(("check", "longest"), [*CHECKS, (check_step_name, 256)])
def test_a_wrong_size_names_size_and_limit(check: Any, longest: int) -> None:
    """SEC-14: 101 characters."""
    with pytest.raises(LimitExceeded, match=f"{longest + 1} characters, at most {longest} characters") as caught:
        check("x" * (longest + 1))
    assert not isinstance(caught.value, ValueError)
    assert (caught.value.size, caught.value.limit, caught.value.unit) == (longest + 1, longest, "characters")


def test_latest_is_no_instance_id() -> None:
    with pytest.raises(ValueError, match="latest"):
        check_instance_id("latest")
    assert check_instance_id("Latest") == "Latest"
    assert check_event_type("latest") == "latest"


@pytest.mark.parametrize(
    "name", ["charge card", "Zahlung über 5 €", "支払い", "🎈", "می‌خواهم", "x" * 256, " ", "a/b?c=<d>"]
)
def test_step_names_are_of_any_script(name: str) -> None:
    assert check_step_name(name) == name


@pytest.mark.parametrize("name", ["", "a\nb", "a\tb", "a\0b", "\x7f", "\x85", "\u2028", "\ud800", None, 5, b"x"])
def test_control_characters_in_step_names_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="step name") as caught:
        check_step_name(name)
    str(caught.value).encode()
    assert "\0" not in str(caught.value)


@pytest.mark.parametrize("check", [check_instance_id, check_workflow_name, check_event_type, check_step_name])
def test_subclasses_of_str_become_plain(check: Any) -> None:
    assert type(check(mark_safe("abc"))) is str


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NightlyExport", "nightly-export"),
        ("HTTPSync", "http-sync"),
        ("Checkout", "checkout"),
        ("SyncHTTP", "sync-http"),
        ("Order2Cash", "order2-cash"),
        ("A", "a"),
        ("_Private", "_private"),
        ("RenderPDFPage", "render-pdf-page"),
    ],
)
def test_default_workflow_names(name: str, expected: str) -> None:
    assert kebab(name) == expected
    assert check_workflow_name(kebab(name)) == expected
