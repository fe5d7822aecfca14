"""The form of a wait: stored by path, looked up, never imported (design 5)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import models
from django.forms.fields import InvalidJSONInput

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
    form = cls(data)
    for field in form.fields.values():  # of this form alone: each has copies of its class's fields
        if isinstance(field, forms.JSONField):
            _refuse_what_fails(field)
    return form


def _refuse_what_fails(field: forms.JSONField) -> None:
    """Django's field catches what is no JSON, but fails on a text of too many digits or levels, and takes NaN, Infinity and 1e400 for
    other values than they say."""
    read, bound = field.to_python, field.bound_data

    def to_python(value: Any) -> Any:
        if problem := _problem(value):
            raise ValidationError(problem)
        return read(value)

    def bound_data(data: Any, initial: Any) -> Any:
        return InvalidJSONInput(data) if _problem(data) else bound(data, initial)

    field.to_python = to_python  # type: ignore[method-assign]
    field.bound_data = bound_data  # type: ignore[method-assign]


def _problem(value: Any) -> str:
    """Why Django's field must not read this text; '' if it may, also where it is no JSON at all, for which it has words."""
    try:
        if isinstance(value, str):
            parse_json(value)
    except json.JSONDecodeError:
        pass
    except (ValueError, RecursionError) as error:
        return f"This cannot be read as JSON: {error}."
    return ""


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
                posted[name] = value if isinstance(value, str) else json.dumps(value)
            except (ValueError, RecursionError) as error:
                wrong[name] = f"This cannot be written as JSON: {error}."
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
