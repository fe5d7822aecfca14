"""JSON as a Django form takes it."""

from __future__ import annotations

from typing import Any

from django import forms
from rest_framework.exceptions import ValidationError

from durableflow.models import PendingEvent


def form_data(pending: PendingEvent, data: dict[str, Any] | None) -> dict[str, Any] | None:
    """``data`` for ``pending.decide``: numbers as text, as a browser would send them, and lists only where the field
    takes several values.

    Form fields rely on that and would fail, not refuse, on other types. Raises ValidationError for names that the form
    does not have: they would be ignored silently.
    """
    if not data or not pending.form:
        return data
    fields = pending.get_form().fields
    wrong = {name: ["The form has no such field."] for name in data if name not in fields}
    found = {}
    for name in data.keys() & fields.keys():
        try:
            found[name] = _value(fields[name], data[name])
        except ValueError as error:
            wrong[name] = [str(error)]
    if wrong:
        raise ValidationError(wrong)
    return found


def _value(field: forms.Field, value: Any) -> Any:
    if isinstance(field, forms.JSONField):
        return value
    if isinstance(value, list) and getattr(field.widget, "allow_multiple_selected", False):
        return [_scalar(member) for member in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, list | dict):
        raise ValueError("Give a single value.")
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
