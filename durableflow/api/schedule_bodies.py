"""What requests about schedules may say; what cannot be is the model's to refuse (``full_clean``)."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from durableflow.api.bodies import AnyField, Body, OneOfField, TextField, TrueOrFalse
from durableflow.core import registry
from durableflow.models import WorkflowSchedule


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "integer"}]})
class CatchUpField(serializers.Field[Any, Any, Any, Any]):
    """``none``, ``latest`` or a number."""

    default_error_messages = {"invalid": "Choose none, latest or a whole number."}

    def to_internal_value(self, data: Any) -> str:
        """As it is stored."""
        if isinstance(data, bool) or not isinstance(data, str | int):
            self.fail("invalid")
        return str(data)


class ScheduleEdit(Body):
    """Changes a schedule."""

    cron = TextField(required=False, help_text="Five fields, such as `0 2 * * MON-FRI`.")
    timezone = TextField(required=False, help_text="An IANA name, such as Europe/Berlin. Default: UTC.")
    params = AnyField(required=False, help_text="What each instance gets as event.params.")
    enabled = TrueOrFalse(required=False)
    catch_up = CatchUpField(required=False, help_text="Of slots that nobody was there for. Default: latest.")
    overlap = OneOfField(
        WorkflowSchedule.Overlap.values, required=False, help_text="While an earlier instance goes on. Default: allow."
    )


class ScheduleBody(ScheduleEdit):
    """Makes a schedule."""

    workflow = TextField(help_text="One that is registered.")
    name = TextField(help_text="Ids of its instances begin with it.")
    cron = TextField(help_text="Five fields, such as `0 2 * * MON-FRI`.")

    def validate_workflow(self, value: str) -> str:
        """A registered name, looked up and never imported (case SEC-08)."""
        cls = registry.find(value)
        if cls is None:
            raise serializers.ValidationError("There is no such workflow.")
        return str(cls.workflow_name())
