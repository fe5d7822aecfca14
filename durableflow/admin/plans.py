"""What a verb keeps, changes and drops of one instance, by name and number: said before it is done (design 9, 10)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from durableflow.admin.family import ending_and_staying, given_ids, joined
from durableflow.admin.verbs import AGAIN, Verb
from durableflow.core.fields import Unreadable
from durableflow.core.spans import span
from durableflow.core.statuses import (
    STEP_FINISHED,
    PendingStatus,
    SentKind,
    Status,
    StepKind,
    StepStatus,
)
from durableflow.models import StepRecord, WorkflowInstance
from durableflow.models.keeping import Known, split
from durableflow.models.step import step_label
from durableflow.timeline import TimerView, timers_of

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise as Text

MOST_NAMED: Final = 10
WAITS: Final = (StepKind.WAIT_FOR_EVENT, StepKind.WAIT_FOR_APPROVAL)
CALLING: Final = (StepKind.DO, StepKind.NOTIFY, StepKind.CHILD)
"""Steps that do something outside of their instance."""
Url = Callable[..., str]


@dataclass
class Plan:
    """What a verb does to one instance: sentences for the confirmation page. ``warnings`` stand above the rest.
    ``refused``: why it is not possible at all."""

    kept: list[Text] = field(default_factory=list)
    changed: list[Text] = field(default_factory=list)
    warnings: list[Text] = field(default_factory=list)
    refused: Text = ""


def plan(verb: Verb, instance: WorkflowInstance, user: Any, url: Url) -> Plan:
    """Say to ``user`` what is kept and what happens to ``instance``; ten statements at most. ``url``: addresses of the admin."""
    make = {"terminate": _terminate, "pause": _pause, "resume": _resume, "restart": _restart, "retry": _retry}[
        verb.name
    ]
    return make(instance, user, url)


def _retry(instance: WorkflowInstance, user: Any, url: Url) -> Plan:
    kept = [*_results(instance), SAME_KEYS]
    if isinstance(instance.rollback, dict):
        kept.append(_("What is undone stays undone; no step runs forward again."))
        return Plan(kept, [_("Rollback handlers run again: %(steps)s") % {"steps": named(instance.rollback["failed"])}])
    again = failed_steps(instance)
    if again:
        return Plan(kept, [_("Runs again: %(steps)s") % {"steps": named(again)}])
    return Plan(kept, [_("The instance goes on from its last finished step.")])


def _pause(instance: WorkflowInstance, user: Any, url: Url) -> Plan:
    plan = Plan(_results(instance))
    plan.kept.append(_("Events and decisions that come meanwhile are kept and answer their wait after Resume."))
    timers = timers_of(instance)
    plan.kept += [timer_text(timer) for timer in timers[:MOST_NAMED]]
    if len(timers) > MOST_NAMED:
        plan.kept.append(_("%(n)d more timers") % {"n": len(timers) - MOST_NAMED})
    if instance.status == Status.RUNNING:
        running = bodies(instance)
        if running:
            plan.changed.append(_("Running now: %(steps)s") % {"steps": named(running)})
        plan.changed.append(
            _("A step that is running now is not interrupted: it ends, and its result is stored. Then it is paused.")
        )
    else:
        plan.changed.append(_("It is paused at once."))
    if _children(instance).exists():
        plan.changed.append(_("Its child workflows are not paused: they go on."))
    return plan


def _resume(instance: WorkflowInstance, user: Any, url: Url) -> Plan:
    plan = Plan([*_results(instance), SAME_KEYS])
    if instance.status == Status.WAITING_FOR_PAUSE:
        plan.changed.append(_("The steps that are running now go on as if nothing had been asked for."))
        return plan
    plan.changed.append(_("The instance goes on from its last finished step."))
    plan.changed += [timer_text(timer) for timer in timers_of(instance)[:MOST_NAMED]]
    return plan


def _terminate(instance: WorkflowInstance, user: Any, url: Url) -> Plan:
    plan = Plan([*_results(instance), _("History, results so far and decisions stay readable.")])
    ended, left = ending_and_staying(instance, user, url)
    if left:
        plan.kept.append(format_html(str(_("Child workflows that go on: {}")), left))
    if ended:
        plan.changed.append(format_html(str(_("Child workflows that end with it: {}")), ended))
    plan.changed += _open_things(instance, _steps(instance))
    plan.changed.append(_("A step that is running now is not interrupted, but its result is dropped."))
    return plan


def _restart(instance: WorkflowInstance, user: Any, url: Url) -> Plan:
    run = _("Params, id, priority and who started it stay. What run %(n)d did stays readable in the history.")
    plan = Plan([run % {"n": instance.run_number}])
    done = _steps(instance).filter(status__in=(StepStatus.COMPLETE, StepStatus.FAILED))
    number = done.count()
    if number:
        first = named_steps(done)
        text = ngettext(
            "%(n)d finished step counts no more and runs again if the new run comes to it: %(steps)s",
            "%(n)d finished steps count no more and run again if the new run comes to them: %(steps)s",
            number,
        )
        plan.changed.append(text % {"n": number, "steps": first})
    if number or _may_have_called(instance):
        plan.warnings.append(AGAIN)
    _drop(plan, instance, _steps(instance), user, url)
    return plan


def _may_have_called(instance: WorkflowInstance) -> bool:
    """Whether a body that has not finished may have called outside systems: one that runs, which often has no record yet, or one
    that was tried."""
    at_work = instance.status in (Status.RUNNING, Status.WAITING_FOR_PAUSE)
    return at_work or bool(_steps(instance).filter(kind__in=CALLING).exists())


def plan_from_step(instance: WorkflowInstance, step: StepRecord, user: Any, url: Url) -> Plan:
    """The same for a restart from ``step``. Raises ValueError where nothing can be restarted from it."""
    found = split(instance, step)
    kept, again = len(found.kept), len(found.dropped)
    text = ngettext(
        "%(n)s step that started before it keeps its result: %(steps)s",
        "%(n)s steps that started before it keep their results: %(steps)s",
        kept,
    )
    values = {"n": f"{kept:,}", "steps": named(_labels(found.kept))}
    plan = Plan([text % values if kept else _("No step started before it.")])
    plan.kept.append(_("Idempotency keys of the steps that are kept stay the same."))
    text = ngettext(
        "%(n)s step is dropped and runs again if the program comes to it: %(steps)s",
        "%(n)s steps are dropped and run again if the program comes to them: %(steps)s",
        again,
    )
    plan.changed.append(text % {"n": f"{again:,}", "steps": named(_labels(found.dropped))})
    plan.warnings.append(AGAIN)
    dropped = _steps(instance).filter(pk__in=[record.pk for record in found.dropped])
    waits = instance.pending_events.filter(status=PendingStatus.OPEN, step__in=[record.pk for record in found.kept])
    wanted = {type for types in waits.values_list("types", flat=True) for type in types}
    _drop(plan, instance, dropped, user, url, wanted)
    return plan


def _labels(records: Sequence[Known]) -> list[str]:
    return [step_label(record.scope, record.name, record.count) for record in records[: MOST_NAMED + 1]]


def plan_of_completing(instance: WorkflowInstance, step: StepRecord) -> Plan:
    """The same for a result that a person gives to ``step``."""
    plan = Plan([*_results(instance), _("What was tried so far stays readable in the history.")])
    plan.changed.append(_("%(step)s is complete with the output below. Nobody runs it.") % {"step": step.label})
    others = [label for label in failed_steps(instance) if label != step.label]
    if instance.status == Status.ERRORED:
        if others:
            plan.changed.append(_("Runs again, as with Retry: %(steps)s") % {"steps": named(others)})
        plan.changed.append(_("The instance is queued again and goes on after this step."))
    elif instance.status == Status.PAUSED:
        plan.changed.append(_("The instance stays paused. It goes on after this step when somebody resumes it."))
    else:
        plan.changed.append(_("The instance goes on after this step."))
    if step.sensitive:
        plan.kept.append(_("The step is sensitive: what you enter is shown nowhere afterwards."))
    return plan


def _drop(
    plan: Plan, instance: WorkflowInstance, steps: Any, user: Any, url: Url, wanted: Collection[str] = ()
) -> None:
    """What a restart does to what is open, to events that nobody has read, and to children. ``wanted``: types of events that a
    wait takes which is kept."""
    plan.changed += _open_things(instance, steps)
    events = instance.sent_events.filter(run_number=instance.run_number, kind=SentKind.EVENT, consumed_by="")
    events = events.exclude(type__in=wanted) if wanted else events
    unread = events.count()
    if unread:
        types = list(events.order_by("type").values_list("type", flat=True).distinct()[: MOST_NAMED + 1])
        text = ngettext(
            "%(n)d event that nobody has read is dropped: %(types)s",
            "%(n)d events that nobody has read are dropped: %(types)s",
            unread,
        )
        plan.warnings.append(text % {"n": unread, "types": named(types)})
    ending, staying = joined(instance, steps, user, url)
    if ending:
        plan.changed.append(format_html(str(_("Child workflows that it waits for end: {}")), ending))
    if staying:
        plan.kept.append(format_html(str(_("Child workflows that go on by themselves: {}")), staying))
    given = given_ids(steps, user, url)
    if given:
        told = _(
            "Child workflows that have their ids from the program keep them: {}. The new run can start none under the same ids: unless "
            "the program puts the run number into them, delete these first."
        )
        plan.warnings.append(format_html(str(told), given))
    if instance.status in (Status.RUNNING, Status.WAITING_FOR_PAUSE):
        plan.changed.append(_("A step that is running now is not interrupted, but its result is dropped."))


def _open_things(instance: WorkflowInstance, steps: Any) -> list[Text]:
    """The waits and steps among ``steps`` that are cancelled."""
    changed: list[Text] = []
    waits = instance.pending_events.filter(status=PendingStatus.OPEN, step__in=steps.order_by().values("pk"))
    names = list(waits.order_by("id").values_list("name", flat=True)[: MOST_NAMED + 1])
    if names:
        changed.append(_("Cancelled waits: %(waits)s") % {"waits": named(names)})
    unfinished = steps.exclude(status__in=sorted(STEP_FINISHED)).exclude(kind__in=WAITS)
    text = named_steps(unfinished)
    if text:
        changed.append(_("Cancelled steps: %(steps)s") % {"steps": text})
    return changed


SAME_KEYS: Final = _("Idempotency keys stay the same, so that outside systems recognise a repeated call.")


def _results(instance: WorkflowInstance) -> list[Text]:
    finished = _steps(instance).filter(status=StepStatus.COMPLETE).count()
    if not finished:
        return [_("No step has finished yet.")]
    text = ngettext(
        "%(n)d finished step keeps its result and does not run again.",
        "%(n)d finished steps keep their results and do not run again.",
        finished,
    )
    return [text % {"n": finished}]


def _steps(instance: WorkflowInstance) -> Any:
    return instance.steps.filter(run_number=instance.run_number)


def _children(instance: WorkflowInstance) -> Any:
    return _steps(instance).filter(kind=StepKind.CHILD, status=StepStatus.PENDING)


def bodies(instance: WorkflowInstance) -> list[str]:
    """Labels of the steps whose bodies are known to run now, at most one more than are named; short ones are not known."""
    running = _steps(instance).filter(status=StepStatus.STARTED).order_by("seq").values_list("scope", "name", "count")
    return [step_label(*step) for step in running[: MOST_NAMED + 1]]


def timer_text(timer: TimerView) -> Text:
    """A timer in a sentence."""
    if timer.left is None:
        return _("%(what)s keeps its date.") % {"what": timer.label}
    return _("%(what)s has %(left)s left.") % {"what": timer.label or _("The whole instance"), "left": span(timer.left)}


def failed_steps(instance: WorkflowInstance) -> list[str]:
    """Labels of the steps whose failure ended the instance."""
    stored = instance.error_data
    if stored is None or isinstance(stored, Unreadable):
        return []
    steps = [step_label(scope, name, count) for scope, _kind, name, count in stored.get("steps") or []]
    return steps or ([stored["step"]] if stored.get("step") else [])


def named_steps(steps: Any) -> str:
    """The labels of the first steps of a queryset, in the order in which they started; '' where there are none."""
    rows = steps.order_by("seq").values_list("scope", "name", "count")[: MOST_NAMED + 1]
    return named(step_label(*row) for row in rows)


def named(names: Iterable[str]) -> str:
    """The first names of a list, and whether there are more."""
    found = list(names)
    shown = ", ".join(found[:MOST_NAMED])
    return f"{shown}, …" if len(found) > MOST_NAMED else shown
