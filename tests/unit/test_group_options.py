"""The calls with branches, children, rollback and patches: what both facades accept, refuse, and hand to the engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, NoReturn

import pytest
from django.test import override_settings

from durableflow import AsyncStep, InvalidConfig, LimitExceeded, Retries, Rollback, Step, Workflow
from durableflow.authoring.calls import Call, DoCall
from durableflow.authoring.group_calls import (
    ChildCall,
    ChildrenCall,
    GatherCall,
    MapCall,
    PatchCall,
    RaceCall,
    StartCall,
)
from durableflow.core import registry


class NewRun(BaseException):
    """Stands for the unwinding of continue_as_new."""


class Recorder:
    """A runtime that keeps the calls it gets. It answers at the call, as the engine takes identities."""

    instance_id = "a"
    run_number = 1

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def call(self, call: Call) -> str:
        self.calls.append(call)
        return "answer"

    acall = call

    def continue_as_new(self, params: Any) -> NoReturn:
        self.calls.append(params)
        raise NewRun


def one() -> int:
    return 1


def two() -> int:
    return 2


def undo(_: Any) -> None: ...


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with registry.isolated():

        class Page(Workflow[Any, Any]):
            def run(self, event: Any, step: Any) -> None: ...

        yield Page


@pytest.fixture(scope="module")
def abstract() -> Any:
    class Base(Workflow[Any, Any]):
        class Meta:
            abstract = True

    return Base


@pytest.fixture(params=[Step, AsyncStep])
def step(request: pytest.FixtureRequest) -> Any:
    return request.param(Recorder())


def made(step: Any) -> Any:
    """The one call that the runtime got."""
    (call,) = step._runtime.calls
    return call


# ------------------------------------------------------------------------------------------------- what is handed over


def test_the_facades_offer_the_same() -> None:
    """Api: AsyncStep is the same with await."""

    def offered(facade: type) -> dict[str, list[tuple[str, Any, Any]]]:
        return {
            name: [(p.name, p.kind, p.default) for p in inspect.signature(member).parameters.values()]
            for name, member in inspect.getmembers(facade, inspect.isfunction)
            if not name.startswith("_")
        }

    assert offered(Step) == offered(AsyncStep)
    assert set(offered(Step)) == {
        *("do", "sleep", "sleep_until", "wait_for_event", "wait_for_approval", "gather", "race", "map"),
        *(
            "run_workflow",
            "run_workflows",
            "start_workflow",
            "continue_as_new",
            "set_progress",
            "patched",
            "now",
            "uuid4",
        ),
    }


def test_calls_reach_the_runtime_when_they_are_made(step: Any) -> None:
    """Design 6: identity is taken at the call. AsyncStep hands out what the runtime gave, nothing wraps it."""
    assert step.gather("both", one, two, concurrency=2) == "answer"
    assert made(step) == GatherCall(name="both", branches=(one, two), concurrency=2, return_exceptions=False)


def test_map(step: Any) -> None:
    """Items are taken once, options are those of do."""
    items = iter("ab")
    step.map("sizes", len, items, retries=2, timeout="1 minute", rollback=undo, sensitive=True, atomic=True)
    assert made(step) == MapCall(
        name="sizes",
        fn=len,
        items=("a", "b"),
        retries=Retries(limit=2),
        timeout=timedelta(minutes=1),
        rollback=Rollback(undo),
        sensitive=True,
        atomic=True,
    )
    assert list(items) == []


def test_race_keeps_the_order_of_its_branches(step: Any) -> None:
    step.race("first", late=one, early=two, name=one, self=two)
    call = made(step)
    assert isinstance(call, RaceCall) and list(call.branches) == ["late", "early", "name", "self"]


def test_children(step: Any, page: Any) -> None:
    step.run_workflow("one", page, {"n": 1}, instance_id="page-1", timeout="1 day")
    step.run_workflows("all", page, ({"n": n} for n in range(2)), concurrency=5, return_exceptions=True)
    step.start_workflow("go", page, None, on_parent_end="terminate")
    assert step._runtime.calls == [
        ChildCall(name="one", workflow=page, params={"n": 1}, instance_id="page-1", timeout=timedelta(days=1)),
        ChildrenCall(name="all", workflow=page, params=({"n": 0}, {"n": 1}), concurrency=5, return_exceptions=True),
        StartCall(name="go", workflow=page, params=None, instance_id=None, on_parent_end="terminate"),
    ]


def test_nothing_to_do_is_allowed(step: Any, page: Any) -> None:
    step.map("sizes", len, [])
    step.run_workflows("all", page, [])
    assert [(call.name, len(getattr(call, "items", ()))) for call in step._runtime.calls] == [("sizes", 0), ("all", 0)]


def test_patched(step: Any) -> None:
    step.patched("new discount")
    assert made(step) == PatchCall(name="new discount")


def test_continue_as_new_is_no_call_and_is_not_awaited(step: Any) -> None:
    with pytest.raises(NewRun):
        step.continue_as_new({"page": 2})
    assert made(step) == {"page": 2}


GIVEN: list[tuple[Any, Rollback[Any]]] = [
    (undo, Rollback(undo)),
    (Rollback(undo), Rollback(undo)),
    (Rollback(undo, retries=20, timeout=30), Rollback(undo, retries=Retries(limit=20), timeout=timedelta(seconds=30))),
]


@pytest.mark.parametrize(("given", "expected"), GIVEN)
def test_rollback_comes_in_one_form(step: Any, given: Any, expected: Rollback[Any]) -> None:
    """Design 7: the engine gets a Rollback with Retries and a timedelta inside; None is inherited."""
    step.do("book", one, rollback=given)
    call = made(step)
    assert isinstance(call, DoCall) and call.rollback == expected


# ------------------------------------------------------------------------------------------------------------ refusals


def refused(step: Any, field: str, told: str, call: Callable[[], object]) -> None:
    """Case RET-09: by step and field, before anything is handed to the engine."""
    with pytest.raises(InvalidConfig, match=rf"^step 'x': {told}") as caught:
        call()
    assert (caught.value.step, caught.value.field, step._runtime.calls) == ("x", field, [])


@pytest.mark.parametrize("concurrency", [0, -1, True, 1.5, "2"])
def test_concurrency(step: Any, page: Any, concurrency: Any) -> None:
    told = "concurrency must be a whole number of at least 1, or None"
    refused(step, "concurrency", told, lambda: step.gather("x", one, concurrency=concurrency))
    refused(step, "concurrency", told, lambda: step.map("x", len, [], concurrency=concurrency))
    refused(step, "concurrency", told, lambda: step.run_workflows("x", page, [], concurrency=concurrency))


@pytest.mark.parametrize("flag", [1, "no", None])
def test_return_exceptions(step: Any, page: Any, flag: Any) -> None:
    told = "return_exceptions must be True or False"
    refused(step, "return_exceptions", told, lambda: step.gather("x", one, return_exceptions=flag))
    refused(step, "return_exceptions", told, lambda: step.map("x", len, [], return_exceptions=flag))
    refused(step, "return_exceptions", told, lambda: step.run_workflows("x", page, [], return_exceptions=flag))


def test_branches(step: Any) -> None:
    refused(step, "branches", "gather needs at least one branch", lambda: step.gather("x"))
    refused(step, "branches", "race needs at least one branch", lambda: step.race("x"))
    told = r"branch {} must be a function without arguments, not 1\. .*lambda: step\.do"
    refused(step, "branches", told.format(2), lambda: step.gather("x", one, one()))
    refused(step, "branches", told.format("'paid'"), lambda: step.race("x", paid=one()))
    refused(step, "branches", "branches: The step name must not be empty", lambda: step.race("x", **{"": one}))


@pytest.mark.parametrize(
    "call", ["gather", "race", "map", "run_workflow", "run_workflows", "start_workflow", "patched"]
)
def test_names_follow_one_rule(step: Any, page: Any, call: str) -> None:
    """Design 12: a wrong name is a ValueError, not a wrong option; a name that is too long a LimitExceeded."""
    rest: Mapping[str, tuple[Any, ...]] = {"gather": (one,), "race": (), "map": (len, []), "patched": ()}
    arguments = rest.get(call, (page, []))
    for wrong, error in (("", ValueError), ("a\nb", ValueError), (5, ValueError), ("a" * 257, LimitExceeded)):
        with pytest.raises(error, match="step name") as caught:
            getattr(step, call)(wrong, *arguments)
        assert not isinstance(caught.value, InvalidConfig)
    assert step._runtime.calls == []


@pytest.mark.parametrize("call", ["map", "run_workflows"])
def test_what_only_looks_like_a_list(step: Any, page: Any, call: str) -> None:
    """A text, a dict (the params of one child), a set (another order in each process), a single value."""
    first, field = (len, "items") if call == "map" else (page, "params")
    made = partial(getattr(step, call), "x", first)
    refused(step, field, rf"{field} must be a list, not one str\. Put it into a list: \[{field}\]", lambda: made("ab"))
    refused(step, field, rf"{field} must be a list, not one bytes", lambda: made(b"ab"))
    refused(step, field, rf"{field} must be a list, not one dict.*list\({field}\.items\(\)\)", lambda: made({"n": 1}))
    for unordered in ({1, 2}, frozenset({1, 2})):
        refused(step, field, rf"{field} must have an order.*sorted\({field}\)", partial(made, unordered))
    refused(step, field, rf"{field} must be a list or another iterable, not 5", lambda: made(5))


@override_settings(DURABLEFLOW={"LIMITS": {"records": 3}})
def test_an_iterable_without_an_end(step: Any, page: Any) -> None:
    """Design 6, limits: refused once it has more entries than an instance may record, with the cure."""
    step.map("all", str, [1, 2, 3])
    for call in (partial(step.map, "x", str), partial(step.run_workflows, "x", page)):
        with pytest.raises(LimitExceeded, match=r"^step 'x': (items|params) has more than 3 entries.*continue_as_new"):
            call(count())


@pytest.mark.parametrize("call", ["run_workflow", "run_workflows", "start_workflow"])
def test_workflows(step: Any, page: Any, abstract: Any, call: str) -> None:
    told = "workflow must be a subclass of Workflow, the class itself and not its name or an object"
    for wrong in ("page", None, page(), int):
        refused(step, "workflow", told, partial(getattr(step, call), "x", wrong, []))
    for base in (Workflow, abstract):
        told = rf"workflow .*{base.__name__} is abstract: give one of its subclasses"
        refused(step, "workflow", told, partial(getattr(step, call), "x", base, []))


def test_options_of_children(step: Any, page: Any) -> None:
    for call in (step.run_workflow, step.start_workflow):
        for instance_id in ("latest", "a b", ""):
            refused(step, "instance_id", "instance_id", partial(call, "x", page, None, instance_id=instance_id))
    for timeout in (0, -1, "1h"):
        refused(step, "timeout", "timeout", partial(step.run_workflow, "x", page, None, timeout=timeout))
    told = "on_parent_end must be 'leave' or 'terminate', not 'kill'"
    refused(step, "on_parent_end", told, lambda: step.start_workflow("x", page, None, on_parent_end="kill"))


WRONG_ROLLBACKS: list[tuple[Any, str]] = [
    (5, "rollback must be a function of one argument, the Undo, or Rollback"),
    (Rollback(5), "rollback must be a function of one argument, the Undo, or Rollback"),  # type: ignore[arg-type]
    (Rollback(undo, retries=-1), "rollback: limit must be a whole number from 0"),
    (Rollback(undo, retries="3"), "rollback: retries must be a number or Retries"),  # type: ignore[arg-type]
    (Rollback(undo, timeout=0), "rollback: timeout must be"),
    (Rollback(undo, timeout="soon"), "rollback: timeout is not a duration"),
]


@pytest.mark.parametrize(("given", "told"), WRONG_ROLLBACKS)
def test_rollbacks(step: Any, given: Any, told: str) -> None:
    refused(step, "rollback", told, lambda: step.do("x", one, rollback=given))
    refused(step, "rollback", told, lambda: step.map("x", len, [], rollback=given))


def test_options_of_map_are_those_of_do(step: Any) -> None:
    for option, wrong in (("retries", -1), ("timeout", 0), ("sensitive", 1), ("atomic", "no")):
        refused(step, option, "", partial(step.map, "x", len, [], **{option: wrong}))
    refused(step, "fn", "the body must be callable", lambda: step.map("x", "len", []))


# -------------------------------------------------------------------------------------------------- lambdas of one loop


def test_lambdas_of_one_loop_are_refused_with_the_cure(step: Any) -> None:
    """Design 7: all of them would work on the loop's last value."""
    told = r"two branches are the same function of one loop.*\((item, )?(step)?.*\).*functools\.partial.*default.*step\.map"
    refused(step, "branches", told, lambda: step.gather("x", *[lambda: step.do("size", len, item) for item in "ab"]))  # noqa: B023

    branches: dict[str, Any] = {}
    for name in "ab":
        branches[name] = lambda: step.wait_for_event("event", type=name)  # noqa: B023
    refused(step, "branches", told, lambda: step.race("x", **branches))


def test_a_function_defined_in_a_loop(step: Any) -> None:
    branches = []
    for item in "ab":

        def branch() -> Any:
            return step.do("size", len, item)  # noqa: B023

        branches.append(branch)
    refused(step, "branches", r"two branches are .* \(item, step\)", lambda: step.gather("x", *branches))


def branch_of(step: Any, item: str) -> Callable[[], Any]:
    return lambda: step.do("size", len, item)


def accepted(step: Any) -> Iterator[list[Callable[[], Any]]]:
    yield [lambda item=item: step.do("size", len, item) for item in "ab"]  # type: ignore[misc]
    yield [lambda item=item: step.do("size", len, item) for item in "aa"]  # type: ignore[misc]  # two equal items
    yield [lambda *, item=item: step.do("size", len, item) for item in "ab"]  # type: ignore[misc]
    yield [partial(step.do, "size", len, item) for item in "ab"]
    yield [branch_of(step, item) for item in "ab"]
    yield [branch_of(step, "a")] * 3  # one function, several times
    yield [lambda: step.do("size", len, "a"), lambda: step.do("size", len, "b")]  # two places of the text
    yield [lambda: 1 for _ in "ab"]  # nothing of the loop is in it


def test_what_binds_the_value_is_accepted(step: Any) -> None:
    every = list(accepted(step))
    for branches in every:
        step.gather("x", *branches)
    assert [call.branches for call in step._runtime.calls] == [tuple(branches) for branches in every]


def test_a_coroutine_is_no_branch() -> None:
    """AsyncStep: the call itself was given instead of a function."""

    async def later() -> None: ...

    step = AsyncStep(Recorder())  # type: ignore[arg-type]
    coroutine = later()
    with pytest.raises(InvalidConfig, match=r"^step 'x': branch 1 must be a function.*lambda: step\.do"):
        step.gather("x", coroutine)  # type: ignore[call-overload]
    coroutine.close()
