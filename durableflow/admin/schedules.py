"""Schedules in the admin: a list, a form for those that staff add, and verbs (design 9, 10; cases SEC-08, SEC-10, SCH-07)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import DatabaseError, IntegrityError, OperationalError, router
from django.db.models import OuterRef, Subquery, Sum
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from durableflow.admin.badges import badge
from durableflow.admin.lists import BoundedChangeList
from durableflow.admin.schedule_form import ScheduleForm
from durableflow.admin.schedule_page import SchedulePage, state
from durableflow.admin.schedule_verbs import ScheduleVerbsMixin
from durableflow.core import clock
from durableflow.core.exceptions import InvalidTransition
from durableflow.core.statuses import Status, Via
from durableflow.models import SkippedSlots, WorkflowInstance
from durableflow.models.schedule_verbs import declares
from durableflow.pages.moments import moment

LATELY: Final = timedelta(days=7)
MADE: Final = ("workflow", "name", "cron", "timezone", "params", "catch_up", "overlap")
SEEN: Final = ("workflow", "name", "cron", "timezone", "catch_up", "overlap")


class ScheduleChangeList(BoundedChangeList):
    """The schedules of a page with their last instance and what was skipped lately: one statement, by indexes."""

    def page_rows(self, keys: list[int]) -> Any:
        """With what the list shows."""
        mine = WorkflowInstance.objects.filter(schedule=OuterRef("pk"), scheduled_for__isnull=False)
        last = mine.order_by("-scheduled_for")
        skipped = SkippedSlots.objects.filter(schedule=OuterRef("pk"), at__gte=clock.host_now() - LATELY)
        number = skipped.order_by().values("schedule").annotate(all=Sum("number")).values("all")
        return (
            super()
            .page_rows(keys)
            .annotate(
                last_pk=Subquery(last.values("pk")[:1]),
                last_status=Subquery(last.values("status")[:1]),
                last_slot=Subquery(last.values("scheduled_for")[:1]),
                skipped_lately=Subquery(number),
            )
        )


class WorkflowScheduleAdminMixin(ScheduleVerbsMixin):
    """The admin of schedules. A theme's user puts it before the theme's ModelAdmin and registers the result."""

    change_list_template = "admin/durableflow/workflowschedule/change_list.html"
    change_form_template = "admin/durableflow/workflowschedule/change_form.html"
    delete_confirmation_template = "admin/durableflow/workflowschedule/delete.html"
    form = ScheduleForm
    list_display = ("schedule", "when", "state", "next_run", "last_run")
    list_filter = ("enabled", "workflow")
    search_fields = ("workflow", "name")
    ordering = ("workflow", "name")
    actions = None

    # The list ----------------------------------------------------------------------------------------------------

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """The list class."""
        return ScheduleChangeList

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The list."""
        return super().changelist_view(request, {"title": self.plural, **(extra_context or {})})

    @admin.display(description=gettext_lazy("schedule"))
    def schedule(self, obj: Any) -> SafeString:
        """Its name and its workflow."""
        return format_html('{}<span class="df-why">{}</span>', obj.name, obj.workflow)

    @admin.display(description=gettext_lazy("cron line"))
    def when(self, obj: Any) -> SafeString:
        """The cron line and its zone."""
        return format_html('<code>{}</code><span class="df-why">{}</span>', obj.cron, obj.timezone)

    @admin.display(description=gettext_lazy("status"))
    def state(self, obj: Any) -> SafeString:
        """Whether it fires, and why not."""
        return format_html('{}<span class="df-why">{}</span>', state(obj), obj.problem) if obj.problem else state(obj)

    @admin.display(description=gettext_lazy("next run"), empty_value="-")
    def next_run(self, obj: Any) -> SafeString | str:
        """Its next slot, in the reader's time."""
        return moment(obj.next_slot) if obj.enabled and not obj.problem else ""

    @admin.display(description=gettext_lazy("last run"), empty_value="-")
    def last_run(self, obj: Any) -> SafeString | str:
        """The instance of the last slot that started one, and how many started none lately."""
        parts = []
        if obj.last_pk is not None:
            drawn = badge(obj.last_status, Status(obj.last_status).label)
            parts.append(format_html('{}<span class="df-why">{}</span>', drawn, moment(obj.last_slot)))
        if obj.skipped_lately:
            text = ngettext("%(n)s skipped in 7 days", "%(n)s skipped in 7 days", obj.skipped_lately)
            parts.append(
                format_html('<span class="df-why df-skips">{}</span>', text % {"n": f"{obj.skipped_lately:,}"})
            )
        return format_html_join("", "{}", ((part,) for part in parts))

    # The page ----------------------------------------------------------------------------------------------------

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """What is declared in code is changed there; here it is paused and resumed."""
        return super().has_change_permission(request, obj) and not (obj is not None and obj.declared)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """What is declared in code would be declared again; not where its workflow is in no code any more."""
        return super().has_delete_permission(request, obj) and not (obj is not None and declares(obj))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """A new one may begin paused; later the verbs pause and resume it. Who may not change it sees the params below, masked."""
        if obj is None:
            return (*MADE, "enabled")
        return MADE if self.has_change_permission(request, obj) else SEEN

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The form, or for what is declared and for viewers its facts; below it next runs, instances and skipped slots."""
        row = self.get_object(request, object_id)
        context: dict[str, Any] = {"title": None}
        if row is not None and self.has_view_or_change_permission(request, row):
            context = {
                "title": str(row),
                "subtitle": None,
                "page": SchedulePage(row, request.user, self.url_of),
                "verbs": self.possible_verbs(request, row),
                "instances_url": self.instances_url(request, row),
                "editable": self.has_change_permission(request, row),
            }
        return super().change_view(request, object_id, form_url, {**context, **(extra_context or {})})

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """The form. Where another person was faster than the form's check, nothing is stored, and it says so."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except ValidationError as error:
            problem = " ".join(error.messages)
        except IntegrityError:
            problem = _("A schedule of this name was added meanwhile.")
        self.message_user(request, problem, messages.ERROR)
        return HttpResponseRedirect(request.get_full_path())

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Our words in Django's view. One that a worker declares meanwhile stays."""
        try:
            return super().delete_view(request, object_id, extra_context)
        except InvalidTransition as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(self.url("change", object_id))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Store what the form has changed, and nothing else: what others have done meanwhile stays."""
        if not change:
            super().save_model(request, obj, form, change)
            self._tell(request, obj, "create")
            return
        try:
            obj.save(update_fields=[name for name in MADE if name in form.changed_data])
        except (IntegrityError, OperationalError):
            raise
        except DatabaseError as error:  # no row was there to be changed
            raise Http404(_("The schedule was deleted meanwhile.")) from error
        self._tell(request, obj, "edit")

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete it, and say so in the server's log: its own list is gone."""
        self._tell(request, obj, "delete")
        super().delete_model(request, obj)

    def _tell(self, request: HttpRequest, obj: Any, verb: str) -> None:
        obj.told(verb, request.user, "", Via.ADMIN, router.db_for_write(type(obj)))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """What goes with a schedule: its record of skipped slots. Its instances stay, and are not read."""
        rows = list(objs)
        skipped = SkippedSlots.objects.filter(schedule__in=[row.pk for row in rows]).count()
        wrong = {str(self.opts.verbose_name) for row in rows if not self.has_delete_permission(request, row)}
        counts = {self.opts.verbose_name_plural: len(rows), SkippedSlots._meta.verbose_name_plural: skipped}
        return [str(row) for row in rows], counts, wrong, []


class WorkflowScheduleAdmin(WorkflowScheduleAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Schedules under Django's own theme."""
