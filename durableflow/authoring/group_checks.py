"""Check the options of the calls that have branches, children or a patch, and make the calls of them (design 7).

One place for both facades. A wrong option is an ``InvalidConfig`` that names step and field (case RET-09), a wrong name a
ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from types import FunctionType
from typing import Any, Final, NoReturn

from durableflow.authoring.calls import DoCall, bound, checked, do_call, flag
from durableflow.authoring.group_calls import (
    ChildCall,
    ChildrenCall,
    GatherCall,
    MapCall,
    PatchCall,
    RaceCall,
    StartCall,
)
from durableflow.authoring.workflow import Workflow
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import InvalidConfig, LimitExceeded
from durableflow.core.names import check_instance_id, check_step_name

ON_PARENT_END: Final = ("leave", "terminate")


def gather_call(name: str, branches: tuple[Any, ...], concurrency: Any, return_exceptions: Any) -> GatherCall:
    """``step.gather``."""
    check_step_name(name)
    if not branches:
        _refuse(name, "branches", "gather needs at least one branch: a function without arguments.")
    for position, branch in enumerate(branches, start=1):
        _check_branch(name, f"branch {position}", branch)
    _check_loop(name, branches)
    return GatherCall(
        name=name,
        branches=branches,
        concurrency=_concurrency(name, concurrency),
        return_exceptions=flag(name, "return_exceptions", return_exceptions),
    )


def race_call(name: str, branches: Mapping[str, Any]) -> RaceCall:
    """``step.race``: the names of its branches follow the rule of steps' names."""
    check_step_name(name)
    if not branches:
        _refuse(name, "branches", 'race needs at least one branch: race("first", paid=lambda: ...).')
    for own, branch in branches.items():
        checked(name, "branches", check_step_name, own)
        _check_branch(name, f"branch {own!r}", branch)
    _check_loop(name, tuple(branches.values()))
    return RaceCall(name=name, branches=dict(branches))


def map_call(
    name: str, fn: Callable[..., Any], items: Any, concurrency: Any, return_exceptions: Any, **options: Any
) -> MapCall:
    """``step.map``; ``options`` are those of ``step.do``, with its checks."""
    step: DoCall = do_call(name, fn, (), **options)
    return MapCall(
        name=name,
        fn=fn,
        items=_several(name, "items", items),
        concurrency=_concurrency(name, concurrency),
        return_exceptions=flag(name, "return_exceptions", return_exceptions),
        retries=step.retries,
        timeout=step.timeout,
        rollback=step.rollback,
        sensitive=step.sensitive,
        atomic=step.atomic,
    )


def child_call(name: str, workflow: Any, params: Any, instance_id: Any, timeout: Any) -> ChildCall:
    """``step.run_workflow``."""
    check_step_name(name)
    return ChildCall(
        name=name,
        workflow=_workflow(name, workflow),
        params=params,
        instance_id=_instance_id(name, instance_id),
        timeout=None if timeout is None else bound(name, timeout),
    )


def children_call(name: str, workflow: Any, params: Any, concurrency: Any, return_exceptions: Any) -> ChildrenCall:
    """``step.run_workflows``."""
    check_step_name(name)
    return ChildrenCall(
        name=name,
        workflow=_workflow(name, workflow),
        params=_several(name, "params", params),
        concurrency=_concurrency(name, concurrency),
        return_exceptions=flag(name, "return_exceptions", return_exceptions),
    )


def start_call(name: str, workflow: Any, params: Any, instance_id: Any, on_parent_end: Any) -> StartCall:
    """``step.start_workflow``."""
    check_step_name(name)
    if on_parent_end not in ON_PARENT_END:
        _refuse(name, "on_parent_end", f"on_parent_end must be 'leave' or 'terminate', not {on_parent_end!r}.")
    return StartCall(
        name=name,
        workflow=_workflow(name, workflow),
        params=params,
        instance_id=_instance_id(name, instance_id),
        on_parent_end=str(on_parent_end),
    )


def patch_call(patch_id: str) -> PatchCall:
    """``step.patched``: an id follows the rule of steps' names."""
    return PatchCall(name=check_step_name(patch_id))


def _refuse(name: str, field: str, told: str) -> NoReturn:
    raise InvalidConfig(f"step {name!r}: {told}", step=name, field=field)


def _concurrency(name: str, given: Any) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        _refuse(
            name,
            "concurrency",
            f"concurrency must be a whole number of at least 1, or None for no limit of its own, not {given!r}.",
        )
    return int(given)


def _several(name: str, field: str, given: Any) -> tuple[Any, ...]:
    """Items or params, in the order in which they were given. What has no order of its own, or looks like a list and is
    none, is refused: the next replay could see another one."""
    if isinstance(given, str | bytes | Mapping):
        cure = f"Put it into a list: [{field}]. For the entries of a dict: list({field}.items())."
        _refuse(name, field, f"{field} must be a list, not one {type(given).__name__}. {cure}")
    if isinstance(given, set | frozenset):
        _refuse(
            name,
            field,
            f"{field} must have an order, a set has another one in each process. Give a list: sorted({field}).",
        )
    if not isinstance(given, Iterable):
        _refuse(name, field, f"{field} must be a list or another iterable, not {given!r}.")
    most = get_settings().LIMITS.records
    several = tuple(islice(given, most + 1))
    if len(several) > most:
        raise LimitExceeded(
            f"step {name!r}: {field} has more than {most:,} entries, which is what an instance may record. Split the work: "
            "give each child workflow a part of it, or process it in runs with step.continue_as_new."
        )
    return several


def _workflow(name: str, workflow: Any) -> type[Workflow[Any, Any]]:
    if not isinstance(workflow, type) or not issubclass(workflow, Workflow):
        _refuse(
            name,
            "workflow",
            f"workflow must be a subclass of Workflow, the class itself and not its name or an object, not {workflow!r}.",
        )
    if workflow is Workflow or workflow.options.abstract:
        _refuse(name, "workflow", f"workflow {workflow.__qualname__} is abstract: give one of its subclasses.")
    return workflow


def _instance_id(name: str, given: Any) -> str | None:
    return None if given is None else str(checked(name, "instance_id", check_instance_id, given))


def _check_branch(name: str, which: str, branch: Any) -> None:
    if not callable(branch):
        _refuse(
            name,
            "branches",
            f"{which} must be a function without arguments, not {branch!r}. Give what is to be called, not what it "
            "returned: lambda: step.do(...).",
        )


def _check_loop(name: str, branches: tuple[Any, ...]) -> None:
    """Refuse two lambdas of one loop: they share the loop's variable and would all work on its last value (design 7)."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    met: set[int] = set()
    for branch in map(_unwrapped, branches):
        # The same function twice does the same twice, as its author says. Defaults bind the loop's variable.
        if not isinstance(branch, FunctionType) or not branch.__closure__ or id(branch) in met:
            continue
        met.add(id(branch))
        if branch.__defaults__ or branch.__kwdefaults__:
            continue
        twin = (id(branch.__code__), tuple(map(id, branch.__closure__)))
        if twin in seen:
            told = ", ".join(branch.__code__.co_freevars)
            _refuse(
                name,
                "branches",
                f"two branches are the same function of one loop and share its variables ({told}): all of them would see the "
                "last value. Bind the value: functools.partial(function, value), a default argument (lambda item=item: ...),"
                " or use step.map. To do the same work several times, give the same function object several times.",
            )
        seen.add(twin)


def _unwrapped(branch: Any) -> Any:
    """A partial that binds nothing is its function."""
    while isinstance(branch, partial) and not (branch.args or branch.keywords):
        branch = branch.func
    return branch
