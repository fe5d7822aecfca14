"""What answers about many instances say."""

from __future__ import annotations

from rest_framework import serializers

from durableflow.api.answers import Answer, StartedAnswer


class EntryError(Answer):
    """What became of one that was not handled. ``code`` is for programs."""

    instance_id = serializers.CharField()
    code = serializers.CharField()
    detail = serializers.CharField()


class BatchError(EntryError):
    """An entry that started nothing: its id ``exists``, or was ``repeated`` in this batch. ``index`` counts from 0."""

    index = serializers.IntegerField()


class BatchAnswer(Answer):
    """The instances that were started, in the order of the entries, and the entries that started none."""

    created = StartedAnswer(many=True)
    errors = BatchError(many=True)  # type: ignore[assignment]


class BatchDeleteAnswer(Answer):
    """The ids that are free again, and those that are not: ``not_found``, ``permission_denied``, ``protected``."""

    deleted = serializers.ListField(child=serializers.CharField())
    errors = EntryError(many=True)  # type: ignore[assignment]


class BulkAnswer(Answer):
    """What a verb over many instances has done.

    ``remaining``: how many come after those that this request has handled; where it is not 0, the same request with ``cursor`` as
    ``after`` goes on.
    """

    done = serializers.IntegerField()
    skipped = EntryError(many=True)
    remaining = serializers.IntegerField()
    cursor = serializers.IntegerField(allow_null=True)
