"""Restart from a step, and the result of a step by hand: verbs that need a step of the present run (design 9, reference 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durableflow.admin.actions import VerbsMixin
from durableflow.admin.plans import plan_from_step, plan_of_completing
from durableflow.admin.values import ValueField
from durableflow.admin.verbs import VERBS, ReasonForm, Verb
from durableflow.core.exceptions import CodecError, LimitExceeded
from durableflow.core.scopenames import groups_of
from durableflow.core.statuses import StepKind
from durableflow.models import StepRecord, WorkflowInstance
from durableflow.models.completable import completable
from durableflow.models.permissions import OVERRIDE

MOST_OFFERED: Final = 500
NO_TARGETS: Final = (StepKind.NOTIFY, StepKind.PATCH)
STEP: Final = "step"
LONGEST_KEY: Final = 18


class StepForm(forms.Form):
    """Which step."""

    step = forms.ChoiceField(label=gettext_lazy("From this step on"))

    def __init__(self, steps: list[StepRecord], more: bool, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields[STEP]
        field.choices = [(step.pk, f"{step.seq}. {step.label} ({step.get_kind_display()})") for step in steps]
        if more:
            text = _("The first %(n)d steps. To later ones lead the links in the table of the steps.")
            field.help_text = text % {"n": MOST_OFFERED}


class OutputForm(ReasonForm):
    """The result of a step."""

    output = ValueField(
        label=gettext_lazy("Output"),
        help_text=gettext_lazy(
            'JSON: what the step would have returned, for example {"charge": "ch_1"}, "ch_1", 42 or null.'
        ),
    )
    field_order = ("output", "reason")


RESTART_FROM: Final = replace(
    VERBS["restart"],
    label=gettext_lazy("Restart from a step"),
    question=gettext_lazy("Run this instance again from a step?"),
    effect=gettext_lazy(
        "A new run keeps what started before the step; the step and all that started after it run again. What they did is not undone."
    ),
)
COMPLETE_STEP: Final = Verb(
    name="complete_step",
    label=gettext_lazy("Complete a step"),
    many="",
    question=gettext_lazy("Give this step a result by hand?"),
    effect=gettext_lazy(
        "The workflow goes on as if the step had returned what you enter. Nobody runs the step: if it was to pay, book or send "
        "something, see to it yourself that this is done, once."
    ),
    done=gettext_lazy("The step has its result; the instance goes on."),
    danger=True,
    fits=gettext_lazy(
        "A result can be given to a step that waits for its next attempt, or whose failure has ended the instance, while no worker runs it."
    ),
    form=OutputForm,
    permission=OVERRIDE,
    once=True,
)


class StepVerbsMixin(VerbsMixin):
    """The verbs of an instance admin that need a step."""

    def verb_urls(self) -> list[Any]:
        """Theirs, too."""
        wrap = self.admin_site.admin_view
        return [
            path("<path:object_id>/restart-from/", wrap(self.restart_from_view), name=self.url_name("restart_from")),
            path(
                "<path:object_id>/complete-step/<slug:step>/",
                wrap(self.complete_step_view),
                name=self.url_name("complete_step"),
            ),
            *super().verb_urls(),
        ]

    def restart_from_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """GET offers the steps of the run, with ``?step=`` it says what a restart from that one does; POST does it.

        404, 403, 409, 405 as every verb; 400: no such step, or one from which nothing can be restarted.
        """
        verb = RESTART_FROM
        instance = self.asked(request, object_id, verb)
        if isinstance(instance, HttpResponse):
            return instance
        if not verb.fits_to(instance):
            return self.refused_page(request, instance, verb, verb.fits)
        wanted = (request.POST if request.method == "POST" else request.GET).get(STEP)
        steps = targets(instance)
        offered = list(steps[: MOST_OFFERED + 1])
        members = join_members(instance, offered)
        first = [step for step in offered[:MOST_OFFERED] if step.pk not in members]
        chooser = StepForm(first, len(offered) > MOST_OFFERED, initial={STEP: wanted})
        if not first:
            return self.refused_page(
                request, instance, verb, _("No step has started in the present run: restart it as a whole.")
            )
        if wanted is None:
            status = 400 if request.method == "POST" else 200
            return self.verb_page(request, instance, verb, None, None, status, chooser=chooser)
        step = steps.filter(pk=int(wanted)).first() if is_key(wanted) else None
        if step is None:
            problem = _("That step is not one of the present run: it may have been restarted since.")
            return self.refused_page(request, instance, verb, problem, status=409)
        form = verb.form(request.POST if request.method == "POST" else None)
        if form.is_bound and form.is_valid():
            try:
                return self.perform(request, instance, verb, {**form.cleaned_data, "from_step": step})
            except ValueError as error:
                return self.refused_page(request, instance, verb, str(error), status=400)
        title = _("Restart %(instance)s from %(step)s") % {"instance": instance.label, "step": step.label}
        try:
            told = plan_from_step(instance, step, request.user, self.url)
        except ValueError as error:
            return self.refused_page(request, instance, verb, str(error), status=400)
        status = 400 if form.is_bound else 200
        hidden = ((STEP, str(step.pk)),)
        return self.verb_page(request, instance, verb, form, told, status, title, chooser=chooser, more_hidden=hidden)

    def complete_step_view(self, request: HttpRequest, object_id: str, step: str) -> HttpResponse:
        """GET asks for the step's result, POST stores it. 404, 403, 409, 405 as every verb; 400: the value cannot be stored."""
        verb = COMPLETE_STEP
        instance = self.asked(request, object_id, verb)
        if isinstance(instance, HttpResponse):
            return instance
        row = instance.steps.filter(pk=int(step)).defer("config", "raw_output").first() if is_key(step) else None
        if row is None:
            raise Http404(_("The instance has no such step."))
        if not verb.fits_to(instance) or not completable(instance).filter(pk=row.pk).exists():
            return self.refused_page(request, instance, verb, verb.fits)
        form = verb.form(request.POST if request.method == "POST" else None)
        if form.is_bound and form.is_valid():
            response = self._complete(request, instance, row, form)
            if response is not None:
                return response
        title = _("Complete step %(step)s of %(instance)s") % {"step": row.label, "instance": instance.label}
        told = plan_of_completing(instance, row)
        return self.verb_page(request, instance, verb, form, told, 400 if form.is_bound else 200, title)

    def _complete(
        self, request: HttpRequest, instance: WorkflowInstance, step: StepRecord, form: Any
    ) -> HttpResponse | None:
        """Do it; None where the value was refused, and the form says why."""
        said = {"step": step, **form.cleaned_data}
        try:
            return self.perform(request, instance, COMPLETE_STEP, said)
        except (CodecError, LimitExceeded) as error:
            form.add_error("output", str(error))
            return None
        except ValueError as error:
            return self.refused_page(request, instance, COMPLETE_STEP, str(error), status=409)


def targets(instance: WorkflowInstance) -> Any:
    """The steps of the present run from which it can be restarted, in the order in which they started."""
    rows = instance.steps.filter(run_number=instance.run_number).exclude(kind__in=NO_TARGETS)
    return rows.defer("config", "raw_output", "error_data", "rollback_error").order_by("seq")


def join_members(instance: WorkflowInstance, records: Sequence[StepRecord]) -> set[int]:
    """The keys of those that are children of a join, which begin again with the whole of it only. One query, where there may be
    some."""
    scoped = [record for record in records if record.kind == StepKind.CHILD and record.scope]
    if not scoped:
        return set()
    rows = instance.steps.filter(run_number=instance.run_number, kind=StepKind.CHILD, remaining__isnull=False)
    joins = set(rows.values_list("scope", "name", "count"))
    return {record.pk for record in scoped if next(iter(groups_of(record.scope)), None) in joins}


def is_key(text: str) -> bool:
    """Whether a text from outside can be a primary key."""
    return text.isdecimal() and text.isascii() and len(text) <= LONGEST_KEY
