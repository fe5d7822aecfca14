"""Instances in the admin: a list, a page for each, and the verbs (design 10)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durableflow.admin.badges import badge
from durableflow.admin.filters import (
    AttentionFilter,
    ChildrenFilter,
    CreatedFilter,
    ParentFilter,
    ScheduleFilter,
    WorkflowFilter,
)
from durableflow.admin.lists import InstanceChangeList, status_counts
from durableflow.admin.page import InstancePage
from durableflow.admin.raw import error_class, hint
from durableflow.admin.search import by_id_prefix, workflow_names
from durableflow.admin.sending import SendingMixin
from durableflow.core import clock
from durableflow.core.statuses import FINISHED, Status, StepKind
from durableflow.models import PendingEvent
from durableflow.models.permissions import VIEW, holds
from durableflow.pages.moments import moment
from durableflow.timeline import error_of, output_of, shown

PARTS = ("params", "output", "progress")


class WorkflowInstanceAdminMixin(SendingMixin):
    """The admin of instances. A theme's user puts it before the theme's ModelAdmin and registers the result."""

    change_list_template = "admin/durableflow/workflowinstance/change_list.html"
    page_template = "admin/durableflow/workflowinstance/change_form.html"
    list_display = ("instance", "state", "progress_hint", "created_at", "finished_at")
    list_filter = (
        ChildrenFilter,
        ScheduleFilter,
        AttentionFilter,
        "status",
        ParentFilter,
        WorkflowFilter,
        CreatedFilter,
    )
    search_fields = ("instance_id",)
    search_help_text = gettext_lazy("The beginning of an instance id. Upper and lower case matter.")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """With the permission all instances, else those that the user created."""
        if holds(request.user, VIEW, obj):
            return True
        own: Any = self.model._default_manager.all()
        rows = own.visible_to(request.user)
        return bool((rows if obj is None else rows.filter(pk=obj.pk)).exists())

    # The list ----------------------------------------------------------------------------------------------------

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """The list class."""
        return InstanceChangeList

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The list, with a count for each status above it."""
        counts = []
        if request.method == "GET" and self.has_view_permission(request):
            counts = status_counts(self.get_queryset(request), request.GET.get("status__exact", ""))
        return super().changelist_view(
            request, {"status_counts": counts, "title": self.plural, **(extra_context or {})}
        )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Ids that start with the term, by the index; payloads are not searched."""
        term = search_term.strip()
        if not term:
            return queryset, False
        return by_id_prefix(queryset, term, workflow_names(request.user)), False

    @admin.display(description=gettext_lazy("instance"))
    def instance(self, obj: Any) -> SafeString:
        """Its id and its workflow."""
        return format_html('{}<span class="df-why">{}</span>', obj.instance_id, obj.workflow)

    @admin.display(description=gettext_lazy("created"))
    def created_at(self, obj: Any) -> SafeString | str:
        """When it was created."""
        return moment(obj.created)

    @admin.display(description=gettext_lazy("finished"))
    def finished_at(self, obj: Any) -> SafeString | str:
        """When it ended."""
        return moment(obj.finished)

    @admin.display(description=gettext_lazy("status"))
    def state(self, obj: Any) -> SafeString:
        """The status with its reason in a few words."""
        drawn = badge(obj.status, obj.get_status_display())
        why = short_reason(obj)
        return format_html('{}<span class="df-why">{}</span>', drawn, why) if why else drawn

    @admin.display(description=gettext_lazy("progress"), empty_value="")
    def progress_hint(self, obj: Any) -> str:
        """The start of what the workflow says of itself."""
        return hint(obj.progress_start, obj.progress_size)

    # The page ----------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        """The verbs and the full values, before Django's own."""
        json_url = path(
            "<path:object_id>/json/<slug:part>/",
            self.admin_site.admin_view(self.json_view),
            name=self.url_name("json"),
        )
        return [*self.bulk_urls(), *self.verb_urls(), json_url, *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The page of one instance. It is no form: a POST is refused (case SEC-16)."""
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        instance = self.visible(request, object_id)
        context = self.page_context(
            request,
            instance.label,
            instance,
            instance=instance,
            page=InstancePage(instance, request.user, self.url, request.GET, partial(self._schedule_url, request)),
            history_url=self.url("history", instance.pk),
            pending_url_name=f"{self.admin_site.name}:durableflow_pendingevent_change",
            shows_pending=self.admin_site.is_registered(PendingEvent),
        )
        return TemplateResponse(request, self.page_template, {**context, **(extra_context or {})})

    def _schedule_url(self, request: HttpRequest, schedule: Any) -> str:
        """The page of a schedule; '' where the site does not show schedules, or not to this person."""
        may = any(request.user.has_perm(f"durableflow.{verb}_workflowschedule") for verb in ("view", "change"))
        return self.url_of(schedule) if may else ""

    def json_view(self, request: HttpRequest, object_id: str, part: str) -> HttpResponse:
        """A whole value: ``params``, ``output``, ``progress``, ``error``, ``step-<id>``, ``event-<id>``; masked like everything else."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        value = self._part(self.visible(request, object_id), part)
        response = JsonResponse(value, safe=False, json_dumps_params={"indent": 2, "ensure_ascii": False})
        response["X-Content-Type-Options"] = "nosniff"
        return response

    def _part(self, instance: Any, part: str) -> Any:
        if part in PARTS:
            return shown(getattr(instance, part))
        if part == "error":
            return error_of(instance)
        kind, _dash, number = part.partition("-")
        rows = {"step": instance.steps, "event": instance.sent_events}.get(kind)
        if rows is None or not (number.isascii() and number.isdecimal() and len(number) < 19):
            raise Http404
        row = rows.filter(pk=int(number)).first()
        if row is None:
            raise Http404
        return output_of(row) if kind == "step" else shown(row.payload)


def short_reason(instance: Any) -> str:
    """Why the instance is in its status, from its row and ``waits_now`` alone; secrets cannot be in it."""
    if instance.status == Status.PAUSED and instance.blocked:
        return _("Blocked: needs a person")
    if instance.status in FINISHED:
        undoing = _("Not everything was undone") if getattr(instance, "is_not_undone", False) else ""
        error = error_class(getattr(instance, "error_data_start", None)) if instance.status == Status.ERRORED else ""
        return " · ".join(filter(None, (error, undoing)))
    if instance.hold:
        return str(instance.get_hold_display())
    if instance.status in (Status.QUEUED, Status.WAITING) and instance.wake_at and instance.wake_at <= clock.host_now():
        return _("Due: waits for a free worker")
    waits: Sequence[Any] = getattr(instance, "waits_now", ())
    if instance.status == Status.WAITING and waits:
        first = waits[0]
        what = _("Decision: %(name)s") if first.kind == StepKind.WAIT_FOR_APPROVAL else _("Event: %(name)s")
        more = f" +{len(waits) - 1}" if len(waits) > 1 else ""
        return what % {"name": first.name} + more
    return ""


class WorkflowInstanceAdmin(WorkflowInstanceAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Instances under Django's own theme."""
