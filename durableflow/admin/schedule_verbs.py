"""Pause, resume and run now: what can be done to a schedule, each behind a page that says what it does (SEC-01, SEC-10)."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durableflow.admin.actions import METHODS, log_text
from durableflow.admin.base import PagesMixin
from durableflow.admin.filters import ScheduleFilter
from durableflow.admin.plans import Plan
from durableflow.admin.verbs import ReasonForm, Verb
from durableflow.core import registry
from durableflow.core.exceptions import DurableflowError
from durableflow.core.transactions import alias_of, write_transaction
from durableflow.models import WorkflowInstance, WorkflowSchedule
from durableflow.models.permissions import START, holds, may_view
from durableflow.models.schedule_verbs import CHANGE
from durableflow.pages.moments import moment

AFTER: Final = "after"
"""The field with the instance that was the newest one started by hand when the page was shown."""


class ScheduleReasonForm(ReasonForm):
    """A schedule has no history of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].help_text = _("Optional. Kept in the staff log.")


VERBS: Final[dict[str, Verb]] = {
    verb.name: verb
    for verb in (
        Verb(
            name="run_now",
            label=gettext_lazy("Run now"),
            many="",
            question=gettext_lazy("Start an instance now?"),
            effect=gettext_lazy("One instance is started at once, beside those of the schedule's own times."),
            done=gettext_lazy("An instance was started."),
            form=ScheduleReasonForm,
            permission=START,
        ),
        Verb(
            name="pause",
            label=gettext_lazy("Pause"),
            many="",
            question=gettext_lazy("Let this schedule start nothing any more?"),
            effect=gettext_lazy("Nothing is started until somebody resumes the schedule."),
            done=gettext_lazy("The schedule is paused."),
            fits=gettext_lazy("It is paused already."),
            form=ScheduleReasonForm,
            permission=CHANGE,
        ),
        Verb(
            name="resume",
            label=gettext_lazy("Resume"),
            many="",
            question=gettext_lazy("Let this schedule start instances again?"),
            effect=gettext_lazy("It starts an instance at its next time."),
            done=gettext_lazy("The schedule is active again."),
            fits=gettext_lazy("It is not paused."),
            form=ScheduleReasonForm,
            permission=CHANGE,
        ),
    )
}


class ScheduleVerbsMixin(PagesMixin):
    """The verbs of a schedule admin: one page for each."""

    verb_template = "admin/durableflow/verb.html"

    def get_urls(self) -> list[Any]:
        """The verbs, before Django's own."""
        wrap = self.admin_site.admin_view
        verbs = [
            path(
                f"<path:object_id>/{name.replace('_', '-')}/",
                wrap(partial(self.verb_view, verb=verb)),
                name=self.url_name(name),
            )
            for name, verb in VERBS.items()
        ]
        return [*verbs, *super().get_urls()]

    def possible_verbs(self, request: HttpRequest, row: WorkflowSchedule) -> list[tuple[Any, str]]:
        """Label and address of what this person can do with the schedule now."""
        able = [verb for verb in VERBS.values() if fits(verb, row) and holds(request.user, verb.permission, row)]
        return [(verb.label, self.url(verb.name, row.pk)) for verb in able]

    def instances_url(self, request: HttpRequest, row: WorkflowSchedule) -> str:
        """The list of its instances; '' where the site does not show instances."""
        if not self.admin_site.is_registered(WorkflowInstance):
            return ""
        address = reverse(f"{self.admin_site.name}:durableflow_workflowinstance_changelist")
        return f"{address}?{ScheduleFilter.parameter_name}={row.pk}"

    def verb_view(self, request: HttpRequest, object_id: str, verb: Verb) -> HttpResponse:
        """GET says what the verb does to this schedule, POST does it. 404: none such; 403: no right; 409: not possible now; 405:
        another method."""
        if request.method not in METHODS:
            return HttpResponseNotAllowed(METHODS)
        row = self.visible(request, object_id)
        if not self.has_view_or_change_permission(request, row) or not holds(request.user, verb.permission, row):
            raise PermissionDenied
        if not fits(verb, row):
            return self._page(request, row, verb, None, Plan(refused=unfit(verb, row)))
        form = verb.form(request.POST if request.method == "POST" else None)
        if not form.is_bound or not form.is_valid():
            return self._page(request, row, verb, form, plan(verb, row), 400 if form.is_bound else 200)
        try:
            return self._perform(request, row, verb, form.cleaned_data["reason"])
        except WorkflowSchedule.DoesNotExist as error:
            raise Http404(_("The schedule was deleted meanwhile.")) from error
        except ValidationError as error:
            return self._page(request, row, verb, None, Plan(refused=" ".join(error.messages)))
        except (DurableflowError, ValueError) as error:  # also InvalidTransition: it changed since the page was shown
            row = self.visible(request, str(row.pk))
            return self._page(request, row, verb, None, Plan(refused=str(error)))

    def _perform(self, request: HttpRequest, row: Any, verb: Verb, reason: str) -> HttpResponse:
        said: dict[str, Any] = {"by": request.user, "reason": reason, "via": "admin"}
        target = self.url("change", row.pk)
        text: Any = verb.done
        if verb.name == "run_now":
            with write_transaction(alias_of(row)):
                self._not_twice(request, row)
                started = row.run_now(**said)
            if may_view(started, request.user):
                address = self.url_of(started)
                text = format_html('{} <a href="{}">{}</a>', verb.done, address, started.label) if address else text
        else:
            getattr(row, verb.name)(**said)
        self.log_change(request, row, log_text(verb, reason))
        self.message_user(request, text, messages.SUCCESS)
        return HttpResponseRedirect(target)

    def _not_twice(self, request: HttpRequest, row: Any) -> None:
        """Refuse the second of two clicks. The lock on the schedule makes it exact."""
        type(row).objects.select_for_update(no_key=True).filter(pk=row.pk).values_list("pk").first()
        after = request.POST.get(AFTER, "")
        if after.isdecimal() and after.isascii() and int(after) < newest_by_hand(row):
            raise ValueError(_("An instance was started by hand since this page was shown. Look at it first."))

    def _page(
        self, request: HttpRequest, row: Any, verb: Verb, form: Any, plan: Plan, status: int = 200
    ) -> TemplateResponse:
        context = self.page_context(
            request,
            _("%(verb)s: %(schedule)s") % {"verb": verb.label, "schedule": row},
            row,
            label=str(row),
            verb=verb,
            form=form,
            problem=plan.refused,
            plan=plan,
            hidden=((AFTER, str(newest_by_hand(row))),) if verb.name == "run_now" else (),
            back_url=self.url("change", row.pk),
            back_label=_("Back to the schedule"),
        )
        return TemplateResponse(request, self.verb_template, context, status=409 if plan.refused else status)


def newest_by_hand(row: WorkflowSchedule) -> int:
    """The key of the newest instance of the schedule that has no slot; 0: there is none."""
    rows = WorkflowInstance.objects.filter(schedule=row.pk, scheduled_for__isnull=True).order_by("-id")
    return rows.values_list("pk", flat=True).first() or 0


def fits(verb: Verb, row: WorkflowSchedule) -> bool:
    """Whether it does something now."""
    return bool(
        {"pause": row.enabled, "resume": not row.enabled}.get(verb.name, registry.find(row.workflow) is not None)
    )


def unfit(verb: Verb, row: WorkflowSchedule) -> Any:
    """Why it does not."""
    return verb.fits or _('The running program does not contain the workflow "%(name)s".') % {"name": row.workflow}


def plan(verb: Verb, row: WorkflowSchedule) -> Plan:
    """What is kept and what happens."""
    found = Plan()
    if verb.name == "pause":
        found.kept.append(_("Instances that it has started go on."))
        found.changed.append(_("What falls due meanwhile is not made up for."))
        if row.next_slot is not None:
            found.changed.append(format_html("{} {}", _("Not started:"), moment(row.next_slot)))
        if row.buffered_slot is not None:
            text = _("Not started, though it was due and waited for an earlier instance:")
            found.changed.append(format_html("{} {}", text, moment(row.buffered_slot)))
    elif verb.name == "resume":
        found.changed.append(_("What fell due while it was paused is not made up for."))
        found.kept.append(_("Cron line, time zone and params are as they were."))
    else:
        found.changed.append(_("Workflow %(name)s starts with the params of the schedule.") % {"name": row.workflow})
        found.changed.append(_("It starts whatever else runs, and also while the schedule is paused."))
        if row.overlap != WorkflowSchedule.Overlap.ALLOW:
            found.changed.append(
                _("If it has not ended by then, it holds up the schedule's next times like any other instance.")
            )
        found.kept.append(_("The schedule's own times stay as they are."))
    return found
