"""Retry, resume and terminate by hand: what each does to an instance, said before it is done (design 9, 10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from durableflow.admin.family import ending_and_staying
from durableflow.core.fields import Unreadable
from durableflow.core.statuses import STEP_FINISHED, PendingStatus, Status, StepKind, StepStatus
from durableflow.models import WorkflowInstance
from durableflow.models.step import step_label

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise as Text

MOST_NAMED: Final = 10
WAITS: Final = (StepKind.WAIT_FOR_EVENT, StepKind.WAIT_FOR_APPROVAL)


class ReasonForm(forms.Form):
    """Why somebody does it; kept in the history."""

    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=1_000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=_("Optional. Kept in the history of the instance."),
    )


class TerminateForm(ReasonForm):
    """Also whether to undo first."""

    rollback = forms.BooleanField(
        label=_("First undo what it did"),
        required=False,
        help_text=_(
            "Runs the rollback handlers of the steps that have started, the latest first, then those of child workflows that end with "
            "it. Steps without one, and children that have ended, keep their effect."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb as staff see it. ``name`` is the method of the row."""

    name: str
    label: Text
    many: Text
    question: Text
    effect: Text
    done: Text
    danger: bool = False
    fits: Text = ""
    form: type[ReasonForm] = ReasonForm

    def apply(self, instance: WorkflowInstance, *, by: Any, **options: Any) -> None:
        """Do it; ``options``: what the form says. Raises PermissionDenied, InvalidTransition, DoesNotExist."""
        method: Callable[..., None] = getattr(instance, self.name)
        method(by=by, via="admin", **options)


VERBS: Final[dict[str, Verb]] = {
    verb.name: verb
    for verb in (
        Verb(
            name="retry",
            label=_("Retry"),
            many=_("Retry selected instances"),
            question=_("Run the failed step again?"),
            effect=_(
                "The step that failed runs again with a fresh number of retries. All finished steps keep their results."
            ),
            done=_("The failed step runs again."),
            fits=_(
                "Only a failed instance can be retried; one that was rolled back only if something could not be undone."
            ),
        ),
        Verb(
            name="resume",
            label=_("Resume"),
            many=_("Resume selected instances"),
            question=_("Let this instance go on?"),
            effect=_("The instance is taken up again where it stopped. All finished steps keep their results."),
            done=_("The instance goes on."),
            fits=_("Only a paused instance can be resumed."),
        ),
        Verb(
            name="terminate",
            label=_("Terminate"),
            many=_("Terminate selected instances"),
            question=_("End this instance for good?"),
            effect=_(
                "The instance ends now, or as soon as what it did is undone, and so do the child workflows that belong to it. Open waits "
                "are cancelled and no further step starts. This cannot be undone."
            ),
            done=_("The instance was terminated."),
            danger=True,
            fits=_("It has already ended, or is rolling back."),
            form=TerminateForm,
        ),
    )
}


def about(verb: Verb, instance: WorkflowInstance) -> Verb:
    """The verb in the words that fit this instance."""
    if verb.name == "retry" and isinstance(instance.rollback, dict):
        return replace(
            verb,
            question=_("Try again to undo what is left?"),
            effect=_(
                "Only the rollback handlers that failed run again, with a fresh number of retries. Then it ends as before."
            ),
            done=_("The rollback handlers that failed run again."),
        )
    return verb


def told(verb: Verb, instance: WorkflowInstance) -> Text:
    """What is said once it is done to ``instance``."""
    if verb.name == "terminate" and instance.status == Status.ROLLING_BACK:
        return _("What it did is being undone. It ends as terminated after that.")
    return verb.done


@dataclass
class Plan:
    """What a verb does to one instance: sentences for the confirmation page."""

    kept: list[Text] = field(default_factory=list)
    changed: list[Text] = field(default_factory=list)


def plan(verb: Verb, instance: WorkflowInstance, user: Any, url: Callable[..., str]) -> Plan:
    """Say to ``user`` what is kept and what happens to ``instance``; seven statements at most. ``url``: addresses of the admin."""
    steps = instance.steps.filter(run_number=instance.run_number)
    finished = steps.filter(status=StepStatus.COMPLETE).count()
    kept: list[Text] = [
        ngettext(
            "%(n)d finished step keeps its result and does not run again.",
            "%(n)d finished steps keep their results and do not run again.",
            finished,
        )
        % {"n": finished}
        if finished
        else _("No step has finished yet.")
    ]
    if verb.name == "terminate":
        kept.append(_("History, results so far and decisions stay readable."))
        ended, left = ending_and_staying(instance, user, url)
        if left:
            kept.append(format_html(str(_("Child workflows that go on: {}")), left))
        changed = _ended(instance, steps)
        if ended:
            changed.insert(0, format_html(str(_("Child workflows that end with it: {}")), ended))
        return Plan(kept, changed)
    kept.append(_("Idempotency keys stay the same, so that outside systems recognise a repeated call."))
    if verb.name == "retry" and isinstance(instance.rollback, dict):
        kept.append(_("What is undone stays undone; no step runs forward again."))
        return Plan(kept, [_("Rollback handlers run again: %(steps)s") % {"steps": named(instance.rollback["failed"])}])
    again = failed_steps(instance) if verb.name == "retry" else []
    if again:
        return Plan(kept, [_("Runs again: %(steps)s") % {"steps": named(again)}])
    return Plan(kept, [_("The instance goes on from its last finished step.")])


def _ended(instance: WorkflowInstance, steps: Any) -> list[Text]:
    changed: list[Text] = []
    waits = list(instance.pending_events.filter(status=PendingStatus.OPEN).values_list("name", flat=True))
    if waits:
        changed.append(_("Cancelled waits: %(waits)s") % {"waits": named(waits)})
    unfinished = steps.exclude(status__in=sorted(STEP_FINISHED)).exclude(kind__in=WAITS)
    unfinished = unfinished.order_by("seq").values_list("scope", "name", "count")
    labels = [step_label(*step) for step in unfinished[: MOST_NAMED + 1]]
    if labels:
        changed.append(_("Cancelled steps: %(steps)s") % {"steps": named(labels)})
    changed.append(_("A step that is running now is not interrupted, but its result is dropped."))
    return changed


def failed_steps(instance: WorkflowInstance) -> list[str]:
    """Labels of the steps whose failure ended the instance."""
    stored = instance.error_data
    if stored is None or isinstance(stored, Unreadable):
        return []
    steps = [step_label(scope, name, count) for scope, _kind, name, count in stored.get("steps") or []]
    return steps or ([stored["step"]] if stored.get("step") else [])


def named(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    shown = ", ".join(names[:MOST_NAMED])
    return f"{shown}, …" if len(names) > MOST_NAMED else shown
