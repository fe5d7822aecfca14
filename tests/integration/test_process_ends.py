"""Processes that end themselves, on purpose and with a status, because code in them does not end (CON-12, OPS-08)."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.core.conf import get_settings
from durableflow.engine import attempts, replacement, shutdown, watcher
from durableflow.models import WorkflowInstance
from tests.support.concurrency import PATIENCE, child, eventually
from tests.support.engine import drained, history_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
in_the_body = threading.Event()


class Hanging(Workflow):
    """Its first attempt swallows its timeout."""

    class Meta:
        name = "hanging"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        return step.do("hang", self.hang, retries=Retries(limit=1, delay=0), timeout=event.params)

    def hang(self) -> str:
        if get_step_context().attempt > 1:
            return "done"
        sys.stdout.write("in the body\n")
        sys.stdout.flush()
        in_the_body.set()
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                time.sleep(PATIENCE)
            except BaseException:
                continue
        return "late"


def work(what: str) -> None:
    """A worker whose supervisor replaces it."""
    object.__setattr__(get_settings(), "SHUTDOWN_GRACE", PATIENCE)
    replacement.allow()
    attempts.STUCK_AFTER = 0.3
    stop = threading.Event()
    shutdown.heed(stop.is_set)
    if what == "stop":
        threading.Thread(target=stop_it, args=[stop]).start()
    drain(1)
    sys.stdout.write("the drain returned\n")


def stop_it(stop: threading.Event) -> None:
    """Once the body runs; the grace is over when the lease has told of the stop."""
    in_the_body.wait(PATIENCE)
    stop.set()
    ours = watcher.watcher()
    eventually(lambda: all(lease.told for lease in list(ours._held.values())))
    ours._stop_at = 0.0


def test_a_main_thread_that_swallows_its_timeout() -> None:
    """Design 6: past the deadline the watcher records the timeout itself, and the process is replaced."""
    instance = Hanging.create(0.2)
    with child("tests.integration.test_process_ends:work", "stuck") as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == replacement.STUCK == 70, (out, err)
    assert out == "in the body\n" and "main thread does not leave step 'hang-1'" in err
    instance.refresh_from_db()
    assert (instance.status, instance.interruptions) == (S.WAITING, 0)
    assert history_of(instance, "attempt_errored")[0]["error"]["type"] == "durableflow.StepTimeout"
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "done")


def test_a_body_that_outlasts_the_grace() -> None:
    """CON-12: the process ends with a status of its own; the instance is leased until its supervisor says that it is dead."""
    instance = Hanging.create(PATIENCE)
    with child("tests.integration.test_process_ends:work", "stop") as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == replacement.OUTLASTED == 71, (out, err)
    assert out == "in the body\n" and instance.label in err
    instance.refresh_from_db()
    assert instance.status == S.RUNNING and instance.owner is not None and instance.owner < 0, "it has told of the stop"
    WorkflowInstance.objects.update(wake_at=instance.created, suspect=True)
    eventually(lambda: drained(instance).status == S.COMPLETE)
    assert (instance.output, instance.steps.get().attempts) == ("done", 2)
    assert history_of(instance, "attempt_lost") == [{"attempt": 1}]
