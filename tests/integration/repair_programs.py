"""Random programs of ``test_lif_repair_random``: whatever happens to them, their result is the same.

Where a program goes depends on what happens (an error that it catches, who wins a race, what a person decides), what it returns
does not. A program is written once, as a generator of durable calls, for sync and async ``run`` alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from durableflow import AsyncStep, EventTimeout, Retries, Rollback, Workflow, WorkflowFailed, WorkflowTimeout

if TYPE_CHECKING:
    from tests.integration.repair_world import RepairWorld

AGAIN: Final = Retries(limit=50, delay=30, backoff="constant")
ITEMS: Final = 3
Script = Generator[Callable[[], Any], Any, Any]


@dataclass
class Node:
    """One statement of a program. ``inner``: the programs of its branches; ``child``: the key of that of its children."""

    kind: str
    name: str
    inner: list[list[Node]] = field(default_factory=list)
    child: str = ""


def expected(program: list[Node], world: Author) -> list[Any]:
    """What an undisturbed run returns."""
    return [_value(node, world) for node in program]


def _value(node: Node, world: Author) -> Any:
    if node.kind in ("gather", "settled"):
        return [expected(branch, world) for branch in node.inner]
    if node.kind in ("child", "bounded"):
        return world.result_of(node.child)
    if node.kind == "join":
        return [world.result_of(node.child)] * 2
    if node.kind in ("map", "settled_map"):
        return [f"{node.name}#{number}" for number in range(1, ITEMS + 1)]
    return node.name


def interpret(world: RepairWorld, step: Any, program: list[Node]) -> Script:
    """Call by call."""
    found = []
    for node in program:
        found.append((yield from _KINDS[node.kind](world, step, node)))
    return found


def play(world: RepairWorld, step: Any, program: list[Node]) -> Any:
    """Run a program in a sync ``run``."""
    script, value, error = interpret(world, step, program), None, None
    while True:
        try:
            call = script.send(value) if error is None else script.throw(error)
        except StopIteration as end:
            return end.value
        value = error = None
        try:
            value = call()
        except Exception as raised:
            error = raised


async def aplay(world: RepairWorld, step: Any, program: list[Node]) -> Any:
    """The same in an async one."""
    script, value, error = interpret(world, step, program), None, None
    while True:
        try:
            call = script.send(value) if error is None else script.throw(error)
        except StopIteration as end:
            return end.value
        value = error = None
        try:
            value = await call()
        except Exception as raised:
            error = raised


def _branch(world: RepairWorld, step: Any, program: list[Node]) -> Callable[[], Any]:
    return partial(aplay if isinstance(step, AsyncStep) else play, world, step, program)


# The statements -------------------------------------------------------------------------------------------------------


def _do(world: RepairWorld, step: Any, node: Node) -> Script:
    body = world.later if isinstance(step, AsyncStep) and world.width(node.name) else world.body
    value = yield partial(step.do, node.name, body, retries=AGAIN)
    return value.partition("#")[0]


def _once(world: RepairWorld, step: Any, node: Node) -> Script:
    value = yield partial(step.do, node.name, world.once, retries=0)
    return value.partition("#")[0]


def _atomic(world: RepairWorld, step: Any, node: Node) -> Script:
    value = yield partial(step.do, node.name, world.quiet, retries=AGAIN, atomic=True)
    return value.partition("#")[0]


def _undone(world: RepairWorld, step: Any, node: Node) -> Script:
    rollback = Rollback(world.undo, retries=1)
    value = yield partial(step.do, node.name, world.body, retries=AGAIN, rollback=rollback)
    return value.partition("#")[0]


def _caught(world: RepairWorld, step: Any, node: Node) -> Script:
    try:
        yield partial(step.do, node.name, world.once, retries=0)
    except OSError:
        yield partial(step.do, f"{node.name}-else", world.body, retries=0)
    return node.name


def _sleep(world: RepairWorld, step: Any, node: Node) -> Script:
    yield partial(step.sleep, node.name, 60)
    return node.name


def _until(world: RepairWorld, step: Any, node: Node) -> Script:
    now = yield step.now
    yield partial(step.sleep_until, node.name, now + timedelta(minutes=2))
    return node.name


def _wait(world: RepairWorld, step: Any, node: Node) -> Script:
    event = yield partial(step.wait_for_event, node.name, type=[node.name, f"{node.name}-too"], timeout=None)
    world.check_read(event, node.name)
    return node.name


def _shared(world: RepairWorld, step: Any, node: Node) -> Script:
    event = yield partial(step.wait_for_event, node.name, type="shared", timeout=None)
    world.check_read(event, "shared")
    return node.name


def _strict(world: RepairWorld, step: Any, node: Node) -> Script:
    event = yield partial(step.wait_for_event, node.name, type=node.name, timeout="5 minutes")
    world.check_read(event, node.name)
    return node.name


def _patient(world: RepairWorld, step: Any, node: Node) -> Script:
    try:
        event = yield partial(step.wait_for_event, node.name, type=node.name, timeout="2 minutes", notify=world.notify)
        world.check_read(event, node.name)
    except EventTimeout:
        yield partial(step.do, f"{node.name}-else", world.body, retries=AGAIN)
    return node.name


def _approval(world: RepairWorld, step: Any, node: Node) -> Script:
    ask = partial(step.wait_for_approval, node.name, title=node.name, timeout=None, notify=world.notify)
    decision = yield ask
    yield partial(step.do, f"{node.name}-{'yes' if decision else 'no'}", world.body, retries=AGAIN)
    return node.name


def _race(world: RepairWorld, step: Any, node: Node) -> Script:
    branches = {
        "left": partial(
            step.wait_for_event, f"{node.name}-l", type=f"{node.name}-l", timeout=None, notify=world.notify
        ),
        "right": partial(step.wait_for_approval, f"{node.name}-r", title=node.name, timeout=None),
        "last": partial(step.sleep, f"{node.name}-s", "10 minutes"),
    }
    winner = yield partial(step.race, node.name, **branches)
    yield partial(step.do, f"{node.name}-{winner.name}", world.body, retries=0)
    return node.name


def _work(world: RepairWorld, step: Any, node: Node) -> Script:
    flow, params = world.child(node.child)
    branches = {
        "child": partial(step.run_workflow, f"{node.name}-c", flow, params),
        "event": partial(step.wait_for_event, f"{node.name}-e", type=f"{node.name}-e", timeout=None),
    }
    winner = yield partial(step.race, node.name, **branches)
    yield partial(step.do, f"{node.name}-{winner.name}", world.body, retries=AGAIN)
    return node.name


def _map(world: RepairWorld, step: Any, node: Node) -> Script:
    items = range(1, ITEMS + 1)
    found = yield partial(step.map, node.name, world.item, items, retries=0, concurrency=2)
    return list(found)


def _settled_map(world: RepairWorld, step: Any, node: Node) -> Script:
    items = range(1, ITEMS + 1)
    found = yield partial(step.map, node.name, world.item, items, retries=0, return_exceptions=True)
    return [f"{node.name}#{number}" for number, _ in enumerate(found, 1)]


def _gather(world: RepairWorld, step: Any, node: Node) -> Script:
    branches = [_branch(world, step, program) for program in node.inner]
    return list((yield partial(step.gather, node.name, *branches, concurrency=world.width(node.name))))


def _settled(world: RepairWorld, step: Any, node: Node) -> Script:
    branches = [_branch(world, step, program) for program in node.inner]
    found = yield partial(step.gather, node.name, *branches, return_exceptions=True)
    return [
        expected(program, world) if isinstance(value, Exception) else value
        for program, value in zip(node.inner, found, strict=True)
    ]


def _child(world: RepairWorld, step: Any, node: Node) -> Script:
    flow, params = world.child(node.child)
    return (yield partial(step.run_workflow, node.name, flow, params))


def _bounded(world: RepairWorld, step: Any, node: Node) -> Script:
    flow, params = world.child(node.child)
    try:
        return (yield partial(step.run_workflow, node.name, flow, params, timeout="3 minutes"))
    except (WorkflowFailed, WorkflowTimeout):
        yield partial(step.do, f"{node.name}-else", world.body, retries=AGAIN)
    return world.result_of(node.child)


def _join(world: RepairWorld, step: Any, node: Node) -> Script:
    flow, params = world.child(node.child)
    return list((yield partial(step.run_workflows, node.name, flow, [params] * 2, concurrency=world.width(node.name))))


def _settled_join(world: RepairWorld, step: Any, node: Node) -> Script:
    flow, params = world.child(node.child)
    found = yield partial(step.run_workflows, node.name, flow, [params] * 2, return_exceptions=True)
    for value in found:
        assert isinstance(value, Exception) or value == world.result_of(node.child), value
    return node.name


def _left(world: RepairWorld, step: Any, node: Node) -> Script:
    flow, params = world.child(node.child)
    end = "leave" if world.width(node.name) else "terminate"
    yield partial(step.start_workflow, node.name, flow, params, on_parent_end=end)
    return node.name


def _mistake(world: RepairWorld, step: Any, node: Node) -> Script:
    world.mistake((step.instance_id, node.name))
    yield partial(step.do, node.name, world.body, retries=AGAIN)
    return node.name


def _side(world: RepairWorld, step: Any, node: Node) -> Script:
    new = yield partial(step.patched, node.name)
    assert new is True, "a patch was taken back"
    yield partial(step.set_progress, node.name)
    return node.name


_KINDS: Final[dict[str, Callable[[RepairWorld, Any, Node], Script]]] = {
    "do": _do, "once": _once, "atomic": _atomic, "undone": _undone, "caught": _caught, "sleep": _sleep, "until": _until,
    "wait": _wait, "shared": _shared, "strict": _strict, "patient": _patient, "approval": _approval, "race": _race,
    "work": _work, "map": _map, "settled_map": _settled_map, "gather": _gather, "settled": _settled, "child": _child, "bounded": _bounded,
    "join": _join,
    "settled_join": _settled_join, "left": _left, "side": _side, "mistake": _mistake,
}  # fmt: skip
PLAIN: Final = [
    "do", "do", "once", "atomic", "undone", "caught", "sleep", "until", "wait", "shared", "strict", "patient", "approval", "race", "map",
    "settled_map", "side", "mistake",
]  # fmt: skip
GROUPS: Final = ["gather", "gather", "gather", "settled"]
CHILDREN: Final = ["work", "child", "child", "bounded", "join", "settled_join", "left"]
DEEPEST: Final = 2


class Author:
    """Writes the random programs of a world."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = 0
        self.programs: dict[str, tuple[list[Node], list[Node] | None]] = {}
        self.flows: dict[str, type[Workflow[Any, Any]]] = {}
        self.types = ["shared"]
        self.root = self.new_program(0)

    def name(self, kind: str) -> str:
        """A new one."""
        self.names += 1
        return f"{kind.replace('_', '')}{self.names}"

    def new_program(self, generation: int) -> str:
        """The key of a new program, that of a child of this generation. Some go on as new."""
        key = self.name("p")
        first = self.some_nodes(generation, 0, 4 if generation == 0 else 2)
        second = self.some_nodes(generation, 1, 2) if self.random.random() < 0.15 else None
        self.programs[key] = first, second
        return key

    def some_nodes(self, generation: int, depth: int, most: int) -> list[Node]:
        """A program, or that of a branch."""
        least = 2 if most > 2 else 1
        return [self.node(generation, depth) for _ in range(self.random.randint(least, most))]

    def node(self, generation: int, depth: int) -> Node:
        """Any statement."""
        kinds = [*PLAIN, *(GROUPS if depth < 2 else []), *(CHILDREN if generation < DEEPEST else [])]
        kind = self.random.choice(kinds)
        node = Node(kind, self.name(kind))
        if kind in GROUPS:
            node.inner = [self.some_nodes(generation, depth + 1, 2) for _ in range(self.random.randint(2, 3))]
        if kind in CHILDREN:
            node.child = self.new_program(generation + 1)
        self.types += {"wait": [node.name], "race": [f"{node.name}-l"], "work": [f"{node.name}-e"]}.get(kind, [])
        return node

    def child(self, key: str) -> tuple[type[Workflow[Any, Any]], dict[str, Any]]:
        """Which workflow runs this program, and with which params."""
        return self.flows["async" if int(key[1:]) % 2 else "sync"], {"program": key, "round": 0}

    def result_of(self, key: str) -> list[Any]:
        """What an undisturbed run of this program returns."""
        first, second = self.programs[key]
        return expected(second or first, self)

    def width(self, name: str) -> int | None:
        """A number that belongs to the name."""
        return [None, 1, 2][sum(map(ord, name)) % 3]
