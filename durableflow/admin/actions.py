"""Verbs on one instance and on many, each behind a page that says what it does (design 10, cases SEC-01, SEC-02, SEC-10)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durableflow.admin.base import ReadOnlyAdminMixin
from durableflow.admin.family import number_told
from durableflow.admin.verbs import VERBS, ReasonForm, Verb, about, plan, told
from durableflow.core.exceptions import InvalidTransition
from durableflow.core.statuses import Status
from durableflow.models import WorkflowInstance
from durableflow.models.permissions import OPERATE, holds, possible

MOST_AT_ONCE: Final = 500  # below DATA_UPLOAD_MAX_NUMBER_FIELDS, which the confirmation must pass
MOST_LISTED: Final = 100
METHODS: Final = ("GET", "HEAD", "POST")


class VerbsMixin(ReadOnlyAdminMixin):
    """The verbs of an instance admin: one page for each, and an action for each."""

    verb_template = "admin/durableflow/workflowinstance/verb.html"
    bulk_template = "admin/durableflow/workflowinstance/bulk.html"
    actions = ("retry_selected", "resume_selected", "terminate_selected")

    def has_operate_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may operate all instances, or this one. Actions name it in ``permissions``."""
        return holds(request.user, OPERATE, obj)

    def verb_urls(self) -> list[Any]:
        """One URL for each verb."""
        return [
            path(
                f"<path:object_id>/{name}/",
                self.admin_site.admin_view(partial(self.verb_view, verb=verb)),
                name=self.url_name(name),
            )
            for name, verb in VERBS.items()
        ]

    def verb_view(self, request: HttpRequest, object_id: str, verb: Verb) -> HttpResponse:
        """GET says what the verb does to this instance, POST does it.

        404: not visible; 403: no right; 409: the status does not allow it; 405: another method.
        """
        if request.method not in METHODS:
            return HttpResponseNotAllowed(METHODS)
        instance = self.visible(request, object_id)
        if not self.has_operate_permission(request, instance):
            raise PermissionDenied
        verb = about(verb, instance)
        form = verb.form(request.POST if request.method == "POST" else None)
        if not possible(verb.name, instance):
            return self._verb_page(request, instance, verb, form, problem=verb.fits, status=409)
        if request.method != "POST":
            return self._verb_page(request, instance, verb, form)
        if not form.is_valid():
            return self._verb_page(request, instance, verb, form, status=400)
        try:
            self.apply_verb(request, instance, verb, form.cleaned_data)
        except InvalidTransition:  # it changed since the page was shown
            instance.refresh_from_db()
            return self._verb_page(request, instance, verb, form, problem=verb.fits, status=409)
        self.message_user(request, told(verb, instance), messages.SUCCESS)
        return HttpResponseRedirect(self.url("change", instance.pk))

    def apply_verb(self, request: HttpRequest, instance: WorkflowInstance, verb: Verb, said: dict[str, Any]) -> None:
        """Do what the form says as the request's user, and leave a trace in Django's log beside the instance's own history."""
        verb.apply(instance, by=request.user, **said)
        reason = said["reason"]
        what = _("%(verb)s. Reason: %(reason)s") if reason else _("%(verb)s.")
        self.log_change(request, instance, what % {"verb": verb.label, "reason": reason})

    def _verb_page(
        self,
        request: HttpRequest,
        instance: WorkflowInstance,
        verb: Verb,
        form: ReasonForm,
        problem: Any = "",
        status: int = 200,
    ) -> HttpResponse:
        title = _("%(verb)s %(instance)s") % {"verb": verb.label, "instance": instance.label}
        context = self.page_context(
            request,
            title,
            instance,
            instance=instance,
            verb=verb,
            form=form,
            problem=problem,
            plan=None if problem else plan(verb, instance, request.user, self.url),
            back_url=self.url("change", instance.pk),
            status_label=instance.get_status_display(),
        )
        return TemplateResponse(request, self.verb_template, context, status=status)

    # Many at once ------------------------------------------------------------------------------------------------

    @admin.action(description=VERBS["retry"].many, permissions=["operate"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Retry every selected instance that failed."""
        return self.many(request, queryset, VERBS["retry"])

    @admin.action(description=VERBS["resume"].many, permissions=["operate"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Resume every selected instance that is paused."""
        return self.many(request, queryset, VERBS["resume"])

    @admin.action(description=VERBS["terminate"].many, permissions=["operate"])
    def terminate_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Terminate every selected instance that has not ended."""
        return self.many(request, queryset, VERBS["terminate"])

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The list. A forged action is refused like a forged URL (case SEC-02)."""
        if request.method == "POST" and request.POST.get("action") in self.actions:
            if not self.has_view_permission(request) or not self.has_operate_permission(request):
                raise PermissionDenied
        return super().changelist_view(request, extra_context)

    def many(self, request: HttpRequest, queryset: QuerySet[Any], verb: Verb) -> HttpResponse | None:
        """First the page that lists what will be done, then, with ``confirmed``, each row in a transaction of its own."""
        rows = list(queryset.order_by("id")[: MOST_AT_ONCE + 1])
        if len(rows) > MOST_AT_ONCE:
            text = _("Select at most %(n)s instances at a time, for example with a filter.")
            self.message_user(request, text % {"n": f"{MOST_AT_ONCE:,}"}, messages.ERROR)
            return None
        confirmed = "confirmed" in request.POST
        form = verb.form(request.POST if confirmed else None)
        if not confirmed or not form.is_valid():
            return self._bulk_page(request, rows, verb, form)
        done, undoing, skipped = 0, 0, Counter[str]()
        for row in rows:
            why = self._one_of_many(request, row, verb, form.cleaned_data)
            if why:
                skipped[why] += 1
            else:
                done += 1
                undoing += verb.name == "terminate" and row.status == Status.ROLLING_BACK
        self._report(request, verb, done, undoing, skipped)
        return None

    def _one_of_many(self, request: HttpRequest, row: WorkflowInstance, verb: Verb, said: dict[str, Any]) -> str:
        """Do one row; why it was left out, or ''."""
        try:
            self.apply_verb(request, row, verb, said)
        except PermissionDenied:
            return _("not permitted")
        except InvalidTransition as error:
            return _("status %(status)s") % {"status": WorkflowInstance.Status(error.status).label}
        except WorkflowInstance.DoesNotExist:
            return _("deleted meanwhile")
        return ""

    def _report(self, request: HttpRequest, verb: Verb, done: int, undoing: int, skipped: Counter[str]) -> None:
        text = _("%(verb)s: %(done)d done") % {"verb": verb.label, "done": done}
        if undoing:
            text += _(" (%(n)d of them once what they did is undone)") % {"n": undoing}
        if skipped:
            why = "; ".join(f"{reason}: {number}" for reason, number in sorted(skipped.items()))
            text += _(", %(n)d skipped (%(why)s)") % {"n": skipped.total(), "why": why}
        level = messages.WARNING if skipped else messages.SUCCESS
        self.message_user(request, text, level if done else messages.ERROR)

    def _bulk_page(self, request: HttpRequest, rows: list[Any], verb: Verb, form: ReasonForm) -> HttpResponse:
        undone = WorkflowInstance.objects.filter(pk__in=[row.pk for row in rows], rollback__isnull=False)
        outcomes = dict(undone.values_list("pk", "rollback"))
        for row in rows:  # lists leave it out; asked row by row it would be a query each
            row.rollback = outcomes.get(row.pk)
        fitting = [row for row in rows if possible(verb.name, row) and self.has_operate_permission(request, row)]
        others = [row for row in rows if row not in fitting]
        title = ngettext("%(verb)s %(n)d instance", "%(verb)s %(n)d instances", len(fitting))
        context = self.page_context(
            request,
            title % {"verb": verb.label, "n": len(fitting)},
            verb=verb,
            form=form,
            fitting=fitting[:MOST_LISTED],
            fitting_left=max(0, len(fitting) - MOST_LISTED),
            others=others[:MOST_LISTED],
            others_left=max(0, len(others) - MOST_LISTED),
            children=number_told(fitting) if verb.name == "terminate" and fitting else (),
            selected=[row.pk for row in fitting],
            checkbox=ACTION_CHECKBOX_NAME,
            action=f"{verb.name}_selected",
        )
        return TemplateResponse(request, self.bulk_template, context)
