"""Decisions by people (design 8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.forms import Form

from durableflow.core import clock, codec, dispatch
from durableflow.core.aio import async_twin
from durableflow.core.answers import Decision
from durableflow.core.conf import get_settings
from durableflow.core.durations import Duration
from durableflow.core.exceptions import InvalidTransition, StaleDecision
from durableflow.core.names import check_text
from durableflow.core.statuses import PendingStatus, SentKind, Via
from durableflow.core.transactions import alias_of, write_transaction
from durableflow.models import forms, links
from durableflow.models.instance_fields import Who
from durableflow.models.pending_fields import PendingFields
from durableflow.models.permissions import DECIDE, RequesterBarred, holds, name_of, row_of

WHY = {
    "already_decided": "was already decided",
    "timed_out": "timed out before",
    "cancelled": "was cancelled",
    "stale": "belongs to an earlier run",
}


class DecisionVerbs(PendingFields):
    """``decide``, ``approve``, ``reject``, ``get_form``, ``decision_url``."""

    class Meta:
        abstract = True

    def decide(
        self,
        approved: bool,
        *,
        by: Who,
        data: Mapping[str, Any] | None = None,
        comment: str = "",
        reason: str = "",
        via: str = Via.CODE,
    ) -> Decision:
        """Answer this wait; the first answer wins (design 8, case EVT-10).

        ``by=None`` is trusted code. ``data``: the wait's form fields, validated by the form before anything is stored;
        a rejection takes none. One transaction holds this row, never the instance. Raises PermissionDenied
        (``RequesterBarred`` for the creator where the wait bars the requester), ValidationError, StaleDecision
        (``code``: already_decided, timed_out, cancelled, stale), InvalidTransition for a wait that events answer.
        """
        using = alias_of(self)
        if not isinstance(approved, bool):
            raise ValidationError({"approved": "Say true to approve or false to reject."})
        for name, text in (("comment", comment), ("reason", reason)):
            try:
                check_text(name, text)
            except ValueError as error:
                raise ValidationError({name: str(error)}) from error
        with write_transaction(using):
            row: Any = (
                type(self)._default_manager.using(using).select_for_update(of=("self",), no_key=True).get(pk=self.pk)
            )
            row.require_right(by)
            row.require_open()
            decision = Decision(
                approved=approved,
                data=forms.clean(row, approved, data),
                comment=comment,
                by=name_of(by),
                by_id=None if row_of(by) is None else row_of(by).pk,
                via=str(via),
                at=clock.read(using),
            )
            _store(row, decision, by, reason, using)
        self.refresh_from_db(using=using)
        dispatch.wake(using)
        return decision

    def approve(
        self,
        *,
        by: Who,
        data: Mapping[str, Any] | None = None,
        comment: str = "",
        reason: str = "",
        via: str = Via.CODE,
    ) -> Decision:
        """``decide(True, ...)``."""
        return self.decide(True, by=by, data=data, comment=comment, reason=reason, via=via)

    def reject(self, *, by: Who, comment: str = "", reason: str = "", via: str = Via.CODE) -> Decision:
        """``decide(False, ...)``; a rejection takes no form data (design 12)."""
        return self.decide(False, by=by, comment=comment, reason=reason, via=via)

    def get_form(self, data: Mapping[str, Any] | None = None) -> Form:
        """The wait's form (bound if ``data`` is given); an empty form where the wait has none.

        Raises RuntimeError with the cure when the form class is not imported in this process.
        """
        return forms.build(self.form, data)

    def decision_url(self, user: Any, *, expires: Duration = "3 days") -> str:
        """An absolute link (``BASE_URL``) to the page on which ``user``, and only that person, decides this wait after
        logging in.

        The right is checked when the link is used; GET shows, POST decides (case SEC-06). Raises ValueError for a bad
        duration.
        """
        return links.decision_url(self, user, expires)

    def may_decide(self, user: Who) -> bool:
        """Whether ``user`` has the right to decide this wait (its status apart)."""
        try:
            self.require_right(user)
        except PermissionDenied:
            return False
        return user is not None

    def require_right(self, by: Who) -> None:
        """Raise PermissionDenied unless ``by`` may decide; None is trusted code."""
        if by is None:
            return
        if not self.allow_requester and by.pk is not None and self.instance.created_by_id == by.pk:
            raise RequesterBarred(f"{name_of(by)} started {self.instance.label} and may not decide {self.name!r}.")
        if not self._admits(by):
            raise PermissionDenied(
                f"{name_of(by) or 'Anonymous'} may not decide {self.name!r} of {self.instance.label}."
            )

    def _admits(self, by: Any) -> bool:
        if not by.is_authenticated or not by.is_active:
            return False
        if by.is_superuser:
            return True
        if not self.restricted:
            return holds(by, DECIDE, self.instance)
        if self.permission and (by.has_perm(self.permission) or by.has_perm(self.permission, self.instance)):
            return True
        return self.users.filter(pk=by.pk).exists() or self.groups.filter(user=by.pk).exists()

    def require_open(self) -> None:
        """Raise StaleDecision unless this wait can still be decided, InvalidTransition if events answer it."""
        if not getattr(self, "is_approval", True):
            raise InvalidTransition(
                f"{self.name!r} of {self.instance.label} is answered by events of type {', '.join(self.types)}, not decided by a person.",
                status=self.instance.status,
            )
        fresh: Any = type(self)._default_manager.using(self._state.db)
        if fresh.open().filter(pk=self.pk).exists():
            return
        raise self.stale()

    def stale(self) -> StaleDecision:
        """The error that says why this wait cannot be decided any more, by whom and when it was, as it is stored now."""
        self.refresh_from_db(using=self._state.db)
        codes = {PendingStatus.RECEIVED: "already_decided", PendingStatus.CANCELLED: "cancelled"}
        code = codes.get(PendingStatus(self.status), "timed_out")
        if code == "cancelled" and self.run_number != self.instance.run_number:
            code = "stale"
        who = f" by {self.decided_by_name}" if code == "already_decided" and self.decided_by_name else ""
        return StaleDecision(
            f"{self.name!r} of {self.instance.label} {WHY[code]}{who}; this decision was not stored.",
            code=code,
            status=self.instance.status,
            by=self.decided_by_name or None,
            at=self.decided_at,
        )

    adecide = async_twin(decide)
    aapprove = async_twin(approve)
    areject = async_twin(reject)


def _store(row: Any, decision: Decision, by: Who, reason: str, using: str) -> None:
    stored = decision.to_stored()
    codec.dumps(stored, what=f"decision of {row.name!r}", max_bytes=get_settings().LIMITS.payload)
    row.status = PendingStatus.RECEIVED
    row.approved, row.data, row.comment = decision.approved, decision.data, decision.comment
    row.decided_by, row.decided_by_name, row.via = row_of(by), decision.by, decision.via
    row.decided_at = row.closed = decision.at
    row.save(
        using=using,
        update_fields=[
            "status", "approved", "data", "comment", "decided_by", "decided_by_name", "via", "decided_at", "closed",
        ],
    )  # fmt: skip
    row.sent_events.create(
        instance_id=row.instance_id,
        run_number=row.run_number,
        kind=SentKind.DECISION,
        payload=stored,
        sent_by=row_of(by),
        sent_by_name=decision.by,
        via=decision.via,
        reason=reason,
        sent_at=decision.at,
    )
