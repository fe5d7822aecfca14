"""The form with which staff add and change schedules (design 9; cases SCH-05, SEC-08)."""

from __future__ import annotations

import json
from typing import Any, Final

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS
from django.utils.translation import gettext_lazy as _

from durableflow.admin.values import ValueField
from durableflow.core import codec, registry
from durableflow.core.cron import known_zones
from durableflow.core.fields import Unreadable
from durableflow.core.plain import to_plain
from durableflow.core.redact import redact
from durableflow.models import WorkflowSchedule

PARAMS: Final = "params: "
"""How a schedule's own check begins what it finds in the params, which no form of Django has."""


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]
    """What a schedule says. Its own ``clean()`` checks it; here are choices, explanations and the params as text."""

    workflow = forms.ChoiceField(
        label=_("Workflow"), help_text=_("What is started. Only workflows of the running program.")
    )
    timezone = forms.ChoiceField(
        label=_("Time zone"), help_text=_("The cron line is read as local time there, also when the clocks change.")
    )
    params = ValueField(
        label=_("Params"),
        required=False,
        empty_value=None,
        help_text=_('JSON that every instance gets, for example {"shop": 7}. Empty: none.'),
    )

    class Meta:
        model = WorkflowSchedule
        fields = ("workflow", "name", "cron", "timezone", "catch_up", "overlap", "enabled")
        exclude = ("params",)  # noqa: DJ006 - it is not Django's to make a field of
        help_texts = {
            "name": _("Letters, digits, - and _. The ids of its instances begin with it."),
            "cron": _(
                "Five fields: minute, hour, day of the month, month, day of the week. For example: 0 2 * * * is every night at 2:00; "
                "30 8 * * MON-FRI is at 8:30 on working days; */15 * * * * is every 15 minutes."
            ),
            "catch_up": _(
                'What is started for times at which no worker was there: "latest" only the newest of them, "none" none, a number that '
                "many of the newest."
            ),
            "overlap": _(
                "What happens at its time while an earlier instance has not ended. One that waits or is paused has not ended. Skipped "
                "times are listed with the reason."
            ),
            "enabled": _("Without it the schedule is paused from the start."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hidden = False
        if "workflow" in self.fields:
            self._choose("workflow", registry.names())
            self._choose("timezone", known_zones())
            self._fill_params()

    def _choose(self, name: str, known: list[str]) -> None:
        """Offer what is known; also what the row says now, so that it is seen: its own check tells what is wrong with it."""
        present = getattr(self.instance, name) if self.instance.pk else ""
        field: Any = self.fields[name]
        field.choices = [(one, one) for one in ([] if present in ("", *known) else [present]) + known]
        if name == "workflow" and not self.instance.pk:
            field.choices = [("", "---------"), *field.choices]
        elif not self.instance.pk:
            field.initial = getattr(self.instance, name)  # browsers would send the first of all zones

    def _fill_params(self) -> None:
        value = self.instance.params
        if value is None or isinstance(value, Unreadable):
            return
        plain = to_plain(value)
        if redact(plain) != plain:
            self._hidden = True
            self.fields["params"].help_text = _(
                "The stored params hold values that are not shown. Left empty, they stay as they are; what you enter replaces all of them."
            )
            return
        self.initial["params"] = json.dumps(json.loads(codec.dumps(value)), indent=2, ensure_ascii=False)

    def clean(self) -> dict[str, Any]:
        """Hand the params to the row, whose own check comes next."""
        cleaned = super().clean() or {}
        if "params" in cleaned and not (self._hidden and cleaned["params"] is None):
            self.instance.params = cleaned["params"]
        return cleaned

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]
        found = self.errors.get(NON_FIELD_ERRORS)
        if not found or "params" not in self.fields:
            return
        theirs = [text for text in found if str(text).startswith(PARAMS)]
        if theirs:
            others = [text for text in found if text not in theirs]
            del self.errors[NON_FIELD_ERRORS]
            for text in others:
                self.add_error(None, text)
            for text in theirs:
                self.add_error("params", str(text).removeprefix(PARAMS))
