"""What staff can do with one instance: names, questions and forms of the verbs (design 9, 10). ``plans`` says what each does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.utils.translation import gettext_lazy as _

from durableflow.core.statuses import Status
from durableflow.models import WorkflowInstance, removal
from durableflow.models.permissions import DELETE, OPERATE, possible

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise as Text


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


class DeleteForm(ReasonForm):
    """The history goes with the instance: the reason is kept elsewhere."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].help_text = _("Optional. Kept in the staff log and in the server's log.")


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb as staff see it. ``name`` is the method of the row; ``permission`` what it needs; ``once``: a second time would do
    it again where a worker was quick, so that it is only done to the run that the page was about."""

    name: str
    label: Text
    many: Text
    question: Text
    effect: Text
    done: Text
    danger: bool = False
    fits: Text = ""
    form: type[ReasonForm] = ReasonForm
    permission: str = OPERATE
    once: bool = False

    def apply(self, instance: WorkflowInstance, *, by: Any, **options: Any) -> None:
        """Do it; ``options``: what the form says. Raises PermissionDenied, InvalidTransition, DoesNotExist."""
        if self.name == "delete":
            removal.delete_instance(instance, by=by, via="admin", **options)
            return
        method: Callable[..., None] = getattr(instance, self.name)
        method(by=by, via="admin", **options)

    @property
    def ends(self) -> bool:
        """Whether there is no going on after it: its button is red."""
        return self.name in ("terminate", "delete")

    def fits_to(self, instance: WorkflowInstance) -> bool:
        """Whether the instance's state lets it do something now."""
        return self.name == "delete" or possible(self.name, instance)


AGAIN: Final = _(
    "Steps that run again get new idempotency keys: outside systems take their calls for new ones, so a repeated step may charge, book "
    "or send again."
)
"""What has to be known before anything runs with new keys."""

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
            name="pause",
            label=_("Pause"),
            many=_("Pause selected instances"),
            question=_("Let this instance stand still?"),
            effect=_("No further step starts until somebody resumes it. Its clock stands still meanwhile."),
            done=_("The instance is paused."),
            fits=_("Only an instance that is queued, running or waiting can be paused."),
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
            name="restart",
            label=_("Restart"),
            many=_("Restart selected instances"),
            question=_("Run this instance again from the beginning?"),
            effect=_(
                "A new run begins with the first step, with the same params. What the present run did is not undone."
            ),
            done=_("A new run has begun."),
            danger=True,
            fits=_("An instance that is queued already, or rolling back, cannot be restarted."),
            once=True,
        ),
        Verb(
            name="terminate",
            label=_("Terminate"),
            many=_("Terminate selected instances"),
            question=_("End this instance for good?"),
            effect=_(
                "The instance ends now, or as soon as what it did is undone, and so do the child workflows that belong to it. Open waits "
                "are cancelled and no further step starts. Afterwards it can only be restarted."
            ),
            done=_("The instance was terminated."),
            danger=True,
            fits=_("It has already ended, or is rolling back."),
            form=TerminateForm,
        ),
        Verb(
            name="delete",
            label=_("Delete"),
            many=_("Delete selected instances"),
            question=_("Delete this instance with all that is stored of it?"),
            effect=_(
                "The instance and its steps, waits, events and history are removed for good. What it did in other systems stays; no "
                "rollback handler runs. Its id is free again. This cannot be undone."
            ),
            done=_("The instance was deleted."),
            danger=True,
            form=DeleteForm,
            permission=DELETE,
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
    if verb.name == "resume" and instance.status == Status.WAITING_FOR_PAUSE:
        return replace(
            verb,
            question=_("Let this instance go on without a pause?"),
            effect=_("The request to pause is withdrawn. The instance goes on running."),
        )
    return verb


def told(verb: Verb, instance: WorkflowInstance) -> Text:
    """What is said once it is done to ``instance``."""
    if verb.name == "terminate" and instance.status == Status.ROLLING_BACK:
        return _("What it did is being undone. It ends as terminated after that.")
    if verb.name == "pause" and instance.status == Status.WAITING_FOR_PAUSE:
        return _("The instance is paused as soon as the step that runs now has ended.")
    return verb.done
