"""Giving a step its result by hand (design 9, ``complete_step``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import connections
from django.db.models import BinaryField, Func, IntegerField, Sum
from django.db.models.functions import Cast, Length

from durableflow.core import clock, codec, dispatch
from durableflow.core.aio import async_twin
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import InvalidTransition, LimitExceeded
from durableflow.core.statuses import Status, StepKind, StepStatus, Via
from durableflow.models import undoing
from durableflow.models.audit import UNDONE, record, verb
from durableflow.models.completable import completable
from durableflow.models.instance_fields import InstanceFields, Who
from durableflow.models.permissions import OVERRIDE
from durableflow.models.repair import queue_again, reset_failed

if TYPE_CHECKING:
    from durableflow.models.step import StepRecord


class CompletionVerbs(InstanceFields):
    """``complete_step``."""

    class Meta:
        abstract = True

    def complete_step(
        self, step: StepRecord, output: Any, *, by: Who = None, reason: str = "", via: str = Via.CODE
    ) -> None:
        """Give a step its result in place of its body, which does not run any more: the run goes on as if the body had returned
        ``output`` (design 9).

        ``step``: a ``do`` of the present run, also an item of a map, that waits for its retry, was interrupted, or has ended the
        instance with its failure. A failed instance is queued again as by ``retry()``: what else has failed with the step runs
        again. One that waits is due at once, a paused one stays paused. A sensitive step stays sensitive. Needs the permission
        ``override_workflowinstance``.

        One transaction under the row's lock. Raises PermissionDenied; InvalidTransition while somebody executes the instance, and
        for a step that is finished, of an earlier run, or has failed with an error that the workflow caught; ValueError for a
        step of another kind or instance; CodecError and LimitExceeded for an output that cannot be stored. Then nothing is
        changed.
        """
        with verb(self, "complete_step", by, OVERRIDE) as row:
            found = _checked(row, step)
            _check_output(row, found, output)
            failed = row.status == Status.ERRORED
            others = [label for label in reset_failed(row) if label != found.label] if failed else []
            _complete(row, found, output)
            data = {"verb": "complete_step"}
            record(row, "step_completed", by=by, via=via, reason=reason, step=found.label, kind=found.kind, data=data)
            if failed:
                queue_again(row)
                record(row, "workflow_queued", by=by, via=via, reason=reason, data={**data, "steps": others})
            else:
                row.owner = None  # a lost attempt that was still to be charged was this step's
                if row.status == Status.WAITING and not row.hold:
                    row.wake_at = clock.expression(connections[row._state.db].vendor)
                row.save(update_fields=["owner", "wake_at"])
            dispatch.wake(row._state.db)

    acomplete_step = async_twin(complete_step)


def _checked(row: Any, step: StepRecord) -> StepRecord:
    """The record as it is under the row's lock, if it can be completed."""
    if not isinstance(step, row.steps.model):
        raise TypeError(f"step must be a StepRecord, not {step!r}: models.restart.find_step(instance, name) gives one.")
    found: StepRecord | None = row.steps.filter(pk=step.pk).first()
    if found is None:
        raise ValueError(f"Step {step.label!r} is not a step of {row.label}.")
    if found.kind != StepKind.DO:
        raise ValueError(
            f"{found.kind} {found.label!r} of {row.label} has no result that a person can give: only a do has."
        )
    cause = _obstacle(row, found)
    if cause:
        status = Status(row.status).value
        raise InvalidTransition(
            f"complete_step is not possible: step {found.label!r} of {row.label} {cause}.", status=status
        )
    return found


def _obstacle(row: Any, step: StepRecord) -> str:
    """Why the step cannot be completed, '' if it can."""
    if step.run_number != row.run_number:
        return f"belongs to run {step.run_number}, and the present run is {row.run_number}"
    if undoing.underway(row):
        return f"belongs to a run that is being undone: {UNDONE}"
    if step.status == StepStatus.COMPLETE:
        return "is complete already"
    if not completable(row).filter(pk=step.pk).exists():
        return f"is {step.status}, and that did not end the instance: the workflow has gone on with it"
    return ""


def _check_output(row: Any, step: StepRecord, output: Any) -> None:
    """Raise CodecError, or LimitExceeded where the output or the sum of the run's outputs is too large (case ENG-12)."""
    limits = get_settings().LIMITS
    text = codec.dumps(output, what=f"output of step {step.label!r} of {row.label}", max_bytes=limits.output)
    steps = row.steps.filter(run_number=row.run_number, raw_output__isnull=False)
    total = (steps.aggregate(total=Sum(Octets("raw_output")))["total"] or 0) + len(text.encode())
    if total > limits.bytes:
        raise LimitExceeded.of("the sum of all outputs", total, limits.bytes, unit="bytes", instance=row.label)


class Octets(Func):
    """Bytes of a text in UTF-8."""

    function = "OCTET_LENGTH"
    output_field = IntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """SQLite counts the bytes of a blob."""
        return Length(Cast(self.source_expressions[0], BinaryField())).as_sql(compiler, connection, **context)


def _complete(row: Any, step: StepRecord, output: Any) -> None:
    row.steps.filter(pk=step.pk).update(
        status=StepStatus.COMPLETE,
        raw_output=output,
        error_data=None,
        finished=clock.expression(connections[row._state.db].vendor),
        wake_at=None,
        token=None,
    )


__all__: Final = ["CompletionVerbs"]
