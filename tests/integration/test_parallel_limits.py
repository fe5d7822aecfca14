"""How many branches run at once, and in which threads; what reaches them, and what they leave behind (design 7)."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.db import connection, connections
from django.utils import timezone, translation

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.engine.branches import branches
from durableflow.models import WorkflowInstance
from durableflow.testing import harness
from tests.integration.conftest import StoppedClock
from tests.support.concurrency import Gate, Task, eventually, together
from tests.support.engine import drained, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Counter:
    """How many bodies run at this moment, and the most that ever did."""

    def __init__(self) -> None:
        self.now = self.most = self.all = 0
        self._lock = threading.Lock()
        self.enough = threading.Event()

    def __call__(self, wanted: int = 0) -> str:
        """A body; it ends when ``wanted`` of them are here at once."""
        with self._lock:
            self.now += 1
            self.all += 1
            self.most = max(self.most, self.now)
            if self.now >= wanted:
                self.enough.set()
        self.enough.wait(20)
        time.sleep(0.001)
        with self._lock:
            self.now -= 1
        return threading.current_thread().name


@pytest.mark.parametrize("how", ["gather", "map"])
@pytest.mark.parametrize("concurrency", [1, 3, None])
def test_never_more_bodies_at_once_than_allowed(how: str, concurrency: int | None) -> None:
    """All that are allowed do run at once: they wait for each other. BRANCH_THREADS bounds the rest."""
    counter, want = Counter(), min(concurrency or 9, 9)

    class Many(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            if how == "map":
                return step.map("many", lambda _item: counter(want), range(20), concurrency=concurrency)
            made = [(lambda n=n: step.do(f"work {n}", counter, want)) for n in range(20)]
            return step.gather("many", *made, concurrency=concurrency)

    instance = drained(Many.create())
    assert (instance.status, len(instance.output)) == (S.COMPLETE, 20)
    assert (counter.most, counter.all) == (want, 20)


def test_a_branch_that_waits_gives_its_place_up(stopped_clock: StoppedClock) -> None:
    """Sleeps, waits and retry delays do not count: with one place, all branches come as far as they can."""
    log: list[str] = []

    class Places(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("places", *[self.branch(step, n) for n in range(3)], concurrency=1)

        def branch(self, step: Step, number: int) -> Any:
            def run() -> None:
                step.do("before", log.append, f"before {number}")
                if number == 0:
                    step.sleep("nap", 60)
                elif number == 1:
                    step.wait_for_event("news", type="news", timeout=None)
                step.do("after", log.append, f"after {number}")

            return run

    instance = drained(Places.create())
    assert log == ["before 0", "before 1", "before 2", "after 2"]
    stopped_clock.advance("1 minute")
    instance = drained(instance)
    instance.send_event("news")
    assert (drained(instance).status, log[4:]) == (S.COMPLETE, ["after 0", "after 1"])


class Nested(Workflow):
    """Three levels, with steps, sleeps, a map and retries at the bottom."""

    class Meta:
        name = "parallel-nested"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        return self.level(step, 3)

    def level(self, step: Step, depth: int) -> Any:
        if depth == 0:
            step.sleep("nap", 0)
            return step.map("items", str, [1, 2])
        found = step.gather(f"level {depth}", *[(lambda: self.level(step, depth - 1))] * 2)
        return [*found, step.do("after", str, depth)]


@pytest.mark.parametrize("threads", [0, 1, 8])
def test_nested_groups_end_with_any_number_of_threads(threads: int, settings: Any) -> None:
    """No group waits for a free thread: whoever gathers works on its own branches."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "BRANCH_THREADS": threads}
    instance = drained(Nested.create())
    bottom = ["1", "2"]
    one = [bottom, bottom, "1"]
    two = [one, one, "2"]
    assert (instance.status, instance.output) == (S.COMPLETE, [two, two, "3"])
    assert "level 3-1[2]/level 2-1[1]/level 1-1[2]/items-1/items-2" in dict(steps_of(instance))


def test_the_testing_kit_runs_branches_in_the_tests_thread() -> None:
    """Its transaction and connection are the test's own."""
    seen: set[str] = set()

    class Here(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("here", *[(lambda n=n: self.branch(step, n)) for n in range(3)])

        def branch(self, step: Step, number: int) -> int:
            step.do("work", lambda: seen.add(threading.current_thread().name))
            step.sleep("nap", 60 * number)
            if number == 1:
                step.wait_for_approval("ok", timeout=None)
            return number

    with harness() as kit:
        instance = kit.run(Here)
        kit.advance("1 minute")
        kit.approve(instance)
        kit.advance("1 minute")
        assert (instance.status, instance.output) == (S.COMPLETE, (0, 1, 2))
    assert seen == {threading.current_thread().name}


def test_more_groups_than_threads(settings: Any) -> None:
    """Several instances at once, in threads of their own, share two branch threads; all end, each with its own values."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "BRANCH_THREADS": 2}

    class Shares(Workflow[int, Any]):
        def run(self, event: WorkflowEvent[int], step: Step) -> Any:
            return step.map("items", lambda item: event.params * item, range(10))

    rows = [Shares.create(number) for number in range(8)]
    for task in together(*[lambda: drain(10)] * 4):
        task.result()
    eventually(lambda: WorkflowInstance.objects.filter(status=S.COMPLETE).count() == 8)
    for number, row in enumerate(rows):
        row.refresh_from_db()
        assert row.output == [number * item for item in range(10)]


place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")


def test_context_variables_reach_the_branches_and_do_not_come_back() -> None:
    meet = threading.Barrier(2)

    class Context(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            place.set("run")
            found = step.gather("both", lambda: self.branch(step, "a"), lambda: self.branch(step, "b"))
            return [*found, place.get()]

        def branch(self, step: Step, name: str) -> Any:
            before = place.get()
            place.set(name)
            return [before, step.do("inside", self.inside), place.get()]

        def inside(self) -> list[str]:
            meet.wait(20)
            return [place.get(), get_step_context().name]

    assert drained(Context.create()).output == [
        ["run", ["a", "inside"], "a"],
        ["run", ["b", "inside"], "b"],
        "run",
    ]


@pytest.mark.parametrize("nested", [False, True])
def test_every_branch_has_the_language_and_the_time_zone_of_run(nested: bool) -> None:
    """Django keeps them for a thread; which thread a branch is in must not tell. What one branch sets, no other one sees."""
    meet = threading.Barrier(2)

    class Locale(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            with translation.override("de"), timezone.override("Europe/Berlin"):
                if nested:
                    found = step.gather("outer", lambda: self.fork(step))[0]
                else:
                    found = self.fork(step)
                return [*found, self.seen()]

        def fork(self, step: Step) -> Any:
            return step.gather("both", lambda: self.branch(step, "fr"), lambda: self.branch(step, "es"))

        def branch(self, step: Step, language: str) -> Any:
            before = self.seen()
            inside = step.do("inside", self.inside)
            translation.activate(language)
            return [before, inside]

        def inside(self) -> list[str | None]:
            meet.wait(20)
            return self.seen()

        def seen(self) -> list[str | None]:
            return [translation.get_language(), timezone.get_current_timezone_name()]

    want = ["de", "Europe/Berlin"]
    assert drained(Locale.create()).output == [[want, want], [want, want], want]
    assert translation.get_language() == "en"


@pytest.fixture
def _fresh_threads() -> Iterator[None]:
    branches().end(20)
    yield


@pytest.mark.usefixtures("_fresh_threads")
def test_branch_threads_end_with_their_connections() -> None:
    """They keep none when nothing is executed."""
    meet = threading.Barrier(4)
    counts: list[int] = []

    class Meets(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.map("meet", self.body, range(4))

        def body(self, _item: int) -> None:
            WorkflowInstance.objects.count()
            meet.wait(20)
            if connection.vendor == "postgresql":
                counts.append(backends())
            meet.wait(20)

    before = backends() if connection.vendor == "postgresql" else 0
    assert drained(Meets.create()).status == S.COMPLETE
    names = lambda: [thread for thread in threading.enumerate() if thread.name == "durableflow-branch"]  # noqa: E731
    eventually(lambda: not names(), "the threads end")
    if connection.vendor == "postgresql":
        assert max(counts) >= before + 3
        eventually(lambda: backends() <= before + 1, "their connections are closed")  # the watcher may have one


def backends() -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        return int(cursor.fetchone()[0])


def test_ids_and_random_numbers_of_a_branch_are_the_same_at_each_pass(stopped_clock: StoppedClock) -> None:
    """Also within one execution, in which a branch that waited is run again from its beginning."""
    seen: dict[str, set[Any]] = {"a": set(), "b": set()}

    class Ids(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.gather("ids", lambda: self.branch(step, "a"), lambda: self.branch(step, "b"))

        def branch(self, step: Step, name: str) -> None:
            seen[name].add((step.uuid4(), step.uuid4(), step.random.random()))
            step.sleep("nap", 60)
            step.sleep("nap", 60)

    instance = drained(Ids.create())
    for _ in range(2):
        stopped_clock.advance("1 minute")
        instance = drained(instance)
    assert instance.status == S.COMPLETE
    (a,), (b,) = seen.values()
    assert len({a[0], a[1], b[0], b[1]}) == 4 and a[2] != b[2]


def test_replaying_is_told_for_each_scope(stopped_clock: StoppedClock, caplog: pytest.LogCaptureFixture) -> None:
    """A branch that goes on logs, while another one is still replayed; nothing is said twice."""
    caplog.set_level("INFO")

    class Logs(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.gather("logs", lambda: self.branch(step, "a", 60), lambda: self.branch(step, "b", 120))

        def branch(self, step: Step, name: str, seconds: int) -> None:
            step.logger.info("%s begins %s", name, step.is_replaying)
            step.do("work", str, 1)
            step.sleep("nap", seconds)
            step.logger.info("%s goes on", name)
            step.do("last", str, 1)

    instance = drained(Logs.create())
    for _ in range(2):
        stopped_clock.advance("1 minute")
        instance = drained(instance)
    said = [record.getMessage() for record in caplog.records if "begins" in record.msg or "goes on" in record.msg]
    assert instance.status == S.COMPLETE
    assert sorted(said) == ["a begins False", "a goes on", "b begins False", "b goes on"]


def test_the_limit_of_steps_counts_those_of_branches(settings: Any) -> None:
    """ENG-12 with a gather: the branches whose steps are beyond it fail, and the message names the limit. (A map is counted
    before its first item.)"""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LIMITS": {"steps": 5}}

    class Many(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("many", *[partial(step.do, "one", str, number) for number in range(7)])

    instance = drained(Many.create())
    assert instance.status == S.ERRORED and instance.error is not None
    assert instance.steps.filter(kind="do").count() == 5
    assert "2 of 7 branches" in instance.error["message"] and "the number of steps" in instance.error["traceback"]


def test_a_slow_retry_of_one_item_holds_up_nobody() -> None:
    """Items whose retry is due later are parked; the others use the places."""
    tries: list[int] = []
    done: list[int] = []

    class Flaky(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.map("items", self.item, range(6), concurrency=2, retries=Retries(limit=1, delay=3600))

        def item(self, item: int) -> int:
            if item in (0, 1) and get_step_context().attempt == 1:
                tries.append(item)
                raise OSError("later")
            done.append(item)
            return item

    instance = Flaky.create()
    Task(lambda: drain(1)).result()
    assert sorted(tries) == [0, 1] and sorted(done) == [2, 3, 4, 5]
    instance.refresh_from_db()
    assert instance.status == S.WAITING


def test_a_group_that_asks_late_is_helped_when_threads_are_free_again(settings: Any) -> None:
    """All branch threads are in long bodies of one instance, which has asked for more; another one asks meanwhile, and its own
    thread is in a long body too. It is not forgotten."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "BRANCH_THREADS": 1}
    greedy, own, second = Gate(), Gate(), threading.Event()

    class Greedy(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.map("greedy", self.body, range(3))

        def body(self, _item: int) -> None:
            if threading.current_thread().name.startswith("durableflow-branch"):
                greedy.stop_here()
            else:
                greedy.wait_until_reached()
                greedy._open.wait(20)

    class Late(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.gather("late", lambda: step.do("own", own.stop_here), lambda: step.do("second", second.set))

    Greedy.create()
    first = Task(lambda: drain(0))
    greedy.wait_until_reached()
    Late.create()
    other = Task(lambda: drain(0))
    own.wait_until_reached()
    greedy.open()
    eventually(second.is_set, "the other branch is run by the thread that has become free")
    assert not other.done
    own.open()
    first.result()
    other.result()
