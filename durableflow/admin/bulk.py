"""The verbs on many instances: a page that counts what will be done, then slices of a few seconds (design 10, case SEC-13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION
from django.core.exceptions import PermissionDenied, TooManyFieldsSent
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.csrf import csrf_exempt

from durableflow import operations
from durableflow.admin.actions import log_each, log_text
from durableflow.admin.family import have_given_ids, number_told
from durableflow.admin.jobs import Job, StaleJob
from durableflow.admin.step_verbs import StepVerbsMixin
from durableflow.admin.verbs import AGAIN, VERBS, Verb
from durableflow.core.statuses import Status
from durableflow.models import WorkflowInstance
from durableflow.models.permissions import holds

MOST_AT_ONCE: Final = 50_000
"""More would make the form too large that carries them."""
MOST_LISTED: Final = 20
CHUNK: Final = 100
SLICE: Final = 3.0
"""Seconds after which a request ends and the next one goes on."""
RUN_AGAIN: Final = "restarted"
UNDONE: Final = "undone"
UNREAD: Final = gettext_lazy("Events that nobody has read are dropped.")
GIVEN: Final = gettext_lazy(
    "Some have child workflows with ids from the program. Those keep them: where the program does not put the run number into such an id, "
    "the new run cannot start its child until the old one is deleted."
)

DO: Final[dict[str, Callable[..., operations.BulkReport]]] = {
    "retry": operations.bulk_retry,
    "pause": operations.bulk_pause,
    "resume": operations.bulk_resume,
    "restart": operations.bulk_restart,
    "terminate": operations.bulk_terminate,
    "delete": operations.bulk_delete,
}


class BulkMixin(StepVerbsMixin):
    """An action of the list for each verb."""

    bulk_template = "admin/durableflow/workflowinstance/bulk.html"
    actions = (
        "retry_selected",
        "pause_selected",
        "resume_selected",
        "restart_selected",
        "terminate_selected",
        "delete_selected",
    )

    @admin.action(description=VERBS["retry"].many, permissions=["operate"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Retry every selected instance that failed."""
        return self.many(request, queryset, VERBS["retry"])

    @admin.action(description=VERBS["pause"].many, permissions=["operate"])
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Pause every selected instance that has not ended."""
        return self.many(request, queryset, VERBS["pause"])

    @admin.action(description=VERBS["resume"].many, permissions=["operate"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Resume every selected instance that is paused."""
        return self.many(request, queryset, VERBS["resume"])

    @admin.action(description=VERBS["restart"].many, permissions=["operate"])
    def restart_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Restart every selected instance."""
        return self.many(request, queryset, VERBS["restart"])

    @admin.action(description=VERBS["terminate"].many, permissions=["operate"])
    def terminate_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Terminate every selected instance that has not ended."""
        return self.many(request, queryset, VERBS["terminate"])

    @admin.action(description=VERBS["delete"].many, permissions=["delete"])
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Delete every selected instance, in place of Django's action of this name."""
        return self.many(request, queryset, VERBS["delete"])

    # The list ----------------------------------------------------------------------------------------------------

    def bulk_urls(self) -> list[Any]:
        """Where the form of a verb over many goes, and the list itself, which must tell of too many ticked boxes."""
        return [
            path("bulk/", self.admin_site.admin_view(self.bulk_view), name=self.url_name("bulk")),
            path("", self._checked_list, name=self.url_name("changelist")),
        ]

    @property
    def _checked_list(self) -> Callable[..., HttpResponse]:
        inner: Callable[..., HttpResponse] = self.admin_site.admin_view(self.changelist_view)

        # Reading a form with too many fields fails, and the token is read before any view: only a view that does not ask for one
        # gets to say why. ``admin_view`` asks for it all the same.
        @csrf_exempt
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            try:
                request.POST  # noqa: B018 - it is parsed when it is looked at
            except TooManyFieldsSent:
                view: Callable[..., HttpResponse] = self.admin_site.admin_view(csrf_exempt(self.too_many_view))
                return view(request)
            return inner(request, *args, **kwargs)

        return checked

    def too_many_view(self, request: HttpRequest) -> HttpResponse:
        """More boxes were ticked than Django reads (``DATA_UPLOAD_MAX_NUMBER_FIELDS``): nothing was done."""
        problem = _(
            "You ticked more boxes than this site accepts in one form. Tick fewer, or narrow the list with search and filters and "
            'choose "Select all" below it: that has no such bound.'
        )
        return self._problem_page(request, problem, 400)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The list. A forged action is refused like a forged URL (case SEC-02)."""
        if request.method == "POST" and request.POST.get("action") in self.actions:
            verb = VERBS[request.POST["action"].removesuffix("_selected")]
            self._require(request, verb)
        return super().changelist_view(request, extra_context)

    def _require(self, request: HttpRequest, verb: Verb) -> None:
        if not self.has_view_permission(request) or not holds(request.user, verb.permission):
            raise PermissionDenied

    # Many --------------------------------------------------------------------------------------------------------

    def many(self, request: HttpRequest, queryset: QuerySet[Any], verb: Verb) -> HttpResponse | None:
        """The page that counts what will be done; nothing is done yet. Which rows it is about is settled here."""
        rows = list(queryset.order_by("id").values_list("pk", "run_number", "status")[: MOST_AT_ONCE + 1])
        if len(rows) > MOST_AT_ONCE:
            text = _("Select at most %(n)s instances at a time, for example with a filter.")
            self.message_user(request, text % {"n": f"{MOST_AT_ONCE:,}"}, messages.ERROR)
            return None
        job = Job(verb.name, str(request.user.pk), back=request.GET.urlencode())
        undone = self._undone(queryset, verb)
        counted: Counter[tuple[str, bool]] = Counter()
        fitting: list[tuple[int, int]] = []
        for pk, run, status in rows:
            able = fits(verb, status, undone.get(pk))
            counted[status, able] += 1
            if able:
                fitting.append((pk, run))
            elif len(job.others) < MOST_LISTED:
                job.others.append(pk)
        job.choose(fitting)
        job.told = [(status, number, able) for (status, able), number in sorted(counted.items())]
        job.skipped.update({why_not(verb, status): number for status, number, able in job.told if not able})
        return self._confirm_page(request, job, verb, verb.form())

    def _undone(self, queryset: QuerySet[Any], verb: Verb) -> dict[int, Any]:
        """Of the chosen rows those that were rolled back, and what came of it: on that it depends whether they can be retried."""
        if verb.name != "retry":
            return {}
        rows = queryset.order_by("id").filter(status__in=(Status.ERRORED, Status.TERMINATED), rollback__isnull=False)
        return dict(rows.values_list("pk", "rollback")[:MOST_AT_ONCE].iterator())

    def bulk_view(self, request: HttpRequest) -> HttpResponse:
        """Do the next slice; POST only. 403: no right; 400: the form is too old or was changed, or its reason is too long."""
        if request.method != "POST":
            # Who had to log in again comes here by a link: browsers show a page of their own where there is none.
            problem = _("The form did not come along. What was done stays done; select the rest in the list once more.")
            page = self._problem_page(request, problem, 405, _("Out of date")).render()
            return HttpResponseNotAllowed(["POST"], content=page.content)
        try:
            job = Job.read(request.POST.get("job", ""), str(request.user.pk))
        except StaleJob:
            problem = _("This form is out of date. What was done stays done; select the rest in the list once more.")
            return self._problem_page(request, problem, 400, _("Out of date"))
        verb = VERBS[job.verb]
        self._require(request, verb)
        if job.options is None:
            form = verb.form(request.POST)
            if not form.is_valid():
                return self._confirm_page(request, job, verb, form, status=400)
            job.options = form.cleaned_data
        end = monotonic() + SLICE
        while job.left:
            self._chunk(request, job, verb)
            if monotonic() >= end:
                break
        if job.left:
            return self._progress_page(request, job, verb)
        text, level = summary(job, verb)
        self.message_user(request, text, level)
        return HttpResponseRedirect(f"{self.url('changelist')}?{job.back}" if job.back else self.url("changelist"))

    def _chunk(self, request: HttpRequest, job: Job, verb: Verb) -> None:
        """Do some rows, and leave a trace of each in Django's log."""
        run, keys = job.take(CHUNK // 4 if verb.name == "delete" else CHUNK)  # with all that goes with them
        options = dict(job.options or {})
        visible = self.get_queryset(request).filter(pk__in=keys)
        runs = dict(visible.values_list("pk", "run_number"))
        report = DO[verb.name](visible.filter(run_number=run), by=request.user, via="admin", **options)
        met = {row.pk for row in report.done} | {row.pk for row, _why in report.skipped}
        for key in keys:
            if key not in met:
                job.skipped[RUN_AGAIN if runs.get(key, run) != run else "not_found"] += 1
        for _row, why in report.skipped:
            # Of a restart whose status fits the run did not.
            again = verb.name == "restart" and why.status and fits(verb, why.status)
            job.skipped[RUN_AGAIN if again else why_not(verb, why.status) if why.status else why.code] += 1
        job.done += len(report.done)
        if verb.name == "terminate":
            job.undoing += sum(row.status == Status.ROLLING_BACK for row in report.done)
        if report.done:
            flag = DELETION if verb.name == "delete" else CHANGE
            log_each(request, report.done, flag, log_text(verb, options.get("reason", "")))

    # Pages -------------------------------------------------------------------------------------------------------

    def _confirm_page(
        self, request: HttpRequest, job: Job, verb: Verb, form: Any, status: int = 200
    ) -> TemplateResponse:
        number = job.number_left
        title = ngettext("%(verb)s %(n)s instance", "%(verb)s %(n)s instances", number)
        keys = [key for some in job.left.values() for key in some]
        context = self.page_context(
            request,
            title % {"verb": verb.label, "n": f"{number:,}"},
            verb=verb,
            form=form,
            number=number,
            told=[(Status(name).label, f"{count:,}", able) for name, count, able in job.told],
            fitting=named_rows(job.first(MOST_LISTED)),
            fitting_left=max(0, number - MOST_LISTED),
            others=named_rows(job.others),
            others_left=max(0, job.skipped.total() - MOST_LISTED),
            warnings=[AGAIN, UNREAD, *([GIVEN] if have_given_ids(keys) else [])] if verb.name == "restart" else (),
            children=number_told(keys) if verb.name in ("terminate", "delete") and keys else (),
            job=job.token(),
            bulk_url=self.url("bulk"),
        )
        return TemplateResponse(request, self.bulk_template, context, status=status)

    def _progress_page(self, request: HttpRequest, job: Job, verb: Verb) -> TemplateResponse:
        total = job.looked_at + job.number_left
        context = self.page_context(
            request,
            _("%(verb)s: %(n)s of %(total)s") % {"verb": verb.label, "n": f"{job.looked_at:,}", "total": f"{total:,}"},
            verb=verb,
            going=True,
            looked_at=job.looked_at,
            total=total,
            summary=summary(job, verb)[0],
            job=job.token(),
            bulk_url=self.url("bulk"),
        )
        return TemplateResponse(request, self.bulk_template, context)

    def _problem_page(self, request: HttpRequest, problem: str, status: int, title: str = "") -> TemplateResponse:
        context = self.page_context(request, title or _("Nothing was done"), problem=problem)
        return TemplateResponse(request, self.bulk_template, context, status=status)


def named_rows(keys: list[int]) -> list[WorkflowInstance]:
    """Rows as a page names them."""
    return list(WorkflowInstance.objects.light().filter(pk__in=keys).order_by("id"))


def fits(verb: Verb, status: str, rollback: Any = None) -> bool:
    """Whether an instance in ``status`` can have the verb; ``rollback``: what came of its rollback."""
    return verb.fits_to(WorkflowInstance(status=status, rollback=rollback))


def why_not(verb: Verb, status: str) -> str:
    """Why an instance in ``status`` was left out: for that, or, where that fits, for what came of its rollback."""
    return UNDONE if verb.name == "retry" and fits(verb, status) else f"status {status}"


def summary(job: Job, verb: Verb) -> tuple[str, int]:
    """What was done so far and what was left out, why, in a sentence; and how serious that is."""
    text = _("%(verb)s: %(done)s done") % {"verb": verb.label, "done": f"{job.done:,}"}
    if job.undoing:
        text += _(" (%(n)s of them once what they did is undone)") % {"n": f"{job.undoing:,}"}
    if job.skipped:
        why = "; ".join(f"{cause(code)}: {number:,}" for code, number in sorted(job.skipped.items()))
        text += _(", %(n)s skipped (%(why)s)") % {"n": f"{job.skipped.total():,}", "why": why}
    level = messages.WARNING if job.skipped else messages.SUCCESS
    return text, level if job.done else messages.ERROR


def cause(code: str) -> str:
    """Why rows were left out, in a few words."""
    if code.startswith("status "):
        return _("status %(status)s") % {"status": Status(code.removeprefix("status ")).label}
    told = {
        RUN_AGAIN: _("restarted meanwhile"),
        UNDONE: _("rolled back, nothing is left to retry"),
        "not_found": _("deleted meanwhile"),
        "permission_denied": _("not permitted"),
        "protected": _("other rows need them"),
        "locked": _("somebody else works on them"),
    }
    return told.get(code, code)
