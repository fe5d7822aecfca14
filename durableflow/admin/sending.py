"""Sending an event by hand: what a program would have told the instance (design 1.6, cases EVT-08, LIF-06)."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, Final

from django import forms
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durableflow.admin.actions import log_text
from durableflow.admin.bulk import BulkMixin
from durableflow.admin.plans import Plan
from durableflow.admin.values import ValueField
from durableflow.admin.verbs import ReasonForm, Verb
from durableflow.core.exceptions import CodecError, IdempotencyConflict, LimitExceeded
from durableflow.core.names import MAX_EVENT_TYPE, check_event_type
from durableflow.core.statuses import Status, StepKind, Via
from durableflow.models import PendingEvent, WorkflowInstance

TYPE: Final = "type"


class EventForm(ReasonForm):
    """The event. ``key`` makes a second click of one form the same event."""

    type = forms.CharField(
        label=gettext_lazy("Type"),
        max_length=MAX_EVENT_TYPE,
        widget=forms.TextInput(attrs={"list": "df-types", "autocomplete": "off", "spellcheck": "false"}),
        help_text=gettext_lazy("A wait takes an event only if the types are exactly the same, letter for letter."),
    )
    payload = ValueField(
        label=gettext_lazy("Payload"),
        required=False,
        empty_value=None,
        help_text=gettext_lazy('JSON that goes with it, for example {"order": 7}. Empty: nothing.'),
    )
    key = forms.UUIDField(widget=forms.HiddenInput, initial=uuid.uuid4)
    field_order = ("type", "payload", "reason", "key")

    def clean_type(self) -> str:
        """A type that an event can have."""
        try:
            return check_event_type(self.cleaned_data["type"])
        except (ValueError, LimitExceeded) as error:
            raise forms.ValidationError(str(error)) from error


SEND_EVENT: Final = Verb(
    name="send_event",
    label=gettext_lazy("Send an event"),
    many="",
    question=gettext_lazy("Send this instance an event by hand?"),
    effect=gettext_lazy(
        "The workflow takes it for the message of the program that it waits for. An event cannot be taken back: see to it that what it "
        "says is true, and that the program does not send it once more."
    ),
    done=gettext_lazy("The event was sent."),
    fits=gettext_lazy("An event can be sent to an instance that has not ended and is not rolling back."),
    form=EventForm,
    once=True,
)


class SendingMixin(BulkMixin):
    """The page on which staff send an event."""

    def verb_urls(self) -> list[Any]:
        """Its own, too."""
        view = self.admin_site.admin_view(self.send_event_view)
        return [path("<path:object_id>/send-event/", view, name=self.url_name("send_event")), *super().verb_urls()]

    def send_event_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """GET asks for type (``?type=`` suggests one) and payload, POST sends. 404, 403, 409, 405 as every verb; 400: it cannot be sent."""
        instance = self.asked(request, object_id, SEND_EVENT)
        if isinstance(instance, HttpResponse):
            return instance
        if not SEND_EVENT.fits_to(instance):
            return self.refused_page(request, instance, SEND_EVENT, SEND_EVENT.fits)
        types = awaited(instance)
        asked = request.GET.get(TYPE, types[0] if len(types) == 1 else "")
        form = EventForm(request.POST) if request.method == "POST" else EventForm(initial={TYPE: asked})
        if form.is_bound and form.is_valid():
            response = self._send(request, instance, form, types)
            if response is not None:
                return response
        status = 400 if form.is_bound else 200
        told = plan_of_sending(instance, types)
        title = _("Send an event to %(instance)s") % {"instance": instance.label}
        return self.verb_page(request, instance, SEND_EVENT, form, told, status, title, suggestions=types)

    def _send(
        self, request: HttpRequest, instance: WorkflowInstance, form: EventForm, types: list[str]
    ) -> HttpResponse | None:
        """Do it; None where the event was refused, and the form says why."""
        said = {**form.cleaned_data}
        said["dedupe_key"] = f"admin-{said.pop('key')}"
        label = _("Send event %(type)s") % {"type": said[TYPE]}
        try:
            verb = replace(SEND_EVENT, label=label, done=outcome(instance, said[TYPE] in types))
            return self.perform(request, instance, verb, said)
        except IdempotencyConflict:
            sent = _("This form has already sent its event. Open it anew to send one more.")
            return self.refused_page(request, instance, SEND_EVENT, sent)
        except (CodecError, LimitExceeded) as error:
            form.add_error("payload", str(error))
            return None

    def apply_verb(self, request: HttpRequest, instance: WorkflowInstance, verb: Verb, said: dict[str, Any]) -> None:
        """Also the event; the second of two clicks leaves no trace."""
        if verb.name != SEND_EVENT.name:
            super().apply_verb(request, instance, verb, said)
            return
        sent = instance.send_event(by=request.user, via=Via.ADMIN, **said)
        if sent.duplicate:
            raise IdempotencyConflict("The form was sent before.")
        self.log_change(request, instance, log_text(verb, said["reason"]))


def awaited(instance: WorkflowInstance) -> list[str]:
    """The types of events that the instance waits for now, sorted."""
    waits = PendingEvent.objects.open().filter(instance=instance, kind=StepKind.WAIT_FOR_EVENT)
    return sorted({type for types in waits.values_list("types", flat=True) for type in types})


def plan_of_sending(instance: WorkflowInstance, types: list[str]) -> Plan:
    """What the page says before anything is sent."""
    plan = Plan([_("An event that nothing waits for is kept until a wait of its type comes, at most until the end.")])
    if types:
        plan.changed.append(_("It waits for: %(types)s. Such an event ends that wait.") % {"types": ", ".join(types)})
    else:
        plan.changed.append(_("It waits for no event now: what you send is kept for a later wait."))
    if instance.status in (Status.PAUSED, Status.WAITING_FOR_PAUSE):
        plan.changed.append(_("It is paused: the event is read when somebody resumes it."))
    plan.kept.append(_("Decisions are not made by events: they have pages of their own under Pending events."))
    return plan


def outcome(instance: WorkflowInstance, is_awaited: bool) -> str:
    """What is said once it is sent."""
    if not is_awaited:
        return _("The event was sent. Nothing waits for its type now: it is kept until a wait of that type comes.")
    if instance.status in (Status.PAUSED, Status.WAITING_FOR_PAUSE):
        return _("The event was sent. It is read when somebody resumes the instance.")
    return _("The event was sent. The wait takes it, and the instance goes on.")
