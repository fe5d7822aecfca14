"""Values through the engine: what run sees the first time is what it sees at every replay."""

from __future__ import annotations

import copy
import datetime as dt
import io
import math
from collections import OrderedDict
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import Group
from django.utils.translation import gettext_lazy

from durableflow import CodecError, Step, StepFailed, Workflow, WorkflowEvent
from durableflow.models import SentEvent, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, history_of, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Right(Flag):
    READ = 1
    WRITE = 2


class Declined(Exception):
    """An error that cannot be made with the one text it shows."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code, self.reason = code, reason


BERLIN = ZoneInfo("Europe/Berlin")


MIXED: dict[Any, Any] = {
    "t": (1, 2),
    1: "a",
    "d": Decimal("1.10"),
    "w": dt.datetime(2026, 10, 25, 2, 30, 0, 123456, tzinfo=BERLIN, fold=1),
    "u": UUID("12345678123456781234567812345678"),
    "s": {1, 2},
    "f": frozenset({"x"}),
    "b": b"\x00\xff",
    "n": [None, True, 0, 0.0, -0.0, 1e16, 10**30, "", {}],
    "e": [Colour.RED, Level.LOW, Right.READ | Right.WRITE],
    "$df": {"$df": "not a tag"},
    (1, None): {"nested": ((), [set()])},
}


def typed(value: Any) -> Any:
    """The value with all its types, for comparing."""
    if isinstance(value, dict):
        return ["dict", [(typed(key), typed(item)) for key, item in value.items()]]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [typed(item) for item in value]]
    if isinstance(value, set | frozenset):
        return [type(value).__name__, sorted(repr(typed(item)) for item in value)]
    zone = getattr(value, "tzinfo", None)
    return [type(value).__name__, repr(value), str(zone), getattr(value, "fold", 0)]


def test_types_are_equal_before_and_after(stopped_clock: StoppedClock) -> None:
    """SER-01: round-tripped at once; changing the returned value does not change what is stored."""
    seen: list[Any] = []

    class Mixed(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            value = step.do("mixed", lambda: MIXED)
            seen.append(typed(value))
            value["n"].append("changed by run")
            value["added"] = 1
            step.sleep("nap", 60)
            return step.do("again", lambda: MIXED)

    instance = drained(Mixed.create())
    stopped_clock.advance(60)
    assert drained(instance).status == S.COMPLETE
    assert seen[0] == seen[1] == typed(MIXED)
    assert typed(instance.output) == typed(MIXED)
    assert typed(instance.steps.get(name="mixed").output) == typed(MIXED)


def test_what_becomes_its_base_does_so_at_once(stopped_clock: StoppedClock) -> None:
    """SER-01, design 12: subclasses and lazy text are the plain type the first time too."""
    seen: list[Any] = []

    class Text(str):
        pass

    values = [Text("a"), OrderedDict(x=1), gettext_lazy("Yes"), bytearray(b"x"), memoryview(b"y"), True]

    class Bases(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            seen.append([type(value) for value in step.do("bases", lambda: values)])
            step.sleep("nap", 60)

    instance = drained(Bases.create())
    stopped_clock.advance(60)
    drained(instance)
    assert seen == [[str, dict, str, bytes, bytes, bool]] * 2


def test_result_is_not_shared_with_the_body(stopped_clock: StoppedClock) -> None:
    """SER-01: what the body still holds is another object."""
    held: list[int] = [1]

    class Shared(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            first = step.do("held", lambda: held)
            held.append(2)
            return first

    assert drained(Shared.create()).output == [1]


def test_params_are_read_only_and_equal_at_each_replay(stopped_clock: StoppedClock) -> None:
    """SER-01, design 5, 12: refuse mutation, serialisable, copy.deepcopy gives plain copies, usable as results."""
    seen: list[Any] = []

    class Params(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            params = event.params
            for change in (
                lambda: params.update(a=1),
                lambda: params["list"].append(1),
                lambda: params["list"].sort(),
                lambda: params.__setitem__("a", 1),
                lambda: params["deep"][0].pop("x"),
                lambda: params.setdefault("new", 1),
            ):
                with pytest.raises(TypeError, match="deepcopy"):
                    change()
            own = copy.deepcopy(params)
            own["list"].append("mine")
            seen.append((typed(dict(params)["list"]), type(own), type(own["list"]), type(own["deep"][0])))
            step.sleep("nap", 60)
            return step.do("same", lambda: params)

    given = {"list": [3, 1], "deep": [{"x": {"y": (1, [2])}}], 5: Decimal("1.0")}
    instance = drained(Params.create(given))
    stopped_clock.advance(60)
    assert drained(instance).status == S.COMPLETE, instance.error
    assert seen[0] == seen[1]
    assert seen[0][1:] == (dict, list, dict)
    assert typed(instance.output) == typed(given) == typed(instance.params)


# SER-02 -------------------------------------------------------------------------------------------------------------


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


UNSTORABLE: dict[str, Any] = {
    "a model instance": lambda: Group(name="x"),
    "a queryset": lambda: Group.objects.all(),
    "a function": lambda: [1, {"fn": len}],
    "a file": lambda: [io.BytesIO(b"x")],
    "cycle": cyclic,
    "NUL character": lambda: {"text": ["a\0b"]},
    "lone surrogate": lambda: "\ud800",
    "an iterator or generator": lambda: (i for i in range(3)),
    "a class": lambda: Group,
    "an error": lambda: ValueError("x"),
    "of type object": lambda: object(),
    "a sequence of its own kind": lambda: range(3),
}


@pytest.mark.parametrize("what", UNSTORABLE)
def test_a_result_that_cannot_be_stored(what: str) -> None:
    """SER-02: one attempt, failed as not storable, the message names step, path and type; run may catch it."""
    bodies: list[int] = []

    class Returns(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            def body() -> Any:
                bodies.append(1)
                return UNSTORABLE[what]()

            try:
                step.do("work", body, retries=5)
            except CodecError as error:
                return str(error)
            return "stored"

    instance = drained(Returns.create())
    assert (instance.status, bodies, steps_of(instance)) == (S.COMPLETE, [1], [("work-1", "failed")])
    assert what in instance.output and "'work-1'" in instance.output and "$" in instance.output
    assert instance.steps.get().output is None


def test_a_path_leads_to_the_offender() -> None:
    """SER-02."""

    class Returns(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.do("work", lambda: {"items": [1, {"unit price": Group(name="x")}]})

    instance = drained(Returns.create())
    assert instance.error is not None
    assert "$.items[1]['unit price']" in instance.error["message"]


@pytest.mark.parametrize("what", UNSTORABLE)
def test_the_same_check_for_params_payload_output_and_progress(what: str) -> None:
    """SER-02: nothing is stored, the message says what cannot be stored."""

    class Anything(Workflow):
        class Meta:
            name = "anything"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            with pytest.raises(CodecError, match=r"(?i)progress of anything/"):
                step.set_progress(UNSTORABLE[what]())
            return UNSTORABLE[what]()

    with pytest.raises(CodecError, match=r"(?i)params of anything/"):
        Anything.create(UNSTORABLE[what]())
    assert WorkflowInstance.objects.count() == 0
    instance = Anything.create()
    with pytest.raises(CodecError, match=r"(?i)payload of event 'news'"):
        instance.send_event("news", UNSTORABLE[what]())
    assert SentEvent.objects.count() == 0
    assert drained(instance).status == S.ERRORED
    assert instance.error is not None and instance.error["type"].endswith("CodecError")
    assert "Output of anything/" in instance.error["message"]
    assert (instance.output, instance.progress) == (None, None)


# SER-03, SER-04 -------------------------------------------------------------------------------------------------------


def test_dates_and_times_keep_their_precision(stopped_clock: StoppedClock) -> None:
    """SER-03."""
    values = [
        dt.datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=dt.UTC),
        dt.datetime(2026, 1, 2, 3, 4, 5, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
        dt.time(23, 59, 59, 999999),
        dt.date(1, 1, 1),
        dt.timedelta(days=-1, microseconds=7),
    ]
    seen: list[Any] = []

    class Times(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            seen.append(step.do("times", lambda: values))
            step.sleep("nap", 60)
            return seen[-1]

    instance = drained(Times.create({"at": values[0]}))
    stopped_clock.advance(60)
    assert drained(instance).output == values
    assert seen == [values, values]
    assert instance.params == {"at": values[0]}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have(number: float, stopped_clock: StoppedClock) -> None:
    """SER-04: the same on both databases, everywhere a value is stored."""

    class Numbers(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.set_progress({"at": number})
            got = step.do("number", lambda: {"n": [number]})
            payload = step.wait_for_event("news", type="news").payload
            return [got["n"][0], payload, event.params]

    instance = drained(Numbers.create(number))
    instance.send_event("news", number)
    assert drained(instance).status == S.COMPLETE
    assert list(map(repr, instance.output)) == [repr(number)] * 3
    assert repr(instance.progress["at"]) == repr(number)


def test_nul_in_an_error_does_not_break_the_end() -> None:
    """SER-04: an error's text is not the author's choice: it is shown escaped, on both databases."""

    class Nul(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            def body() -> None:
                raise OSError("bad byte \0 and \ud800 here")

            step.do("reads", body, retries=0)

    instance = drained(Nul.create())
    assert instance.status == S.ERRORED
    assert instance.error is not None and "\0" not in instance.error["message"]
    assert "bad byte" in instance.error["message"]
    assert history_of(instance, "attempt_errored")[0]["error"]["message"] == instance.error["message"]


# SER-05 -------------------------------------------------------------------------------------------------------------


def test_errors_come_back_as_their_class(stopped_clock: StoppedClock) -> None:
    """SER-05: the same except branch at each replay, with the same attributes."""
    seen: list[Any] = []

    class Errors(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            def decline() -> None:
                raise Declined(51, "no funds")

            try:
                step.do("charge", decline, retries=0)
            except Declined as error:
                seen.append((error.code, error.reason, str(error)))
            step.sleep("nap", 60)
            return "handled"

    instance = drained(Errors.create())
    stopped_clock.advance(60)
    assert drained(instance).output == "handled"
    assert seen == [(51, "no funds", "51: no funds")] * 2


def test_a_class_that_is_gone_is_a_step_failed_from_the_start(stopped_clock: StoppedClock) -> None:
    """SER-05: local classes cannot be found again: StepFailed with type name and text, also the first time."""
    seen: list[Any] = []

    class Local(Exception):
        pass

    class Errors(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            def body() -> None:
                raise Local("somewhere")

            try:
                step.do("fails", body, retries=0)
            except StepFailed as error:
                seen.append((error.type.rsplit(".", 1)[-1], error.message))
            step.sleep("nap", 60)
            return "handled"

    instance = drained(Errors.create())
    stopped_clock.advance(60)
    assert drained(instance).output == "handled"
    assert seen == [("Local", "somewhere")] * 2


def test_a_class_that_disappears_between_executions(stopped_clock: StoppedClock) -> None:
    """SER-05: a missing class still gives type name and text; reading the status never fails."""
    seen: list[Any] = []

    class Errors(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            def decline() -> None:
                raise Declined(51, "no funds")

            try:
                step.do("charge", decline, retries=0)
            except Exception as error:
                seen.append(error)
            step.sleep("nap", 60)
            raise seen[-1]

    instance = drained(Errors.create())
    stopped_clock.advance(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(globals(), "Declined")
        assert drained(instance).status == S.ERRORED
    assert isinstance(seen[1], StepFailed) and seen[1].message == "51: no funds"
    assert instance.error is not None
    assert (instance.error["type"], instance.error["message"]) == (f"{__name__}.Declined", "51: no funds")
    assert instance.error["step"] == "charge-1"
