"""Meta, names and the registry of workflows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from durableflow import Priority, Retention, Retries, Step, Workflow, WorkflowEvent, WorkflowOptions
from durableflow.core import registry
from durableflow.core.exceptions import LimitExceeded

P = TypeVar("P")


@pytest.fixture(autouse=True)
def isolated_registry() -> Iterator[None]:
    with registry.isolated():
        registry._classes.clear(), registry._previous.clear()
        yield


def run(self: Any, event: WorkflowEvent, step: Step) -> None:
    """Does nothing."""


def define(name: str, *bases: type, meta: Any = None, body: Any = run, module: str = __name__) -> Any:
    """A workflow class, as a ``class`` statement makes it."""
    space: dict[str, Any] = {"__module__": module, "__qualname__": name}
    if body is not None:
        space["run"] = body
    if meta is not None:
        space["Meta"] = meta if isinstance(meta, type) else type("Meta", (), meta)
    return type(name, bases or (Workflow,), space)


@pytest.mark.parametrize(
    ("cls", "name"), [("Checkout", "checkout"), ("NightlyExport", "nightly-export"), ("HTTPSync", "http-sync")]
)
def test_default_name(cls: str, name: str) -> None:
    """Design 5: the class name in kebab-case."""
    workflow = define(cls)
    assert (workflow.workflow_name(), registry.find(name)) == (name, workflow)


def test_defaults() -> None:
    options = define("Plain").options
    assert (options.version, options.priority, options.abstract) == (0, Priority.NORMAL, False)
    assert (options.step_retries, options.step_timeout, options.max_duration, options.retention) == (None,) * 4


def test_all_keys() -> None:
    options = define(
        "Full",
        meta={
            "name": "full-1",
            "version": 3,
            "step_retries": 4,
            "step_timeout": "2 minutes",
            "max_duration": timedelta(days=1),
            "retention": Retention(success="1 day"),
            "priority": Priority.HIGH,
        },
    ).options
    assert (options.name, options.version, options.priority) == ("full-1", 3, Priority.HIGH)
    assert options.step_retries == Retries(limit=4)
    assert (options.step_timeout, options.max_duration) == (timedelta(minutes=2), timedelta(days=1))
    assert options.retention == Retention(success="1 day")


def test_previous_names() -> None:
    """Design 5: instances of a renamed workflow are those of its class; a name is never inherited."""
    cls = define("Charge", meta={"previous_names": ["pay", "take-money"]})
    assert cls.options.names == ("charge", "pay", "take-money")
    assert [registry.find(name) for name in cls.options.names] == [cls] * 3
    assert registry.names() == ["charge"]
    child = define("Child", cls)
    assert child.options.previous_names == ()
    assert registry.find("pay") is cls


@pytest.mark.parametrize(
    ("previous", "said"),
    [
        ("pay", "must be a list of names"),
        ({"pay"}, "must be a list of names"),
        (None, "must be a list of names"),
        (["pay", "pay"], "'pay' twice"),
        (["charge"], "has the present name 'charge'"),
        (["no spaces"], "characters that are not allowed"),
        ([""], "must not be empty"),
        ([7], "must be a str"),
    ],
)
def test_wrong_previous_names(previous: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said) as refused:
        define("Charge", meta={"previous_names": previous})
    assert "Charge.Meta" in str(refused.value)
    assert registry.find("pay") is None


@pytest.mark.parametrize("second_first", [False, True])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "a", "previous_names": ["x"]}, {"name": "x"}),
        ({"name": "a", "previous_names": ["x"]}, {"name": "b", "previous_names": ["x"]}),
    ],
)
def test_a_name_has_one_workflow_now_and_before(one: Any, other: Any, second_first: bool) -> None:
    """Both directions, whichever module is imported first; the error names both."""
    first, second = (other, one) if second_first else (one, other)
    kept = define("First", meta=first)
    with pytest.raises(TypeError, match="stored as 'x'") as refused:
        define("Second", meta=second)
    assert f"{__name__}.First" in str(refused.value) and f"{__name__}.Second" in str(refused.value)
    assert registry.find("x") is kept and registry.names() == [first["name"]]


def test_a_reload_with_another_name_is_the_same_workflow() -> None:
    define("Charge", meta={"name": "pay"})
    again = define("Charge", meta={"name": "charge", "previous_names": ["pay"]})
    assert registry.find("pay") is again and registry.names() == ["charge"]
    once_more = define("Charge", meta={"name": "charge"})
    assert registry.find("pay") is None and registry.find("charge") is once_more


def test_a_test_forgets_previous_names() -> None:
    with registry.isolated():
        define("Charge", meta={"previous_names": ["pay"]})
    assert registry.find("pay") is None


def test_merging_key_by_key_along_the_mro() -> None:
    """Design 5: the nearest class that says something about a key wins; retries merge field by field."""
    base = define("Base", meta={"abstract": True, "step_timeout": 10, "version": 2, "step_retries": Retries(delay=3)})
    mixin = type("Mixin", (), {"Meta": type("Meta", (), {"priority": Priority.LOW, "step_timeout": 20})})
    child = define("Child", mixin, base, meta={"step_retries": Retries(limit=1)})
    options = child.options
    assert (options.step_timeout, options.version, options.priority) == (timedelta(seconds=20), 2, Priority.LOW)
    assert options.step_retries == Retries(limit=1, delay=3)


def test_name_and_abstract_are_not_inherited() -> None:
    base = define("Base", meta={"abstract": True, "name": "base-name"})
    child = define("Child", base)
    assert (child.options.name, child.options.abstract) == ("child", False)
    assert registry.names().count("child") == 1 and registry.find("base-name") is None


@pytest.mark.parametrize("typed", [False, True])
def test_meta_that_derives_from_the_base_s(typed: bool) -> None:
    """As in Django: ``class Meta(Base.Meta)`` inherits options, not name and abstract."""
    meta = type("Meta", (WorkflowOptions,) if typed else (), {"abstract": True, "name": "base-name", "version": 7})
    base = define("Base", meta=meta)
    child = define("Child", base, meta=type("Meta", (meta,), {"step_timeout": 5}))
    options = child.options
    assert (options.name, options.abstract, options.version) == ("child", False, 7)
    assert registry.find("child") is child


def test_inherited_run() -> None:
    base = define("Base", meta={"abstract": True})
    assert registry.find(define("Child", base, body=None).workflow_name())


def test_generic_bases() -> None:
    """``Workflow[Params, Output]``, also through a generic base of one's own."""

    class Base(Workflow[P, str]):
        class Meta:
            abstract = True
            version = 1

    class Child(Base[dict[str, int]]):
        def run(self, event: WorkflowEvent[dict[str, int]], step: Step) -> str:
            return ""

    assert Child.options.version == 1


@pytest.mark.parametrize("key", ["timeout", "schedule", "Name", "_retries"])
def test_unknown_keys(key: str) -> None:
    """Design 5: also those that are not built yet: never accepted and ignored."""
    with pytest.raises(TypeError, match=f"{__name__}.Wrong.Meta has an unknown key '{key}'"):
        define("Wrong", meta={key: 1})
    assert registry.find("wrong") is None


WRONG: list[tuple[str, Any]] = [
    ("name", "has space"),
    ("name", "-x"),
    ("name", 5),
    ("version", -1),
    ("version", True),
    ("version", "1"),
    ("step_retries", -1),
    ("step_retries", "3"),
    ("step_timeout", 0),
    ("step_timeout", "1h"),
    ("max_duration", "soon"),
    ("retention", "30 days"),
    ("priority", 7),
    ("priority", "high"),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_wrong_values(key: str, value: Any) -> None:
    """RET-09: at import, naming class and value."""
    with pytest.raises(TypeError, match=f"{__name__}.Wrong.Meta"):
        define("Wrong", meta={key: value})


def test_a_name_that_is_too_long() -> None:
    """Design 6: 64 characters."""
    with pytest.raises((TypeError, LimitExceeded)):
        define("Long", meta={"name": "x" * 65})
    assert define("Long", meta={"name": "x" * 64})


def test_a_class_without_run() -> None:
    with pytest.raises(TypeError, match="Empty has no run"):
        define("Empty", body=None)


async def coroutine(self: Any, event: Any, step: Any) -> None:
    """An async run."""


def generator(self: Any, event: Any, step: Any) -> Any:
    yield


async def async_generator(self: Any, event: Any, step: Any) -> Any:
    yield


@pytest.mark.parametrize("body", [generator, async_generator])
def test_a_run_that_is_a_generator(body: Any) -> None:
    with pytest.raises(TypeError, match=r"Other\.run must not be a generator: write def run.*without yield"):
        define("Other", body=body)
    assert registry.find("other") is None


def test_a_run_is_plain_or_async() -> None:
    """Design 6: the engine asks the class which facade ``run`` gets; a subclass's own ``run`` counts."""
    later = define("Later", body=coroutine)
    assert (later.run_is_async, define("Now").run_is_async) == (True, False)
    assert define("Inherited", later, body=None).run_is_async
    assert not define("Again", later).run_is_async


def test_duplicates_name_both() -> None:
    """Api: two classes of one name are an error at import that names both."""
    define("Order", module="shop.workflows")
    with pytest.raises(TypeError, match=r"'order'.*shop\.workflows\.Order.*bakery\.workflows\.Order"):
        define("Order", module="bakery.workflows")
    define("Order", module="shop.workflows")  # the same place again: a reload


def test_abstract_workflows_are_not_started() -> None:
    base = define("Base", meta={"abstract": True}, body=None)
    with pytest.raises(TypeError, match="abstract"):
        base.create()


def test_options_that_do_not_exist() -> None:
    """Issue: a parameter that is not built yet does not exist."""
    from durableflow import drain

    step: Any = Step(runtime=None)  # type: ignore[arg-type]
    for call in (step.do, step.map):
        with pytest.raises(TypeError, match="unknown"):
            call("x", print, unknown=1)
    with pytest.raises(TypeError):
        drain(wrong=1)  # type: ignore[call-arg]


DISCOVERY = """
import sys
import durableflow                      # before the registry of apps is ready
assert sorted(dir(durableflow))
import django
from durableflow.core import registry
assert registry.names() == [], registry.names()
django.setup()
print(registry.names())
from durableflow import *               # all public names, complete after it
from durableflow import Workflow, Step, drain, get_step_context
"""


def test_discovery(tmp_path: Path) -> None:
    """Design 5: workflows are found in each app's ``workflows`` module; the package is importable before."""
    app = tmp_path / "bakery"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "workflows.py").write_text(
        "from durableflow import Workflow\n"
        "class Bake(Workflow):\n    def run(self, event, step): ...\n"
        "class Sell(Workflow):\n    def run(self, event, step): ...\n"
    )
    (tmp_path / "bakery_settings.py").write_text("from tests.settings import *\nINSTALLED_APPS += ['bakery']\n")

    def python() -> subprocess.CompletedProcess[str]:
        root = str(Path(__file__).parents[2])
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", DISCOVERY],
            env={"DJANGO_SETTINGS_MODULE": "bakery_settings", "PYTHONPATH": f"{tmp_path}:{root}", "PATH": ""},
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
        )

    done = python()
    assert done.returncode == 0, done.stderr
    assert "'bake'" in done.stdout and "'sell'" in done.stdout

    (app / "workflows.py").write_text("import not_there\n")
    broken = python()
    assert broken.returncode != 0 and "not_there" in broken.stderr  # loudly
