"""What comes with a decision is checked before it is stored (design 5)."""

from __future__ import annotations

import datetime
import sys
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError

from durableflow import (
    CodecError,
    LimitExceeded,
    drain,
)
from durableflow.models import WorkflowInstance
from tests.conftest import UserFactory
from tests.integration import decision_forms
from tests.integration.decision_forms import OddForm, RefundForm, TypedForm, UploadForm
from tests.integration.evt_flows import finished, flow, nothing_stored, opened

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


# What comes with it ----------------------------------------------------------------------------------------------------


def test_data_is_cleaned_before_it_is_stored(user_factory: UserFactory) -> None:
    """Design 5: cleaned data, keys in place of model instances."""
    groups = [Group.objects.create(name=name) for name in ("a", "b")]
    pending = opened(form=RefundForm)
    data = {"amount": "12.50", "day": "2026-02-03", "group": groups[0].pk, "groups": [g.pk for g in groups]}
    decision = pending.approve(by=None, data=data)
    cleaned = {
        "amount": Decimal("12.50"),
        "day": datetime.date(2026, 2, 3),
        "group": groups[0].pk,
        "groups": [g.pk for g in groups],
        "agree": False,
    }
    assert decision.data == cleaned
    pending.refresh_from_db()
    assert pending.data == cleaned
    assert finished(pending)[1] == cleaned


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"amount": "x"}, "amount"),
        ({"amount": "-1"}, "amount"),
        ({}, "amount"),
        (None, "amount"),
        ({"amount": "1", "group": 4711}, "group"),
        ({"amount": "13"}, "__all__"),
    ],
)
def test_wrong_data_is_refused_and_nothing_is_stored(data: dict[str, Any] | None, field: str) -> None:
    pending = opened(form=RefundForm)
    with pytest.raises(ValidationError) as refused:
        pending.approve(by=None, data=data)
    assert list(refused.value.message_dict) == [field]
    assert nothing_stored(pending)
    pending.approve(by=None, data={"amount": "1"})
    assert finished(pending)[0] is True


@pytest.mark.parametrize(
    "data",
    [
        *({name: True} for name in ("day", "at", "address")),
        *({"more": text} for text in ("9" * 5000, "[" * 5000, "{bad", "[NaN]", "[1e400]")),
        {"agree": [True]},
        {"name": {"a": 1}},
    ],
)
def test_values_of_another_type_are_refused_by_name(data: dict[str, Any]) -> None:
    """Where a field of Django's would fail."""
    pending = opened(form=TypedForm)
    with pytest.raises(ValidationError) as refused:
        pending.approve(by=None, data=data)
    assert list(refused.value.message_dict) == list(data) and nothing_stored(pending)


@pytest.mark.parametrize("agreed", [True, False])
def test_true_and_false_are_what_they_say(agreed: bool) -> None:
    pending = opened(form=TypedForm)
    names = ("agree", "sure", "hidden")
    decision = pending.approve(by=None, data={"more": agreed, **dict.fromkeys(names, agreed)})
    assert [decision.data[name] for name in ("more", *names)] == [agreed] * 4


def test_a_rejection_takes_no_data_and_needs_no_form() -> None:
    """Design 12."""
    pending = opened(form=RefundForm)
    with pytest.raises(ValidationError):
        pending.decide(False, by=None, data={"amount": "1"})
    assert nothing_stored(pending)
    pending.reject(by=None, comment="no")
    assert finished(pending)[:3] == [False, None, "no"]


def test_data_without_a_form_is_refused() -> None:
    pending = opened()
    with pytest.raises(ValidationError):
        pending.approve(by=None, data={"x": 1})
    assert nothing_stored(pending)


@pytest.mark.parametrize(("form", "error"), [(UploadForm, ValidationError), (OddForm, CodecError)])
def test_what_cannot_be_stored_is_refused(form: Any, error: type[Exception]) -> None:
    """Uploads, and any object that a form's clean() makes."""
    pending = opened(form=form)
    with pytest.raises(error):
        pending.approve(by=None, data={})
    assert nothing_stored(pending)


def test_a_comment_that_is_too_large_is_refused() -> None:
    pending = opened()
    with pytest.raises(LimitExceeded):
        pending.approve(by=None, comment="x" * 2_000_000)
    assert nothing_stored(pending)


@pytest.mark.parametrize("approved", ["yes", 1, None])
def test_an_answer_is_true_or_false(approved: Any) -> None:
    pending = opened()
    with pytest.raises(ValidationError):
        pending.decide(approved, by=None)
    assert nothing_stored(pending)


@pytest.mark.parametrize("option", [{"comment": None}, {"comment": "a\0"}, {"reason": None}])
def test_a_text_that_cannot_be_stored_is_refused(option: dict[str, Any]) -> None:
    pending = opened()
    with pytest.raises(ValidationError) as refused:
        pending.approve(by=None, **option)
    assert set(refused.value.message_dict) == set(option)
    assert nothing_stored(pending)


def test_a_form_that_is_not_imported_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 5: it is looked up, never imported."""
    pending = opened(form=RefundForm)
    monkeypatch.delitem(sys.modules, decision_forms.__name__)
    for call in (pending.get_form, lambda: pending.approve(by=None, data={"amount": "1"})):
        with pytest.raises(RuntimeError, match="RefundForm is not imported"):
            call()
    assert decision_forms.__name__ not in sys.modules
    assert nothing_stored(pending)
    pending.reject(by=None)  # that needs no form


def test_a_form_must_be_found_again() -> None:
    from django import forms

    class Local(forms.Form):
        pass

    row = flow(form=Local).create()
    drain()
    row.refresh_from_db()
    assert row.status == Status.ERRORED
    assert row.error is not None and "top level" in row.error["message"]
