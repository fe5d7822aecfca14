"""The form of a wait: stored by path, looked up, never imported (design 5)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import models

from durableflow.core.jsontext import parse_json


def path_of(form: type[forms.Form]) -> str:
    """The path under which a form class is stored. Raises ValueError for a class that could not be found again."""
    given: object = form
    if not (isinstance(given, type) and issubclass(given, forms.Form)):
        raise ValueError(f"form must be a django.forms.Form class, not {form!r}.")
    path = f"{form.__module__}.{form.__qualname__}"
    if find(path) is not form:
        raise ValueError(
            f"form {path} must be a class at the top level of its module, so that the decide page finds it again."
        )
    return path


def find(path: str) -> type[forms.Form] | None:
    """The class behind a stored path among the modules that are imported, or None. Nothing is imported (case
    SEC-08)."""
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, forms.Form) else None


def build(path: str, data: Mapping[str, Any] | None) -> forms.Form:
    """The form of a wait; an empty one where ``path`` is ''. Raises RuntimeError with the cure for a class that is
    not imported."""
    if not path:
        return forms.Form(data)
    cls = find(path)
    if cls is None:
        raise RuntimeError(
            f"The form {path} is not imported in this process. Import it at the top of the workflows module, so "
            "that every process knows it."
        )
    return cls(data)


def clean(pending: Any, approved: bool, data: Mapping[str, Any] | None) -> Any:
    """Validate what came with a decision and return what is stored: cleaned data, with keys in place of model
    instances.

    Raises ValidationError (a dict of fields) and then nothing is stored (design 5).
    """
    if not approved:
        if data:
            raise ValidationError({"data": "A rejection takes no form data."})
        return None
    if not pending.form:
        if data:
            raise ValidationError({"data": "This decision has no form, so it takes no data."})
        return None
    form = pending.get_form(_as_posted(pending.get_form(), dict(data or {})))
    if not form.is_valid():
        raise ValidationError(
            {name: list(errors.as_data()) for name, errors in form.errors.items()} if form.errors else "Invalid data."
        )
    return {name: _storable(name, value) for name, value in form.cleaned_data.items()}


def _as_posted(form: forms.Form, data: dict[str, Any]) -> dict[str, Any]:
    """``data`` as a browser would send it: numbers as text, lists only where a field takes several values.

    Form fields rely on that and would fail, not refuse, on other types. Names that the form does not have are refused:
    they would be ignored silently.
    """
    posted: dict[str, Any] = {}
    wrong: dict[str, Any] = {}
    for name, value in data.items():
        field = form.fields.get(name)
        if field is None and not any(name.startswith(f"{known}_") for known in form.fields):
            wrong[name] = "The form has no such field."
        elif isinstance(field, forms.JSONField):
            try:
                posted[name] = _json_text(value)
            except (ValueError, RecursionError) as error:
                wrong[name] = f"This cannot be read as JSON: {error}."
        elif isinstance(value, list | tuple) and field is not None and _takes_several(field):
            posted[name] = [_scalar(member) for member in value]
        elif isinstance(value, list | tuple | dict):
            wrong[name] = "Give a single value."
        else:
            posted[name] = _scalar(value)
    if wrong:
        raise ValidationError(wrong)
    return posted


def _takes_several(field: forms.Field) -> bool:
    return bool(getattr(field.widget, "allow_multiple_selected", False))


def _json_text(value: Any) -> str:
    """What is given to a field for JSON. Raises ValueError and RecursionError for a text on which it would fail: of too many
    digits or levels, or with another value than it says. One that is no JSON at all it refuses in its own words."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        parse_json(value)
    except json.JSONDecodeError:
        pass
    return value


def _scalar(value: Any) -> Any:
    """As a browser would send it; check boxes read True and False from their names."""
    return str(value) if isinstance(value, int | float) else value


def _storable(name: str, value: Any) -> Any:
    if isinstance(value, models.Model):
        return value.pk
    if isinstance(value, models.QuerySet):
        return [row.pk for row in value]
    if hasattr(value, "chunks") and hasattr(value, "read"):
        raise ValidationError({name: "Files cannot be part of a decision: store the file and give its name."})
    return value
