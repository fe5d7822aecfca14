"""Deciding a pending event on a page: one implementation for the admin and for decision links (design 8, cases EVT-10, EVT-13).

It says in which state the wait is for one person, builds the forms, and hands a submitted answer to
``PendingEvent.decide``, which checks right and state again under the row's lock.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Any, Final

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied, ValidationError
from django.http import QueryDict
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from durableflow.core.exceptions import CodecError, LimitExceeded, StaleDecision
from durableflow.core.statuses import PendingStatus
from durableflow.models import PendingEvent
from durableflow.models.permissions import RequesterBarred
from durableflow.pages.values import json_html
from durableflow.timeline import shown

APPROVE: Final = "approve"
REJECT: Final = "reject"
PREFIX: Final = "data"
"""Names of the wait's own fields get this prefix, so that one called "comment" does not meet ours."""
COMMENT_SIZE: Final = 10_000

OPEN: Final = "open"
HEADINGS: Final[dict[str, Any]] = {
    OPEN: _("Waiting for a decision"),
    "approved": _("Approved"),
    "rejected": _("Rejected"),
    "received": _("Answered"),
    "timed_out": _("Timed out"),
    "cancelled": _("Cancelled"),
    "stale": _("Out of date"),
    "event": _("Waiting for an event"),
    "requester_barred": _("Waiting for somebody else"),
    "no_right": _("Waiting for somebody else"),
    "form_missing": _("Cannot be decided here"),
}
REASONS: Final[dict[str, Any]] = {
    "timed_out": _("Nobody decided before the deadline, so the workflow went on without a decision."),
    "cancelled": _("The workflow no longer waits for this decision."),
    "stale": _("This belongs to an earlier run of the workflow. The run was started again since."),
    "event": _("A program answers this wait by sending an event. Nobody has to decide anything."),
    "requester_barred": _("You started this workflow, and this decision has to be made by somebody else."),
    "no_right": _("You are not among the people who may decide this."),
    "form_missing": _(
        "The form of this decision is not loaded in this web process. Import it at the top of the workflows module, "
        "so that every process knows it, and restart the web server."
    ),
}


class CommentForm(forms.Form):
    """What every decision may carry. A rejection has to say why."""

    comment = forms.CharField(
        label=_("Comment"),
        required=False,
        max_length=COMMENT_SIZE,
        widget=forms.Textarea(attrs={"rows": 4}),
        help_text=_("Kept with the decision. Needed when you reject."),
    )


class DecidePage:
    """One pending event on a page for one person."""

    def __init__(self, pending: PendingEvent, user: Any, via: str) -> None:
        self.pending = pending
        self.user = user
        self.via = via
        self.comment_form: forms.Form = CommentForm()
        self.problem: str | Promise = ""
        self._bound: forms.Form | None = None

    @cached_property
    def state(self) -> str:
        """A key of HEADINGS: how the wait stands for this person now."""
        pending = self.pending
        if pending.current_status != PendingStatus.OPEN:
            return self._closed()
        if not pending.is_approval:
            return "event"
        try:
            pending.require_right(self.user)
        except RequesterBarred:
            return "requester_barred"
        except PermissionDenied:
            return "no_right"
        return OPEN if self._unbound is not None else "form_missing"

    def _closed(self) -> str:
        if self.pending.status == PendingStatus.RECEIVED:
            return {True: "approved", False: "rejected", None: "received"}[self.pending.approved]
        return self.pending.stale().code

    @property
    def is_open(self) -> bool:
        """Whether the page shows the form."""
        return self.state == OPEN

    @property
    def heading(self) -> Any:
        """The state in a few words."""
        return HEADINGS[self.state]

    @property
    def unstored_comment(self) -> str:
        """What the person wrote with an answer that came too late, so that it is not lost."""
        return "" if self.is_open or not self.problem else str(self.comment_form.data.get("comment", ""))[:COMMENT_SIZE]

    @property
    def explanation(self) -> Any:
        """Why there is nothing to decide; '' where there is, and where who and when say it all."""
        return REASONS.get(self.state, "")

    @cached_property
    def _unbound(self) -> forms.Form | None:
        try:
            form = self.pending.get_form()
        except RuntimeError:  # the class is not imported
            return None
        form.prefix = PREFIX
        return form

    @property
    def data_form(self) -> forms.Form | None:
        """The wait's own form, with what was entered and its errors after a refused answer."""
        return self._bound or self._unbound

    @cached_property
    def context_html(self) -> SafeString | str:
        """What the workflow gave to decide by, secrets masked."""
        return "" if self.pending.context is None else json_html(shown(self.pending.context))

    @cached_property
    def data_html(self) -> SafeString | str:
        """What was entered with the decision, secrets masked."""
        return "" if self.pending.data in (None, {}) else json_html(shown(self.pending.data))

    @property
    def time_left(self) -> timedelta | None:
        """What an open wait has left of its time while its instance is paused; None where its clock runs, or it has no deadline."""
        paused, deadline = self.pending.instance.paused_at, self.pending.deadline
        if paused is None or deadline is None or self.pending.current_status != PendingStatus.OPEN:
            return None
        return max(deadline - paused, timedelta())

    @cached_property
    def current(self) -> PendingEvent | None:
        """The wait of the same instance that is open now, where this one is not and the person may see it."""
        if self.state in (OPEN, "event", "requester_barred", "no_right", "form_missing"):
            return None
        waits = PendingEvent.objects.open().approvals().visible_to(self.user)
        return waits.filter(instance_id=self.pending.instance_id).exclude(pk=self.pending.pk).first()

    def submit(self, posted: QueryDict) -> int:
        """Decide as ``posted`` says. Returns the HTTP status: 200 when it was stored, else what the page is shown with and ``problem`` set.

        Raises PermissionDenied.
        """
        answer = posted.get("decision")
        if answer not in (APPROVE, REJECT):
            return self._refuse(400, _("Choose Approve or Reject."))
        if not self.pending.is_approval:
            return self._refuse(409, REASONS["event"])
        self.pending.require_right(self.user)
        self.comment_form = CommentForm(posted)
        data = self._data(posted) if answer == APPROVE else None
        comment_ok = self._comment_ok(answer)
        if self._unbound is None and answer == APPROVE:
            return self._refuse(409, REASONS["form_missing"])
        if self.is_open and not (comment_ok and (self._bound is None or self._bound.is_valid())):
            return self._refuse(400, _("Please correct what is marked below. Nothing was stored."))
        return self._decide(answer == APPROVE, data)

    def _data(self, posted: QueryDict) -> dict[str, Any] | None:
        if self._unbound is None or not self.pending.form:
            return None
        self._bound = self.pending.get_form(posted)
        self._bound.prefix = PREFIX
        return unprefixed(self._bound, posted)

    def _comment_ok(self, answer: str) -> bool:
        if not self.comment_form.is_valid():
            return False
        if answer == REJECT and not self.comment_form.cleaned_data["comment"]:
            self.comment_form.add_error("comment", _("Say why you reject."))
            return False
        return True

    def _decide(self, approved: bool, data: dict[str, Any] | None) -> int:
        comment = self.comment_form.cleaned_data.get("comment", "") if self.comment_form.is_valid() else ""
        try:
            self.pending.decide(approved, by=self.user, data=data, comment=comment, via=self.via)
        except StaleDecision:
            self._reload()
            return self._refuse(409, _("Your answer was not stored: this cannot be decided any more."))
        except (LimitExceeded, CodecError) as error:
            return self._refuse(413 if isinstance(error, LimitExceeded) else 400, str(error))
        except ValidationError as error:
            self._show(error)
            return self._refuse(400, _("Please correct what is marked below. Nothing was stored."))
        self._reload()
        return 200

    def _show(self, error: ValidationError) -> None:
        """Put what ``decide`` found on the fields it is about."""
        form = self._bound or self.comment_form
        for name, messages in getattr(error, "message_dict", {NON_FIELD_ERRORS: error.messages}).items():
            form.add_error(name if name in form.fields else None, messages)

    def _refuse(self, status: int, problem: str | Promise) -> int:
        self.problem = problem
        return status

    def _reload(self) -> None:
        self.pending.refresh_from_db()
        for name in ("state", "current", "data_html"):
            self.__dict__.pop(name, None)


def unprefixed(form: forms.Form, posted: QueryDict) -> dict[str, Any]:
    """The wait's own fields as ``PendingEvent.decide`` takes them: plain names, lists only where the field takes several values."""
    data: dict[str, Any] = {}
    for key in posted:
        name = key.removeprefix(f"{PREFIX}-")
        if name == key:
            continue
        field = form.fields.get(name)
        several = field is not None and getattr(field.widget, "allow_multiple_selected", False)
        data[name] = posted.getlist(key) if several else posted[key]
    return data
