"""django-filter for our views, without its HTML."""

from __future__ import annotations

from datetime import UTC
from typing import Any, Final

import django_filters  # type: ignore[import-untyped]
from django import forms
from django.core.exceptions import ValidationError
from django_filters.rest_framework import DjangoFilterBackend  # type: ignore[import-untyped]

BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False, "": None}


class QueryFilter(DjangoFilterBackend):  # type: ignore[misc]
    """Filters by query parameters; a value that no filter can mean is a 400."""

    raise_exception = True

    def to_html(self, request: Any, queryset: Any, view: Any) -> str:
        """There is no browsable API here."""
        return ""


class _TrueOrFalse(forms.NullBooleanField):
    widget = forms.TextInput

    def to_python(self, value: Any) -> bool | None:  # type: ignore[override]
        """The boolean, None where nothing is said. Django's own takes what it does not know for nothing."""
        try:
            return BOOLEANS["" if value is None else str(value).lower()]
        except KeyError:
            raise ValidationError("Say true or false.") from None


class _Moment(django_filters.fields.IsoDateTimeField):  # type: ignore[misc]
    def to_python(self, value: Any) -> Any:
        """The moment. Near the ends of the calendar an offset can lead out of it, where no database can compare."""
        found = super().to_python(value)
        try:
            return found if found is None else found.astimezone(UTC)
        except (OverflowError, ValueError):
            raise ValidationError(self.error_messages["invalid"], code="invalid") from None


class MomentFilter(django_filters.IsoDateTimeFilter):  # type: ignore[misc]
    """A moment that is one in UTC too."""

    field_class = _Moment


class TrueOrFalseFilter(django_filters.BooleanFilter):  # type: ignore[misc]
    """``true`` or ``false``; anything else is refused and not ignored, which would answer with all rows."""

    field_class = _TrueOrFalse
