"""Sending events to an instance (design 4 "Senders never lock the instance", 5)."""

from __future__ import annotations

import json
from typing import Any

from django.db import IntegrityError, transaction

from durableflow.core import clock, codec, dispatch
from durableflow.core.aio import async_twin
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import IdempotencyConflict
from durableflow.core.names import check_event_type, check_text
from durableflow.core.statuses import Via, allowed
from durableflow.core.transactions import alias_of
from durableflow.models.audit import refuse
from durableflow.models.instance_fields import InstanceFields, Who
from durableflow.models.permissions import OPERATE, name_of, require, row_of

DEDUPE_KEY_SIZE = 255


class EventVerbs(InstanceFields):
    """``send_event``."""

    class Meta:
        abstract = True

    def send_event(
        self,
        type: str,
        payload: Any = None,
        *,
        dedupe_key: str = "",
        by: Who = None,
        reason: str = "",
        via: str = Via.CODE,
    ) -> Any:
        """Put an event into the instance's inbox and return its row (a ``SentEvent``).

        It may come before the wait is reached; it is kept and consumed by exactly one wait of its type, in the order of
        acceptance. Part of the caller's transaction: nobody sees it before the commit. With a ``dedupe_key`` that was
        used in this run the first row is returned, also after the end; another payload or type under that key is an
        IdempotencyConflict. Raises ValueError for a bad type or key, LimitExceeded, CodecError, PermissionDenied,
        InvalidTransition (ended or rolling back), DoesNotExist.
        """
        check_event_type(type)
        text = codec.dumps(payload, what=f"payload of event {type!r}", max_bytes=get_settings().LIMITS.payload)
        check_text("dedupe_key", dedupe_key, DEDUPE_KEY_SIZE)
        check_text("reason", reason)
        using = alias_of(self)
        model: Any = self.__class__
        row = model._default_manager.using(using).only(*STATE).get(pk=self.pk)
        require(by, OPERATE, row, f"send an event to {row.label}")
        first = self._first(row, dedupe_key, type, text)
        if first is not None:
            return first
        if not allowed("send_event", row.status):
            raise refuse(row, "send_event")
        values = {
            "run_number": row.run_number,
            "type": type,
            "payload": payload,
            "sent_by": row_of(by),
            "sent_by_name": name_of(by),
            "via": via,
            "reason": reason,
            "sent_at": clock.read(using),
            "dedupe_key": dedupe_key,
        }
        sent = self._insert(using, row, values, text)
        dispatch.wake(using)
        return sent

    def _insert(self, using: str, row: Any, values: dict[str, Any], text: str) -> Any:
        if not values["dedupe_key"]:
            return row.sent_events.create(**values)
        try:
            with transaction.atomic(using=using):  # a savepoint: the caller's transaction stays usable
                return row.sent_events.create(**values)
        except IntegrityError:
            first = self._first(row, values["dedupe_key"], values["type"], text)
            if first is None:
                raise
            return first

    def _first(self, row: Any, dedupe_key: str, type: str, text: str) -> Any:
        if not dedupe_key:
            return None
        found = row.sent_events.filter(run_number=row.run_number, dedupe_key=dedupe_key).first()
        if found is None:
            return None
        if found.type != type or _canonical(codec.dumps(found.payload)) != _canonical(text):
            raise IdempotencyConflict(
                f"{row.label} has already got an event with dedupe_key {dedupe_key!r} and another type or payload. "
                "Use a new key for a new event."
            )
        found.duplicate = True
        return found

    asend_event = async_twin(send_event)


def _canonical(text: str) -> str:
    """A stored value with its keys in one order: who writes the same JSON anew may order them otherwise."""
    return json.dumps(json.loads(text), sort_keys=True)


STATE = ("id", "workflow", "instance_id", "run_number", "status", "created_by_id")
