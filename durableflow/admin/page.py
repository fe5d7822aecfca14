"""What the page of one instance shows (design 10). Every part has a bounded number of queries and of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

from django.core.paginator import Page, Paginator
from django.db.models import TextChoices
from django.http import QueryDict
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durableflow.admin.badges import badge
from durableflow.admin.filters import ChildrenFilter
from durableflow.admin.raw import value_html, with_start
from durableflow.admin.sending import SEND_EVENT
from durableflow.admin.step_verbs import NO_TARGETS, join_members, targets
from durableflow.admin.verbs import VERBS
from durableflow.core.statuses import FINISHED, RollbackStatus, SentKind, Status, StepKind, StepStatus
from durableflow.models import PendingEvent, StepRecord, WorkflowInstance
from durableflow.models.completable import completable
from durableflow.operations.retention import kept_for
from durableflow.pages.values import json_html
from durableflow.timeline import (
    GroupView,
    HistoryView,
    PauseView,
    Relative,
    StepView,
    TimerView,
    Veil,
    advice,
    children_of,
    error_of,
    groups,
    history_page,
    open_waits,
    parent_of,
    pause_of,
    reason,
    shown,
    steps,
)

STEPS_ON_PAGE: Final = 200
HISTORY_ON_PAGE: Final = 100
HISTORY_AT_ONCE: Final = 2_000
EVENTS_ON_PAGE: Final = 20
SHOWN: Final = {
    "failed": (gettext_lazy("Failed steps"), (StepStatus.FAILED,)),
    "open": (gettext_lazy("Unfinished steps"), (StepStatus.PENDING, StepStatus.STARTED)),
}
"""Which steps can be shown alone: name and statuses."""
TOLD: Final = (
    (gettext_lazy("%(n)d complete"), (StepStatus.COMPLETE,)),
    (gettext_lazy("%(n)d failed"), (StepStatus.FAILED,)),
    (gettext_lazy("%(n)d unfinished"), (StepStatus.PENDING, StepStatus.STARTED)),
    (gettext_lazy("%(n)d cancelled"), (StepStatus.CANCELLED,)),
)
"""How a group tells of its members: text and the statuses that it counts."""


class StepRow:
    """A step with its output drawn.

    ``members``: what has become of a group's members; ``failed``: name and address of the first that failed, ``more_failed``: how
    many more. ``children``: name, address and drawn status of the instances that it has started; ``children_url``: of a join, their list.
    ``actions``: label and address of what can be done with it now.
    """

    members = ""
    failed: Sequence[tuple[str, str]] = ()
    more_failed = 0
    children: Sequence[tuple[str, str, SafeString]] = ()
    children_url = ""
    actions: Sequence[tuple[Any, str]] = ()

    def __init__(self, view: StepView, output_html: SafeString | str) -> None:
        self.view = view
        self.output_html = output_html
        self.badge = badge(view.status, _word(StepStatus, view.status))
        self.kind = _word(StepKind, view.kind)
        undo = view.rollback
        self.rollback = "" if undo is None else badge(undo.status, _word(RollbackStatus, undo.status))


def _draw_group(row: StepRow, group: GroupView) -> None:
    """Tell at the row of a group what has become of its members."""
    told = [text % {"n": group.count(*statuses)} for text, statuses in TOLD if group.count(*statuses)]
    row.members = ", ".join(told)
    row.failed = [(label, to_step(pk)) for pk, label in group.failed]
    row.more_failed = group.count(StepStatus.FAILED) - len(group.failed)


def number_in(asked: QueryDict, name: str) -> int:
    """The positive number that a query parameter gives; 0 where it gives none that a key can be."""
    text = asked.get(name, "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else 0


def to_step(pk: int) -> str:
    """What leads from an instance's page to the row of a step, whichever page of the steps it is on."""
    return f"?step={pk}#step-{pk}"


def _word(choices: type[TextChoices], value: str) -> str:
    """How people call it; the word itself where only newer code knows it."""
    return str(dict(choices.choices).get(value, value))


class InstancePage:
    """One instance for one person. ``url(name, *args)``: addresses of the admin. ``asked``: the query string. ``schedule_url``: the
    address of a schedule's page, '' where the person may not see it."""

    def __init__(
        self, instance: WorkflowInstance, user: Any, url: Any, asked: QueryDict, schedule_url: Callable[[Any], str]
    ) -> None:
        self.instance = instance
        self.user = user
        self._url = url
        self._schedule_url = schedule_url
        self._asked = asked

    @cached_property
    def _veil(self) -> Veil:
        return Veil.over(self.instance)

    @cached_property
    def _waits(self) -> list[dict[str, Any]]:
        return open_waits(self.instance)

    @property
    def badge(self) -> SafeString:
        """The status."""
        return badge(self.instance.status, self.instance.get_status_display())

    @cached_property
    def reason(self) -> str:
        """Why it is in its status."""
        return reason(self.instance, waits=self._waits, veil=self._veil)

    @cached_property
    def able(self) -> set[str]:
        """The names of the verbs that are possible now for this person."""
        return self.instance.available_actions(self.user)

    @cached_property
    def verbs(self) -> list[tuple[Any, str, bool]]:
        """The buttons: label, address, and whether it is dangerous."""
        found = []
        for name, verb in VERBS.items():
            if name in self.able:
                found.append((verb.label, self._url(name, self.instance.pk), verb.ends))
            if name == "restart" and name in self.able and targets(self.instance).exists():
                found.append((_("Restart from a step"), self._url("restart_from", self.instance.pk), verb.ends))
            if name == "restart" and SEND_EVENT.name in self.able:
                found.append((SEND_EVENT.label, self._url(SEND_EVENT.name, self.instance.pk), verb.ends))
        return found

    @cached_property
    def pause(self) -> PauseView | None:
        """Who has paused it, and what its clock holds; None where it is not paused."""
        return pause_of(self.instance)

    @property
    def timers(self) -> list[tuple[TimerView, str]]:
        """What ends by itself, each with its kind as people call it."""
        timers = () if self.pause is None else self.pause.timers
        return [(timer, _word(StepKind, timer.kind) if timer.kind else _("Longest duration")) for timer in timers]

    @property
    def facts(self) -> list[tuple[str, Any]]:
        """Label and value; values that are moments are drawn as such, empty ones left out."""
        row = self.instance
        return [
            (label, value)
            for label, value in (
                (_("Workflow"), row.workflow),
                (_("Instance id"), row.instance_id),
                (_("Run number"), row.run_number),
                (_("Started from"), row.get_trigger_display()),
                (_("Parent"), self._parent),
                (_("Created by"), row.created_by_name),
                (_("Priority"), row.get_priority_display()),
                (_("Created"), row.created),
                (_("Schedule"), self._schedule),
                (_("Cron line"), row.cron),
                (_("Scheduled for"), row.scheduled_for),
                (_("Starts at"), row.starts_at),
                (_("Started"), row.started),
                (_("Finished"), row.finished),
                (_("Kept until"), self._kept_until),
                (_("Next wake"), row.wake_at),
                (_("Deadline"), None if row.paused_at else row.deadline_at),
                (_("Executions so far"), row.execution),
                (_("Workers lost since the last step"), row.interruptions),
            )
            if value not in (None, "", 0)
        ]

    @property
    def _kept_until(self) -> Any:
        """When it may be purged; None before its end."""
        row = self.instance
        if row.finished is None or row.status not in FINISHED:
            return None
        try:
            return row.finished + kept_for(row)
        except OverflowError:
            return _("for ever")

    @property
    def _parent(self) -> SafeString | str:
        """A link to the parent's step that has started this one; '' without a parent that the person may see."""
        parent = parent_of(self.instance, self.user)
        if parent is None:
            return ""
        address = f"{self._url('change', parent.id)}{to_step(parent.step_id)}"
        name = _("%(parent)s, step %(step)s") % {"parent": parent.label, "step": parent.step}
        return format_html('<a href="{}">{}</a>', address, name)

    @property
    def _schedule(self) -> SafeString | str:
        """The schedule that has started it; a link where the person may see that."""
        row = self.instance.schedule
        if row is None:
            return ""
        address = self._schedule_url(row)
        return format_html('<a href="{}">{}</a>', address, row.name) if address else row.name

    @cached_property
    def error(self) -> dict[str, Any] | None:
        """What ended it, masked."""
        return error_of(self.instance, self._veil)

    @property
    def advice(self) -> str:
        """What its trouble means and what helps, or ''."""
        return advice(self.instance, self.error)

    @cached_property
    def values(self) -> list[tuple[str, SafeString, str]]:
        """Heading, drawn value and address of the full JSON of what the instance holds."""
        found = []
        for part, heading in (("params", _("Params")), ("progress", _("Progress")), ("output", _("Output"))):
            value = getattr(self.instance, part)
            if value is not None or part == "params":
                full_url = self._url("json", self.instance.pk, part)
                found.append((heading, json_html(shown(value), full_url), full_url))
        return found

    # Steps -------------------------------------------------------------------------------------------------------

    @property
    def only(self) -> str:
        """Which steps are shown: a key of ``SHOWN``, '' for all."""
        asked = self._asked.get("only", "")
        return asked if asked in SHOWN else ""

    @property
    def choices(self) -> list[tuple[str, Any, bool]]:
        """The query string, name and whether it is in force, for each choice of steps."""
        found = [("?", _("All steps"), not self.only)]
        return found + [(f"?only={key}", label, self.only == key) for key, (label, _statuses) in SHOWN.items()]

    @cached_property
    def step_page(self) -> Page[Any]:
        """The step records of one page; the first run's page 1 holds its first steps."""
        rows = self.instance.steps.filter(run_number=self.instance.run_number).order_by("seq").defer("config")
        if self.only:
            rows = rows.filter(status__in=SHOWN[self.only][1])
        pages = Paginator(with_start(rows, "raw_output"), STEPS_ON_PAGE)
        return pages.get_page(self._page_of_step(rows) or self._asked.get("steps"))

    def _page_of_step(self, rows: Any) -> int:
        """The page with the step that ``?step=`` asks for; 0: it asks for none of this run."""
        pk = number_in(self._asked, "step")
        step = rows.filter(pk=pk).values_list("seq", flat=True).first() if pk else None
        return 0 if step is None else rows.filter(seq__lt=step).count() // STEPS_ON_PAGE + 1

    @cached_property
    def steps(self) -> list[StepRow]:
        """The steps of this page with attempts and waits."""
        records = list(self.step_page.object_list)
        if not records:
            return []
        rows = []
        children, below = children_of(records, self.user), groups(self.instance, records)
        for record, view in zip(records, steps(self.instance, records, outputs=False), strict=True):
            full_url = self._url("json", self.instance.pk, f"step-{record.pk}")
            row = StepRow(view, value_html(record, "raw_output", full_url, sensitive=record.sensitive))
            row.children = [self._child(child) for child in children.get(record.pk, ())]
            if record.pk in below:
                _draw_group(row, below[record.pk])
            row.actions = self._step_actions(record)
            if record.remaining is not None:
                row.children_url = f"{self._url('changelist')}?{ChildrenFilter.parameter_name}={record.pk}"
            rows.append(row)
        return rows

    def _step_actions(self, record: StepRecord) -> list[tuple[Any, str]]:
        """Label and address of what can be done with a step now."""
        found = []
        if record.pk in self._completable:
            found.append((_("Complete by hand"), self._url("complete_step", self.instance.pk, record.pk)))
        if "restart" in self.able and record.kind not in NO_TARGETS and record.pk not in self._join_members:
            found.append((_("Restart from here"), f"{self._url('restart_from', self.instance.pk)}?step={record.pk}"))
        return found

    @cached_property
    def _completable(self) -> set[int]:
        """The keys of the steps of this page that a person can give a result."""
        if "complete_step" not in self.able:
            return set()
        shown = [record.pk for record in self.step_page.object_list]
        return set(completable(self.instance).filter(pk__in=shown).values_list("pk", flat=True))

    @cached_property
    def _join_members(self) -> set[int]:
        return join_members(self.instance, list(self.step_page.object_list))

    def _child(self, child: Relative) -> tuple[str, str, SafeString]:
        """Name, address and status of a child."""
        return child.label, self._url("change", child.id), badge(child.status, _word(Status, child.status))

    # Waits and events --------------------------------------------------------------------------------------------

    @cached_property
    def waits(self) -> list[PendingEvent]:
        """The open waits that this person may see."""
        if not self._waits:
            return []
        seen = PendingEvent.objects.visible_to(self.user).filter(pk__in=[wait["id"] for wait in self._waits])
        return list(seen.order_by("id").defer("context", "data"))

    @cached_property
    def events(self) -> list[tuple[Any, SafeString | str]]:
        """Events that no wait has taken yet (case EVT-08), each with its payload drawn; the oldest first."""
        row = self.instance
        waiting = row.sent_events.filter(run_number=row.run_number, consumed_by="", kind=SentKind.EVENT).order_by("id")
        found = with_start(waiting, "payload")[: EVENTS_ON_PAGE + 1]
        return [
            (event, value_html(event, "payload", self._url("json", row.pk, f"event-{event.pk}"))) for event in found
        ]

    @property
    def events_left(self) -> bool:
        """Whether there are more events than are shown."""
        return len(self.events) > EVENTS_ON_PAGE

    # History -----------------------------------------------------------------------------------------------------

    @cached_property
    def history(self) -> list[tuple[HistoryView, SafeString | str]]:
        """The latest entries (or those before ``?before=``), the oldest of them first, each with its data drawn."""
        entries = history_page(self.instance, after=self._after, limit=self._history_size).entries
        return [
            (entry, "" if entry.data in (None, {}) else json_html(entry.data))
            for entry in entries
            if not self.before or entry.id < self.before
        ]

    @property
    def _history_size(self) -> int:
        return HISTORY_AT_ONCE if self._asked.get("history") == "all" else HISTORY_ON_PAGE

    @cached_property
    def before(self) -> int:
        """The entry before which the shown ones lie; 0: the latest are shown."""
        return number_in(self._asked, "before")

    @cached_property
    def _after(self) -> int:
        rows = self.instance.history.order_by("-id")
        if self.before:
            rows = rows.filter(id__lt=self.before)
        size = self._history_size
        return rows.values_list("id", flat=True)[size : size + 1].first() or 0

    @property
    def older(self) -> int:
        """What ``?before=`` has to be for older entries; 0: there are none."""
        return self.history[0][0].id if self._after and self.history else 0
