"""What requests about many instances may say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.http import QueryDict
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.settings import api_settings

from durableflow.api.bodies import AnyField, NameField, OneOfField, OptionsBody, ReasonBody, StartBody
from durableflow.api.filters import InstanceFilter
from durableflow.core.names import check_instance_id, check_text

MAX_BATCH: Final = 100
MAX_BULK: Final = 1_000
EMPTY: Final = ", \t\r\n"
"""Of a filter with nothing else in it nothing is left."""
ACTIONS: Final = ("retry", "pause", "resume", "terminate", "restart")


class BatchBody(OptionsBody):
    """``BatchRequest`` as far as it is one thing: the view looks at the entries one by one, and names each that is wrong."""

    instances = serializers.ListField(child=AnyField(), required=False, min_length=1, max_length=MAX_BATCH)
    count = serializers.IntegerField(
        required=False, min_value=1, max_value=MAX_BATCH, help_text="How many, in place of entries."
    )

    def to_internal_value(self, data: Any) -> Any:
        """Either one or the other; options beside ``instances`` would be for nobody."""
        if isinstance(data, Mapping):
            if ("instances" in data) == ("count" in data):
                text = "Give either instances or count."
                raise serializers.ValidationError({api_settings.NON_FIELD_ERRORS_KEY: [text]})
            lost = sorted(set(data) & set(OptionsBody().fields)) if "instances" in data else []
            if lost:
                text = "This belongs into the entries of instances."
                raise serializers.ValidationError({name: [text] for name in lost})
        return super().to_internal_value(data)


class BatchRequest(BatchBody):
    """Starts several instances: ``instances``, or ``count`` of them with ids of their own and the options that stand beside
    it."""

    instances = serializers.ListField(
        child=StartBody(), required=False, min_length=1, max_length=MAX_BATCH, help_text="One entry for each."
    )


def ids_field(most: int, **options: Any) -> serializers.ListField:
    """A list of instance ids."""
    return serializers.ListField(child=NameField(check=check_instance_id), min_length=1, max_length=most, **options)


class BatchDeleteBody(ReasonBody):
    """Deletes several instances. An id that stands there twice is deleted once."""

    instance_ids = ids_field(MAX_BATCH)


_TEXTS: Final[Any] = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


@extend_schema_field({"type": "object", "additionalProperties": _TEXTS})
class FilterField(serializers.Field[Any, Any, Any, Any]):
    """Filters as in the query of the list: names and texts, or lists of texts. ``names``: the known ones."""

    default_error_messages = {
        "invalid": 'Give an object such as {{"status": "errored"}}.',
        "text": "{name}: give a text or a list of texts.",
        "empty": "{name}: an empty text would mean all. Leave the name out if you mean that.",
        "unknown": "Unknown filter {name}. Known ones: {names}.",
    }

    def __init__(self, names: Iterable[str], **options: Any) -> None:
        self.names = list(names)
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> QueryDict:
        """As if it had been the query of the list."""
        if not isinstance(data, dict):
            self.fail("invalid")
        query = QueryDict(mutable=True)
        for name, value in data.items():
            if name not in self.names:
                self.fail("unknown", name=name, names=", ".join(self.names))
            texts = value if isinstance(value, list) else [value]
            if not texts or not all(isinstance(text, str) for text in texts):
                self.fail("text", name=name)
            if not all(text.strip(EMPTY) for text in texts):
                self.fail("empty", name=name)
            try:
                query.setlist(name, [check_text(name, text) for text in texts])
            except ValueError as error:
                raise serializers.ValidationError(str(error)) from error
        return query


class BulkBody(ReasonBody):
    """Applies a verb to many instances: those of ``instance_ids``, or those that ``filter`` finds."""

    action = OneOfField(ACTIONS)
    instance_ids = ids_field(MAX_BULK, required=False)
    filter = FilterField(
        InstanceFilter.base_filters,
        required=False,
        help_text="As the query of the list; {} means all. At most 1,000 are handled by one request, the oldest first.",
    )
    after = serializers.IntegerField(
        required=False, default=0, min_value=0, max_value=2**63 - 1, help_text="The cursor of the answer before."
    )

    def validate(self, attrs: Any) -> Any:
        """Either one or the other."""
        if ("instance_ids" in attrs) == ("filter" in attrs):
            raise serializers.ValidationError("Give either instance_ids or filter.")
        return attrs
