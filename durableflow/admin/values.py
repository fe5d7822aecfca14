"""Values that staff type in: JSON text, as the codec reads it (design 6, "Codec")."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from durableflow.core import codec
from durableflow.core.exceptions import CodecError
from durableflow.core.jsontext import NotJson, parse_json


class ValueField(forms.CharField):
    """JSON. What the codec writes for a date, a decimal number and so on (``{"$df": "decimal", "v": "1.50"}``) is read as that;
    nothing is ever imported for it (case SEC-08). An empty field is no value: ``null`` is one."""

    default_error_messages = {
        "not_json": _("This is not JSON: line %(line)d, column %(column)d: %(problem)s. Text stands in double quotes."),
    }

    def __init__(self, **options: Any) -> None:
        options.setdefault("widget", forms.Textarea(attrs={"rows": 6, "spellcheck": "false", "class": "df-code"}))
        super().__init__(**options)

    def clean(self, value: Any) -> Any:
        """The value; ``empty_value`` where nothing was entered and nothing has to be."""
        text = super().clean(value)
        if text in self.empty_values:
            return self.empty_value
        try:
            parse_json(text)
        except json.JSONDecodeError as error:
            found = {"line": error.lineno, "column": error.colno, "problem": error.msg}
            raise forms.ValidationError(self.error_messages["not_json"], "not_json", found) from error
        except NotJson as error:
            raise forms.ValidationError(_("%(name)s is no JSON value.") % {"name": error.found}, "not_json") from error
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(str(error), "not_json") from error
        try:
            return codec.loads(text)
        except CodecError as error:
            raise forms.ValidationError(str(error), "not_json") from error
