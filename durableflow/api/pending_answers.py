"""What answers say of pending events (design 8)."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from durableflow.api.answers import Answer, Moment, Shown, one_of
from durableflow.core.statuses import PendingStatus, Via

MAX_CHOICES = 200
"""Choices of a form's field that are listed; a longer list, or one of rows, is not."""


class FormFieldAnswer(Answer):
    """A field of the wait's form, to be given in ``data``. ``choices``: the values that are possible, or null."""

    name = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment]
    help_text = serializers.CharField()  # type: ignore[assignment]
    required = serializers.BooleanField()  # type: ignore[assignment]
    type = serializers.CharField()
    choices = serializers.ListField(child=serializers.ListField(child=serializers.CharField()), allow_null=True)


class DecisionAnswer(Answer):
    """A decision. ``by``: name of the person. ``data``: what the wait's form made of it."""

    approved = serializers.BooleanField()
    by = serializers.CharField()
    at = Moment()
    via = one_of(Via.values)
    comment = serializers.CharField()
    data = Shown()  # type: ignore[assignment]


class PendingEventRow(Answer):
    """A pending event in a list. ``instance_url``: null where the user may decide, but not see the instance."""

    id = serializers.IntegerField()
    workflow = serializers.CharField(source="instance.workflow")
    instance_id = serializers.CharField(source="instance.instance_id")
    url = serializers.SerializerMethodField()
    instance_url = serializers.SerializerMethodField()
    kind = serializers.CharField()
    name = serializers.CharField()
    count = serializers.IntegerField()
    title = serializers.CharField()
    types = serializers.ListField(child=serializers.CharField())
    status = one_of(PendingStatus.values, source="current_status")
    may_decide = serializers.SerializerMethodField()
    opened = Moment()
    deadline = Moment(
        allow_null=True, source="current_deadline", help_text="Of a paused instance: if it was resumed now."
    )
    paused_at = Moment(
        allow_null=True, source="instance.paused_at", help_text="Since when the clock of the instance stands still."
    )
    closed = Moment(allow_null=True)
    users = serializers.SerializerMethodField()
    groups = serializers.SerializerMethodField()
    permission = serializers.CharField()
    allow_requester = serializers.BooleanField()

    def get_url(self, row: Any) -> str:
        """Where it is."""
        return str(self.context["view"].url("pending-event", row.pk))

    def get_instance_url(self, row: Any) -> str | None:
        """Where its instance is."""
        if not self.context["may_view"](row.instance):
            return None
        return str(self.context["view"].url("instance", row.instance.workflow, row.instance.instance_id))

    def get_may_decide(self, row: Any) -> bool:
        """Whether it waits on the user."""
        return row.pk in self.context["mine"]

    @extend_schema_field({"type": "array", "items": {"type": "string"}})
    def get_users(self, row: Any) -> list[str]:
        """Names of the people who may decide it."""
        return sorted(user.get_username() for user in row.users.all())

    @extend_schema_field({"type": "array", "items": {"type": "string"}})
    def get_groups(self, row: Any) -> list[str]:
        """Names of the groups whose members may decide it."""
        return sorted(group.name for group in row.groups.all())


class PendingEventAnswer(PendingEventRow):
    """A pending event with what is needed to decide it.

    ``form``: null where its class is not loaded in this process.
    """

    description = serializers.CharField()
    context = Shown()  # type: ignore[assignment]
    form = serializers.SerializerMethodField()
    decision = serializers.SerializerMethodField()

    @extend_schema_field(FormFieldAnswer(many=True, allow_null=True))
    def get_form(self, row: Any) -> Any:
        """The fields that a decision's ``data`` takes; empty where it takes none."""
        try:
            form = row.get_form()
        except RuntimeError:
            return None
        return [_field(name, field) for name, field in form.fields.items()]

    @extend_schema_field(DecisionAnswer(allow_null=True))
    def get_decision(self, row: Any) -> Any:
        """How it was decided, by whom and when."""
        if row.approved is None:
            return None
        decision = {
            "approved": row.approved,
            "by": row.decided_by_name,
            "at": row.decided_at,
            "via": row.via,
            "comment": row.comment,
            "data": row.data,
        }
        return DecisionAnswer(decision).data


def _field(name: str, field: Any) -> dict[str, Any]:
    return {
        "name": name,
        "label": str(field.label or name),
        "help_text": str(field.help_text),
        "required": field.required,
        "type": type(field).__name__.removesuffix("Field").lower(),
        "choices": _choices(field),
    }


def _choices(field: Any) -> list[list[str]] | None:
    """Static choices alone: those of a queryset are rows, which the right to decide does not show."""
    choices = getattr(field, "choices", None)
    if choices is None or hasattr(field, "queryset"):
        return None
    flat: list[list[str]] = []
    for value, label in choices:
        pairs = label if isinstance(label, list | tuple) else [(value, label)]
        flat += [[str(inner), str(text)] for inner, text in pairs]
    return flat if len(flat) <= MAX_CHOICES else None
