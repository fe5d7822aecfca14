"""All errors of durableflow. Everything derives from `DurableflowError`.

Rights are checked with `django.core.exceptions.PermissionDenied`, missing rows with the model's `DoesNotExist`.

Errors that a workflow meets are stored and rebuilt without calling `__init__` (design 6, `core.failures`): so
`args` holds the whole message, and everything else is a plain, storable attribute that has a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Self


class DurableflowError(Exception):
    """Base of all errors of durableflow. Never raised itself: catch it to catch them all."""


class NonRetryableError(DurableflowError):
    """Raise it (or a subclass) in a step's body to fail the step at once, whatever retries it has left.

    The type decides, never the text (case RET-06). To give up on somebody else's exception class use
    `Retries(give_up_on=...)`.
    """


class StepFailed(DurableflowError):
    """Stands for an error of a step whose own class cannot be rebuilt at replay.

    Raised by the step's call when the class is not found in the imported modules (it was renamed, or is local to a
    function), or is no `Exception`. `type` names the original class, `message` is its text, `traceback` its
    traceback as text. Define the class at the top level of a module that the workflow's module imports, to get the
    class itself back.
    """

    def __init__(self, message: str = "", *, type: str = "", traceback: str = "") -> None:
        super().__init__(f"{type}: {message}" if type and message else type or message)
        self.type = type
        self.message = message
        self.traceback = traceback


class StepTimeout(DurableflowError, TimeoutError):
    """One attempt of a step's body took longer than the step's `timeout`.

    It is retried like any other error; after the last attempt the step's call raises it. Raise the timeout, or
    split the step.
    """


class EventTimeout(DurableflowError, TimeoutError):
    """`wait_for_event` or `wait_for_approval` got no answer before its deadline. Catch it in `run` to go on
    without one."""


class WorkflowTimeout(DurableflowError, TimeoutError):
    """The instance did not finish within `Meta.max_duration`, or a child within the `timeout` of `run_workflow`.

    The first ends the instance and is not raised into `run`; `retry()` gives it the whole duration again. The second is
    raised by the parent's call, and the child is terminated.
    """


class WorkflowFailed(DurableflowError):
    """`result()` was asked of an instance that ended without success, or a child that the parent waits for did.

    `workflow` and `instance_id` name the instance; `status` is how it ended (`errored`, `terminated`, and `deleted` for a
    child whose row is no more); `error` is its stored error (`{"type", "message", "traceback", "step"}`, empty where there
    is none). In a parent `__cause__` is the child's error itself, as its own `run` raised it.
    """

    def __init__(
        self,
        message: str = "",
        *,
        workflow: str = "",
        instance_id: str = "",
        status: str = "",
        error: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.workflow = workflow
        self.instance_id = instance_id
        self.status = status
        self.error: dict[str, Any] = dict(error or {})


class WorkerLost(DurableflowError):
    """The process that ran a step's body died, or was cut off, in the last attempt that the step had.

    Nobody knows how far the body came: look at the outside system (by the step's idempotency key) before you `retry()`.
    """


class NonDeterminismError(DurableflowError):
    """A replay made other durable calls than the execution before it: `run` depends on something that is not recorded.

    The instance is blocked, nothing is lost. Put the changing value (time, random numbers, settings, queries) into
    a step, or branch a changed program with `step.patched()`; then `resume()` the instance.
    """


class SuspensionSwallowed(DurableflowError):
    """`run` went on after a durable call had suspended it: a bare `except:` or `except BaseException` swallowed
    the suspension.

    The instance is blocked. Catch `Exception` instead, or raise again; then `resume()` the instance.
    """


class InstanceAlreadyExists(DurableflowError):
    """`create` was given an `instance_id` that the workflow already has. Use `get_or_create` where that is expected.

    `workflow` and `instance_id` name the existing instance. The caller's transaction stays usable.
    """

    def __init__(self, message: str = "", *, workflow: str = "", instance_id: str = "") -> None:
        super().__init__(message or f'The workflow "{workflow}" already has an instance "{instance_id}".')
        self.workflow = workflow
        self.instance_id = instance_id


class InvalidTransition(DurableflowError):
    """The verb does not fit the instance's status (also: it was already done). Nothing was changed.

    `status` is the status it met, `code` the machine-readable reason (REST: 409).
    """

    code: str = "invalid_transition"

    def __init__(self, message: str = "", *, status: str = "") -> None:
        super().__init__(message)
        self.status = status


class StaleDecision(InvalidTransition):
    """A decision came for a wait that is no longer open. Nothing was changed.

    `code` tells why: `already_decided` (then `by` and `at` say who and when), `timed_out`, `cancelled`, or `stale`
    (it was made for an earlier wait or run).
    """

    CODES: ClassVar[frozenset[str]] = frozenset({"already_decided", "timed_out", "cancelled", "stale"})

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "stale",
        status: str = "",
        by: str | None = None,
        at: datetime | None = None,
    ) -> None:
        if code not in self.CODES:
            raise ValueError(f"code must be one of {', '.join(sorted(self.CODES))}, not {code!r}.")
        super().__init__(message, status=status)
        self.code = code
        self.by = by
        self.at = at


class IdempotencyConflict(DurableflowError):
    """A `dedupe_key` or `Idempotency-Key` was used again with other content. Nothing was stored.

    Send the same content again, or take a new key.
    """


class CodecError(NonRetryableError):
    """A value cannot be stored, or a stored text cannot be read. The message has the path to the offender and its type.

    Not retried: repeating the side effect does not make its result storable (case SER-02). Return plain data
    instead: a key in place of a model, a list in place of a queryset, `dataclasses.asdict(x)` in place of a dataclass.
    """


class LimitExceeded(NonRetryableError):
    """Something is larger, or there is more of it, than a limit allows. Not retried, nothing stored (case SER-06).

    `what` names it, `size` and `limit` are in `unit`s. Store a reference (a key, a file name) in place of large
    data; the limits are the setting `DURABLEFLOW["LIMITS"]`.
    """

    def __init__(
        self, message: str = "", *, what: str = "", size: int = 0, limit: int = 0, unit: str = "bytes"
    ) -> None:
        super().__init__(message)
        self.what = what
        self.size = size
        self.limit = limit
        self.unit = unit

    @classmethod
    def of(cls, what: str, size: int, limit: int, *, unit: str = "bytes", hint: str = "", instance: str = "") -> Self:
        """The error for `what` of `size` where at most `limit` is allowed, with a message that says all three.

        `instance`: the label of the one that it is about; ids are case-sensitive, so it begins the message as it is.
        """
        name = f"{instance}: {what}" if instance else what[:1].upper() + what[1:]
        message = f"{name} is too large: {size:,} {unit}, at most {limit:,} {unit} are allowed."
        message = f"{message} {hint}" if hint else message
        return cls(message, what=what, size=size, limit=limit, unit=unit)


# Not exported: authors never need to name these.


class Terminated(DurableflowError):
    """What a rollback handler gets as ``undo.error`` where no error ended the run: somebody called
    ``terminate(rollback=True)``."""


class HandlerMissing(DurableflowError):
    """A step is to be undone, and today's code gives no handler for it. Put the handler back into its call
    (``rollback=``) and ``retry()`` the instance."""


class InvalidDurableCall(NonRetryableError):
    """A durable call was made where none is possible: inside a step's body, off the thread that the engine gave to
    its scope, or in an open `atomic()` block (design 6). Move the call to `run`; put `atomic()` inside a step's
    body."""


class InvalidConfig(NonRetryableError, ValueError):
    """A step got an option that is no good (case RET-09). The message names step and field; no body ran. Correct
    the call."""

    def __init__(self, message: str = "", *, step: str = "", field: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.field = field
