"""Pending events in the admin: an inbox, and a page on which a person decides (design 8, 10)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durableflow.admin.actions import METHODS
from durableflow.admin.badges import badge, toned
from durableflow.admin.base import ReadOnlyAdminMixin
from durableflow.admin.filters import InboxFilter, OpenedFilter
from durableflow.admin.lists import BoundedChangeList
from durableflow.admin.search import by_id_prefix, stored_names
from durableflow.core.statuses import PendingStatus, Via
from durableflow.models import PendingEvent, WorkflowInstance
from durableflow.models.instance_fields import HEAVY
from durableflow.models.permissions import may_view
from durableflow.pages.decide import APPROVE, REJECT, DecidePage
from durableflow.pages.moments import moment
from durableflow.timeline import shown

BIG = ("context", "data", *(f"instance__{name}" for name in HEAVY))

SAID_BY_BADGE = ("approved", "rejected", "received", "timed_out", "cancelled")


class PendingChangeList(BoundedChangeList):
    """The inbox, without the big columns."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """The matching rows."""
        return super().get_queryset(request, *args, **kwargs).defer(*BIG)

    def page_rows(self, keys: list[int]) -> Any:
        """Without the big columns."""
        return super().page_rows(keys).defer(*BIG)


class PendingEventAdminMixin(ReadOnlyAdminMixin):
    """The admin of pending events. A theme's user puts it before the theme's ModelAdmin and registers the result."""

    change_list_template = "admin/durableflow/pendingevent/change_list.html"
    page_template = "admin/durableflow/pendingevent/change_form.html"
    list_display = ("wait", "state", "asked_by", "opened_at", "until")
    list_filter = (InboxFilter, "kind", OpenedFilter)
    search_fields = ("instance__instance_id",)
    search_help_text = gettext_lazy("The beginning of an instance id. Upper and lower case matter.")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """The inbox is open to all staff; which rows are in it depends on the person."""
        if obj is None:
            return bool(request.user.is_active and request.user.is_staff)
        return bool(self.model._default_manager.visible_to(request.user).filter(pk=obj.pk).exists())

    def get_queryset(self, request: HttpRequest) -> Any:
        """The rows that the user may see, with what a list shows of their instances."""
        return super().get_queryset(request).select_related("instance")

    # The list ----------------------------------------------------------------------------------------------------

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """The list class."""
        return PendingChangeList

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The inbox; what an empty one says depends on what was asked for."""
        shows = request.GET.get(InboxFilter.parameter_name, "mine")
        return super().changelist_view(request, {"inbox_shows": shows, "title": self.plural, **(extra_context or {})})

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Waits of instances whose id starts with the term."""
        term = search_term.strip()
        if not term:
            return queryset, False
        instances = by_id_prefix(WorkflowInstance.objects.all(), term, stored_names())
        return queryset.filter(instance__in=instances), False

    @admin.display(description=gettext_lazy("waits for"))
    def wait(self, obj: PendingEvent) -> SafeString:
        """What is waited for, and by which instance."""
        return format_html('{}<span class="df-why">{}</span>', subject(obj), obj.instance.label)

    @admin.display(description=gettext_lazy("status"))
    def state(self, obj: PendingEvent) -> SafeString:
        """The status as everybody must read it, and who decided."""
        drawn = state_badge(obj)
        return (
            format_html('{}<span class="df-why">{}</span>', drawn, obj.decided_by_name)
            if obj.decided_by_name
            else drawn
        )

    @admin.display(description=gettext_lazy("requested by"), empty_value="")
    def asked_by(self, obj: PendingEvent) -> str:
        """Who started the instance."""
        return obj.instance.created_by_name

    @admin.display(description=gettext_lazy("opened"))
    def opened_at(self, obj: PendingEvent) -> SafeString | str:
        """Since when it waits."""
        return moment(obj.opened)

    @admin.display(description=gettext_lazy("deadline"), empty_value="-")
    def until(self, obj: PendingEvent) -> SafeString | str:
        """Until when it can be answered."""
        if obj.deadline is not None and obj.instance.paused_at is not None and obj.status == PendingStatus.OPEN:
            return _("stands still: paused")
        return moment(obj.deadline)

    # The page ----------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        """The decision and the full context, before Django's own."""
        wrap = self.admin_site.admin_view
        return [
            path("<path:object_id>/decide/", wrap(self.decide_view), name=self.url_name("decide")),
            path("<path:object_id>/json/", wrap(self.json_view), name=self.url_name("json")),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The page of one wait, with the form where the person can decide it now."""
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        page = DecidePage(self.visible(request, object_id), request.user, Via.ADMIN)
        return self._page(request, page, 200, extra_context)

    def decide_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """GET shows the wait, POST decides it. 403: no right; 409: no longer open; 400: the answer has errors."""
        if request.method not in METHODS:
            return HttpResponseNotAllowed(METHODS)
        page = DecidePage(self.visible(request, object_id), request.user, Via.ADMIN)
        if request.method != "POST":
            # No link leads here: an answer was lost at the login, or the page of a refused one was opened again.
            if page.is_open:
                page.problem = _("Nothing was stored so far. If you had to log in on the way, decide once more.")
            return self._page(request, page, 200)
        status = page.submit(request.POST)
        if status != 200:
            return self._page(request, page, status)
        pending = page.pending
        what = _("Approved.") if pending.approved else _("Rejected.")
        self.log_change(request, pending, f"{what} {pending.comment}".strip())
        self.message_user(request, _("Your decision was stored: %(what)s") % {"what": what}, messages.SUCCESS)
        return HttpResponseRedirect(self.url("change", pending.pk))

    def json_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The whole context, masked."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        value = shown(self.visible(request, object_id).context)
        response = JsonResponse(value, safe=False, json_dumps_params={"indent": 2, "ensure_ascii": False})
        response["X-Content-Type-Options"] = "nosniff"
        return response

    def _page(self, request: HttpRequest, page: DecidePage, status: int, extra: Any = None) -> HttpResponse:
        pending = page.pending
        instance_url = self.url_of(pending.instance) if may_view(pending.instance, request.user) else ""
        context = self.page_context(
            request,
            subject(pending),
            pending,
            pending=pending,
            page=page,
            badge=state_badge(pending),
            heading="" if page.state in SAID_BY_BADGE else page.heading,
            instance_url=instance_url,
            current_url=self.url_of(page.current) if page.current else "",
            decide_url=self.url("decide", pending.pk),
            history_url=self.url("history", pending.pk),
            send_url=self._send_url(request, page) if instance_url else "",
            approve=APPROVE,
            reject=REJECT,
        )
        return TemplateResponse(request, self.page_template, {**context, **(extra or {})}, status=status)

    def _send_url(self, request: HttpRequest, page: DecidePage) -> str:
        """Where staff send the event that is waited for; '' where this person cannot, or the site has no such page."""
        instance = page.pending.instance
        if page.state != "event" or "send_event" not in instance.available_actions(request.user):
            return ""
        try:
            address = reverse(f"{self.admin_site.name}:durableflow_workflowinstance_send_event", args=[instance.pk])
        except NoReverseMatch:
            return ""
        return f"{address}?{urlencode({'type': page.pending.types[0]})}" if len(page.pending.types) == 1 else address


def subject(pending: PendingEvent) -> str:
    """What has to be decided, or what event is waited for."""
    if pending.is_approval:
        return str(pending)
    return _("Event %(types)s") % {"types": ", ".join(pending.types)}


def state_badge(pending: PendingEvent) -> SafeString:
    """The status of a wait; of a decided one, which way it went."""
    status = pending.current_status
    if status == PendingStatus.RECEIVED and pending.approved is not None:
        return toned("✓", "good", _("Approved")) if pending.approved else toned("✕", "bad", _("Rejected"))
    return badge(status, PendingStatus(status).label)


class PendingEventAdmin(PendingEventAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Pending events under Django's own theme."""
