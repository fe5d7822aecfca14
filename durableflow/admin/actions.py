"""The verbs on one instance, each behind a page that says what it does (design 10, cases SEC-01, SEC-02, SEC-10)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin.models import DELETION, LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import ProtectedError, RestrictedError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _

from durableflow.admin.base import ReadOnlyAdminMixin
from durableflow.admin.plans import Plan, plan
from durableflow.admin.removing import plan_of_deleting, protected_text, protectors, relatives_of
from durableflow.admin.verbs import VERBS, Verb, about, told
from durableflow.core.exceptions import InvalidTransition
from durableflow.models import WorkflowInstance
from durableflow.models.permissions import DELETE, OPERATE, holds

METHODS: Final = ("GET", "HEAD", "POST")
RUN: Final = "run"
"""The field with the run that a page was about."""


class VerbsMixin(ReadOnlyAdminMixin):
    """The verbs of an instance admin: one page for each."""

    verb_template = "admin/durableflow/verb.html"

    def has_operate_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may operate all instances, or this one. Actions name it in ``permissions``."""
        return holds(request.user, OPERATE, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may delete all instances, or this one."""
        return holds(request.user, DELETE, obj)

    def verb_urls(self) -> list[Any]:
        """One URL for each verb; that of delete is Django's."""
        return [
            path(
                f"<path:object_id>/{name}/",
                self.admin_site.admin_view(partial(self.verb_view, verb=verb)),
                name=self.url_name(name),
            )
            for name, verb in VERBS.items()
            if name != "delete"
        ]

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Our page in place of Django's, which would read all that goes with the instance into memory."""
        return self.verb_view(request, object_id, VERBS["delete"])

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Deleting goes through the verb, whoever calls this."""
        VERBS["delete"].apply(obj, by=request.user)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        """Deleting goes through the verb, row by row."""
        for row in queryset.light().iterator():
            self.delete_model(request, row)

    def asked(self, request: HttpRequest, object_id: str, verb: Verb) -> WorkflowInstance | HttpResponse:
        """The instance that a request for ``verb`` is about; an answer where the method is wrong. Raises Http404, PermissionDenied."""
        if request.method not in METHODS:
            return HttpResponseNotAllowed(METHODS)
        instance: WorkflowInstance = self.visible(request, object_id)
        if not holds(request.user, verb.permission, instance):
            raise PermissionDenied
        return instance

    def verb_view(self, request: HttpRequest, object_id: str, verb: Verb) -> HttpResponse:
        """GET says what the verb does to this instance, POST does it.

        404: not visible; 403: no right; 409: the status does not allow it; 405: another method.
        """
        instance = self.asked(request, object_id, verb)
        if isinstance(instance, HttpResponse):
            return instance
        verb = about(verb, instance)
        form = verb.form(request.POST if request.method == "POST" else None)
        if not verb.fits_to(instance):
            return self.refused_page(request, instance, verb, verb.fits)
        if request.method != "POST" or not form.is_valid():
            status = 400 if form.is_bound else 200
            return self.verb_page(request, instance, verb, form, self.plan(request, instance, verb), status=status)
        return self.perform(request, instance, verb, form.cleaned_data)

    def plan(self, request: HttpRequest, instance: WorkflowInstance, verb: Verb) -> Plan | None:
        """What the page of a verb says; None where nothing can be done because of other rows."""
        if verb.name != "delete":
            return plan(verb, instance, request.user, self.url)
        found = relatives_of(instance)
        if found.protecting:
            return Plan(refused=protected_text(found.protecting))
        return plan_of_deleting(instance, found, request.user, self.url)

    def perform(
        self, request: HttpRequest, instance: WorkflowInstance, verb: Verb, said: dict[str, Any]
    ) -> HttpResponse:
        """Do it, and lead back to the instance; a page with 409 where it has changed since the form was shown."""
        restarted, run = _("It was restarted since this page was shown."), instance.run_number
        if verb.once and request.POST.get(RUN, str(run)) != str(run):
            return self.refused_page(request, instance, verb, restarted)
        if verb.name == "restart":
            said = {**said, "expected_run": run}
        try:
            self.apply_verb(request, instance, verb, said)
        except InvalidTransition:  # it changed since the page was shown
            instance = self.visible(request, str(instance.pk))
            another = verb.once and instance.run_number != run
            return self.refused_page(request, instance, verb, restarted if another else verb.fits)
        except WorkflowInstance.DoesNotExist as error:
            raise Http404(_("The instance was deleted meanwhile.")) from error
        except (ProtectedError, RestrictedError) as error:
            rows = error.protected_objects if isinstance(error, ProtectedError) else error.restricted_objects
            return self.refused_page(request, instance, verb, protected_text(protectors(rows)))
        self.message_user(request, told(verb, instance), messages.SUCCESS)
        if verb.name != "delete":
            return HttpResponseRedirect(self.url("change", instance.pk))
        seen = self.has_view_permission(request)  # of one's own instances it may have been the last
        return HttpResponseRedirect(self.url("changelist") if seen else reverse(f"{self.admin_site.name}:index"))

    def apply_verb(self, request: HttpRequest, instance: WorkflowInstance, verb: Verb, said: dict[str, Any]) -> None:
        """Do what the form says as the request's user, and leave a trace in Django's log beside the instance's own history."""
        before = copy.copy(instance)  # a deleted row has no key any more
        verb.apply(instance, by=request.user, **said)
        text = log_text(verb, said["reason"])
        if verb.name == "delete":
            log_each(request, [before], DELETION, text)
        else:
            self.log_change(request, instance, text)

    def refused_page(
        self, request: HttpRequest, instance: WorkflowInstance, verb: Verb, problem: Any, status: int = 409
    ) -> HttpResponse:
        """Why it is not possible now."""
        return self.verb_page(request, instance, verb, None, Plan(refused=problem), status=status)

    def verb_page(
        self,
        request: HttpRequest,
        instance: WorkflowInstance,
        verb: Verb,
        form: Any,
        plan: Plan | None,
        status: int = 200,
        title: str = "",
        **more: Any,
    ) -> HttpResponse:
        """The page of a verb: what it does, with its form, or why it is not possible."""
        problem = plan.refused if plan is not None else ""
        context = self.page_context(
            request,
            title or _("%(verb)s %(instance)s") % {"verb": verb.label, "instance": instance.label},
            instance,
            label=instance.label,
            verb=verb,
            form=form,
            problem=problem,
            status_line=_("Its status is: %(status)s.") % {"status": instance.get_status_display()},
            plan=plan,
            hidden=((RUN, str(instance.run_number)),) if verb.once else (),
            back_url=self.url("change", instance.pk),
            back_label=_("Back to the instance"),
            **more,
        )
        return TemplateResponse(
            request, self.verb_template, context, status=409 if problem and status == 200 else status
        )


def log_each(request: HttpRequest, rows: Sequence[WorkflowInstance], flag: int, text: str) -> None:
    """An entry in Django's log for each row, which may be deleted by now."""
    user: Any = request.user
    LogEntry.objects.log_actions(user.pk, rows, flag, text)


def log_text(verb: Verb, reason: str) -> str:
    """What Django's log says of a verb."""
    what = _("%(verb)s. Reason: %(reason)s") if reason else _("%(verb)s.")
    return what % {"verb": verb.label, "reason": reason}
