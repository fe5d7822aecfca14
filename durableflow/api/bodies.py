"""What requests may say. Unknown keys are refused: a misspelt one must not be ignored silently."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.utils.dateparse import parse_datetime
from drf_spectacular.drainage import set_override
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from durableflow.core import clock
from durableflow.core.durations import TEN_YEARS, parse_duration
from durableflow.core.names import check_event_type, check_instance_id, check_step_name
from durableflow.core.retries import Retention
from durableflow.core.statuses import StepKind
from durableflow.models import Priority
from durableflow.timeline import HISTORY_TYPES

TEXT_SIZE: Final = 10_000
MAX_WAIT: Final = 60
MAX_HISTORY: Final = 1_000


class Body(serializers.Serializer[Any]):
    """A JSON object of known keys."""

    def to_internal_value(self, data: Any) -> Any:
        """Refuse keys that mean nothing."""
        unknown = sorted(set(data) - set(self.fields)) if isinstance(data, dict) else []
        if unknown:
            text = f"Unknown field. Known fields: {', '.join(self.fields) or 'none'}."
            raise serializers.ValidationError({str(name): [text] for name in unknown})
        return super().to_internal_value(data)


@extend_schema_field(OpenApiTypes.ANY)
class AnyField(serializers.Field[Any, Any, Any, Any]):
    """Any JSON value; whether it can be stored is the codec's to say."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_null": True, **options})

    def to_internal_value(self, data: Any) -> Any:
        """The value itself."""
        return data

    def to_representation(self, value: Any) -> Any:
        """The value itself: it is plain already."""
        return value


@extend_schema_field(OpenApiTypes.BOOL)
class TrueOrFalse(serializers.Field[Any, Any, Any, Any]):
    """JSON true or false and nothing that looks like it: a decision must not be guessed."""

    default_error_messages = {"invalid": "Say true or false."}

    def to_internal_value(self, data: Any) -> bool:
        """The value itself."""
        if not isinstance(data, bool):
            self.fail("invalid")
        return bool(data)

    def to_representation(self, value: bool) -> bool:
        """The value itself."""
        return value


class TextField(serializers.CharField):
    """A JSON text. A number in its place is a mistake, and would be stored as its digits."""

    def to_internal_value(self, data: Any) -> str:
        """The text."""
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class NameField(serializers.CharField):
    """A name that a rule of ours allows; a wrong size is a LimitExceeded (413)."""

    def __init__(self, *, check: Callable[[str], str], **options: Any) -> None:
        self.check = check
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        """The checked name."""
        if not isinstance(data, str):
            self.fail("invalid")
        try:
            return self.check(data)
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from error


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "number"}]})
class StartField(serializers.Field[Any, Any, Any, Any]):
    """When an instance starts: an ISO 8601 time with offset, or a duration from now (``"10 minutes"``, or seconds)."""

    default_error_messages = {
        "naive": "The time needs an offset, such as 2026-12-01T08:00:00Z.",
        "late": "At most ten years from now are possible.",
    }

    def to_internal_value(self, data: Any) -> datetime | timedelta:
        """The moment or the duration."""
        try:
            moment = parse_datetime(data) if isinstance(data, str) else None
            if moment is None:
                return parse_duration(data, what="start_at", maximum=TEN_YEARS)
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from error
        if moment.tzinfo is None:
            self.fail("naive")
        try:
            moment = moment.astimezone(UTC)
        except OverflowError:
            self.fail("late")
        if moment > clock.host_now() + TEN_YEARS:
            self.fail("late")
        return moment


@extend_schema_field({"anyOf": [{"type": "string", "enum": [priority.name.lower() for priority in Priority]}]})
class PriorityField(serializers.Field[Any, Any, Any, Any]):
    """``high``, ``normal`` or ``low``; the numbers 0, 1, 2 are taken too."""

    default_error_messages = {"invalid": "Choose high, normal or low."}

    def to_internal_value(self, data: Any) -> Priority:
        """The priority."""
        for priority in Priority:
            if data == priority.name.lower() or (type(data) is int and data == priority.value):
                return priority
        self.fail("invalid")

    def to_representation(self, value: int) -> str:
        """Its name."""
        return Priority(value).name.lower()


_DURATION: Final = {"oneOf": [{"type": "string"}, {"type": "number"}], "nullable": True}


@extend_schema_field(
    {"type": "object", "properties": {"success": _DURATION, "error": _DURATION}, "additionalProperties": False}
)
class RetentionField(serializers.Field[Any, Any, Any, Any]):
    """``{"success", "error"}``: durations for which a finished instance is kept; what is left out is the workflow's."""

    default_error_messages = {
        "invalid": 'Give an object such as {{"success": "30 days", "error": "90 days"}}.',
        "unknown": "Unknown field {name}. Known fields: success, error.",
    }

    def to_internal_value(self, data: Any) -> Retention:
        """The retention."""
        if not isinstance(data, dict):
            self.fail("invalid")
        if unknown := sorted(set(data) - {"success", "error"}):
            self.fail("unknown", name=str(unknown[0]))
        try:
            return Retention(**data)
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from error


class OneOfField(serializers.Field[Any, Any, Any, Any]):
    """A text of known ones. They are told one level below the field, for the same reason as in ``answers.one_of``."""

    default_error_messages = {"invalid": "Choose one of {names}."}

    def __init__(self, names: Iterable[str], **options: Any) -> None:
        self.names = [str(name) for name in names]
        super().__init__(**options)
        set_override(self, "field", {"anyOf": [{"type": "string", "enum": self.names}]})

    def to_internal_value(self, data: Any) -> str:
        """The text itself."""
        if not isinstance(data, str) or data not in self.names:
            self.fail("invalid", names=", ".join(self.names))
        return data

    def to_representation(self, value: str) -> str:
        """The text itself."""
        return str(value)


class OptionsBody(Body):
    """What an instance may be started with beside its id."""

    params = AnyField(required=False, default=None, help_text="What run() gets as event.params.")
    start_at = StartField(
        required=False, allow_null=True, default=None, help_text="A moment with offset, or a duration from now."
    )
    priority = PriorityField(
        required=False, allow_null=True, default=None, help_text="Default: what the workflow says."
    )
    retention = RetentionField(
        required=False, allow_null=True, default=None, help_text="How long it is kept after its end."
    )


class StartBody(OptionsBody):
    """Starts an instance."""

    instance_id = NameField(check=check_instance_id, required=False, help_text="Default: a new UUID.")


class ReasonBody(Body):
    """What every verb may carry."""

    reason = TextField(
        required=False, allow_blank=True, default="", max_length=TEXT_SIZE, help_text="Kept in the history."
    )


class TerminateBody(ReasonBody):
    """How an instance is ended."""

    rollback = TrueOrFalse(required=False, default=False, help_text="First undo what it did, as its handlers say.")


class StepNamed(Body):
    """A step of an instance's present run. ``scope``: only where several branches have a step of that name."""

    name = NameField(check=check_step_name)
    count = serializers.IntegerField(
        required=False,
        default=1,
        min_value=1,
        max_value=2**31 - 1,
        help_text="Which call of that name, counted from 1.",
    )
    kind = OneOfField(StepKind.values, required=False, default=StepKind.DO.value)
    scope = TextField(required=False, allow_null=True, default=None, trim_whitespace=False)


class RestartBody(ReasonBody):
    """From where an instance runs again."""

    from_step = StepNamed(
        required=False, allow_null=True, default=None, help_text="What started before it is kept. Default: nothing is."
    )
    run_number = serializers.IntegerField(
        required=False,
        allow_null=True,
        default=None,
        min_value=1,
        max_value=2**31 - 1,
        help_text="Only if this is its present run still, so that a request which comes twice restarts once.",
    )


class CompleteStepBody(ReasonBody):
    """What a step shall have given."""

    output = AnyField(help_text="The result that run() gets in place of what the step's body would have returned.")


class EventBody(Body):
    """Sends an event."""

    type = NameField(check=check_event_type)
    payload = AnyField(required=False, default=None)


class DecideBody(Body):
    """Decides a pending event."""

    approved = TrueOrFalse()
    data = serializers.DictField(  # type: ignore[assignment]
        child=AnyField(), required=False, allow_null=True, default=None, help_text="The fields of the wait's form."
    )
    comment = TextField(required=False, allow_blank=True, default="", trim_whitespace=False, max_length=TEXT_SIZE)


def finite(value: float) -> float:
    """``value``: not a number is neither too small nor too large, and never over. Raises ValidationError."""
    if not math.isfinite(value):
        raise serializers.ValidationError("A valid number is required.")
    return value


class WaitQuery(serializers.Serializer[Any]):
    """``?wait=``: seconds."""

    wait = serializers.FloatField(
        required=False,
        default=0.0,
        min_value=0,
        max_value=MAX_WAIT,
        help_text="Seconds to wait until the instance has ended, is paused, or waits with nothing on its way to it.",
    )

    def validate_wait(self, value: float) -> float:
        """A number."""
        return finite(value)


class DeleteQuery(serializers.Serializer[Any]):
    """Why something is deleted; in the query, because a DELETE has no body."""

    reason = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=TEXT_SIZE, help_text="Kept in the log."
    )


class HistoryPlace(serializers.Serializer[Any]):
    """Which history, and from where on."""

    after = serializers.IntegerField(
        required=False, default=0, min_value=0, max_value=2**63 - 1, help_text="The id of the last entry that was seen."
    )
    types = serializers.CharField(
        required=False, default=None, help_text=f"Only these, separated by commas: {', '.join(HISTORY_TYPES)}."
    )

    def validate_types(self, value: str | None) -> list[str] | None:
        """Known types only."""
        if value is None:
            return None
        types = [part.strip() for part in value.split(",") if part.strip()]
        unknown = sorted(set(types) - set(HISTORY_TYPES))
        if unknown or not types:
            text = f"Unknown types: {', '.join(unknown) or 'none given'}. Known types: {', '.join(HISTORY_TYPES)}."
            raise serializers.ValidationError(text)
        return types


class HistoryQuery(HistoryPlace):
    """Which page of it."""

    limit = serializers.IntegerField(
        required=False, default=200, min_value=1, max_value=MAX_HISTORY, help_text="Stored entries per page."
    )
    wait = serializers.FloatField(
        required=False,
        default=0.0,
        min_value=0,
        max_value=MAX_WAIT,
        help_text="Seconds to wait for an entry where there is none. An instance that has ended is not waited for.",
    )

    def validate_wait(self, value: float) -> float:
        """A number."""
        return finite(value)
