"""The replay core alone: no Django, no database."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durableflow.core.exceptions import InvalidDurableCall, NonDeterminismError, SuspensionSwallowed
from durableflow.engine.journal import Identity, Record
from durableflow.engine.replay import MAX_REFUSED_CALLS, Replay
from durableflow.engine.unwind import Block, Suspend, Unwind


def record(
    name: str, *, kind: str = "do", count: int = 1, seq: int = 1, execution: int = 1, scope: str = "", **fields: Any
) -> Record:
    return Record(Identity(scope, kind, name, count), seq, execution, 1, fields.pop("status", "complete"), **fields)


def journal(*names: str, execution: int = 1, first: int = 1) -> list[Record]:
    """Finished steps in this order."""
    counts: dict[str, int] = {}
    rows = []
    for seq, name in enumerate(names, first):
        counts[name] = counts.get(name, 0) + 1
        rows.append(record(name, count=counts[name], seq=seq, execution=execution))
    return rows


def replay(rows: list[Record] | None = None, **options: Any) -> Replay:
    return Replay(rows or [], where="shop/order-1", owner=1, **{"thread": lambda: 1, **options})


def call(core: Replay, name: str, kind: str = "do") -> Record | None:
    return core.meet(core.root, core.enter(core.root, kind, name))


def blocked(error: Unwind) -> Exception:
    assert isinstance(error.outcome, Block)
    return error.outcome.error


# Identity -------------------------------------------------------------------------------------------------------------


def test_identity_counts_by_kind_and_name() -> None:
    """ENG-05: name plus occurrence; another kind counts for itself."""
    core = replay()
    calls = [("do", "a"), ("do", "a"), ("sleep", "a"), ("do", "b"), ("do", "a")]
    identities = [core.enter(core.root, kind, name) for kind, name in calls]
    assert [(one.kind, one.name, one.count) for one in identities] == [
        ("do", "a", 1),
        ("do", "a", 2),
        ("sleep", "a", 1),
        ("do", "b", 1),
        ("do", "a", 3),
    ]
    assert [one.label for one in identities[:2]] == ["a-1", "a-2"]


def test_names_never_run_into_each_other() -> None:
    """The text of an identity is the identity."""
    texts = {
        Identity(scope, kind, name, 1).text for scope in ("", "a") for kind in ("do", "now") for name in ("b", "a/b")
    }
    assert len(texts) == 8


def test_presence_decides_not_the_value() -> None:
    """ENG-01: a finished record without an output is a record."""
    row = record("a", output=None)
    assert call(replay([row]), "a") is row


def test_new_calls_continue_the_order() -> None:
    core = replay(journal("a", "b"))
    first = core.started(Identity("", "do", "c", 1), 2, 1)
    second = core.started(Identity("", "do", "d", 1), 2, 1)
    assert (first.seq, second.seq) == (3, 4)
    assert core.records[first.identity] is first
    assert replay().next_seq == 1


# Determinism ----------------------------------------------------------------------------------------------------------


def test_other_kind_is_refused_at_once() -> None:
    """ENG-04 v3."""
    core = replay([record("load")])
    with pytest.raises(Unwind) as caught:
        call(core, "load", "sleep")
    error = blocked(caught.value)
    assert isinstance(error, NonDeterminismError)
    assert "do 'load-1'" in str(error) and "sleep 'load-1'" in str(error) and "shop/order-1" in str(error)


def test_two_kinds_of_one_name_that_were_both_called() -> None:
    """A name may be used by two kinds, in the recorded order and in another one."""
    rows = [record("x", seq=1), record("x", kind="sleep", seq=2)]
    core = replay(rows)
    assert (call(core, "x"), call(core, "x", "sleep")) == (rows[0], rows[1])
    core.check_end()


def test_inserted_steps_are_fine() -> None:
    """ENG-04 v2: records of different executions are not compared, new calls never clash."""
    core = replay([*journal("load"), *journal("wait", execution=2, first=2)])
    assert call(core, "load") is not None
    assert call(core, "enrich") is None
    assert call(core, "wait") is not None
    core.check_end()


def test_a_skipped_record_of_the_same_execution_is_found_when_a_later_one_is_met() -> None:
    core = replay(journal("a", "b", "c"))
    call(core, "a")
    with pytest.raises(Unwind, match="Block") as caught:
        call(core, "c")
    assert "do 'b-1' before do 'c-1'" in str(blocked(caught.value))


def test_a_skipped_record_of_an_earlier_execution_is_found_at_the_end() -> None:
    """ENG-08: only records of one execution are compared on the way."""
    core = replay([*journal("a"), *journal("b", execution=2, first=2)])
    call(core, "b")
    with pytest.raises(Unwind) as caught:
        core.check_end()
    assert "do 'a-1' is recorded" in str(blocked(caught.value))


def test_end_wants_all_records_met() -> None:
    core = replay(journal("a", "b"))
    call(core, "a")
    with pytest.raises(Unwind) as caught:
        core.check_end()
    assert "do 'b-1'" in str(blocked(caught.value))


def test_notify_is_met_with_its_wait() -> None:
    core = replay([record("ok", kind="wait_for_approval"), record("ok", kind="notify", seq=2), record("c", seq=3)])
    call(core, "ok", "wait_for_approval")
    call(core, "c")
    core.check_end()


def test_freed_records_need_not_be_met() -> None:
    """Design 9: what started after a step that retry() has reset is exempt, but still answers."""
    rows = journal("a", "b", "c")
    rows[1].freed = rows[2].freed = True
    core = replay(rows)
    call(core, "a")
    core.check_end()
    core = replay(rows)
    for row in rows:
        row.met = False
    call(core, "a")
    assert call(core, "c") is rows[2]  # b is skipped
    core.check_end()
    assert replay([rows[1]]).root.other_kind(Identity("", "sleep", "b", 1)) is None


def test_records_of_other_scopes_are_not_the_roots() -> None:
    core = replay([record("a"), record("inner", scope="both-1/0", seq=2)])
    call(core, "a")
    core.check_end()


@given(st.lists(st.sampled_from("abc"), max_size=8), st.data())
def test_any_change_of_one_execution_is_found_or_harmless(names: list[str], data: st.DataObject) -> None:
    """ENG-04, ENG-08: a replay that goes through without an error has met all records in their order."""
    now = data.draw(st.lists(st.sampled_from("abcd"), max_size=8))
    core = replay(journal(*names))
    met: list[str] = []
    try:
        for name in now:
            if call(core, name) is not None:
                met.append(name)
        core.check_end()
    except Unwind as stop:
        assert isinstance(blocked(stop), NonDeterminismError)
        assert now != names
        return
    assert met == names


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=10))
def test_the_same_program_replays(calls: list[tuple[str, int]]) -> None:
    """Whatever the executions in which the records were started, the same calls never fail."""
    rows, counts, execution = [], dict[str, int](), 1
    for seq, (name, step) in enumerate(calls, 1):
        execution += step
        counts[name] = counts.get(name, 0) + 1
        rows.append(record(name, count=counts[name], seq=seq, execution=execution))
    core = replay(rows[::-1])
    assert [call(core, name) for name, _ in calls] == rows
    assert not core.replaying(core.root)
    core.check_end()


def test_replaying_until_the_last_record_is_met() -> None:
    """OPS-02."""
    core = replay(journal("a", "b"))
    seen = [core.replaying(core.root)]
    for name in ("a", "new", "b", "c"):
        call(core, name)
        seen.append(core.replaying(core.root))
    assert seen == [True, True, True, False, False]


def test_meeting_a_record_twice_changes_nothing() -> None:
    core = replay(journal("a", "b"))
    row = core.records[Identity("", "do", "a", 1)]
    assert core.meet(core.root, row.identity) is row
    assert core.meet(core.root, row.identity) is row
    assert core.root.unmet == 1


# Stopping -------------------------------------------------------------------------------------------------------------


def suspend(core: Replay) -> None:
    core.enter(core.root, "sleep", "nap")
    core.unwind(Unwind(Suspend(None, "nap-1")))


def test_a_stop_is_sticky_while_it_is_on_its_way() -> None:
    """Design 6: in a finally every durable call raises the very same again."""
    core = replay()
    with pytest.raises(Unwind) as caught:
        try:
            suspend(core)
        finally:
            core.enter(core.root, "do", "clean")
    assert caught.value is core.stop
    assert isinstance(caught.value.outcome, Suspend)


def test_a_swallowed_suspension_is_known_at_the_next_call() -> None:
    """ENG-02."""
    core = replay()
    with suppress(BaseException):
        suspend(core)
    with pytest.raises(Unwind) as caught:
        core.enter(core.root, "do", "after")
    error = blocked(caught.value)
    assert isinstance(error, SuspensionSwallowed)
    assert "suspended at nap-1" in str(error) and "do 'after'" in str(error)


@pytest.mark.parametrize("how", ["in its own handler", "wrapped", "from a nested function"])
def test_on_its_way_is_seen_through_contexts(how: str) -> None:
    core = replay()

    def nested() -> None:
        try:
            suspend(core)
        except BaseException:
            core.enter(core.root, "do", "clean")

    with pytest.raises(BaseException) as caught:
        if how == "from a nested function":
            nested()
        try:
            suspend(core)
        except BaseException:
            if how == "wrapped":
                try:
                    raise ValueError
                except ValueError:
                    core.enter(core.root, "do", "clean")
            core.enter(core.root, "do", "clean")
    assert isinstance(caught.value, Unwind) and isinstance(caught.value.outcome, Suspend)


def test_an_outer_handler_does_not_hide_the_swallowing() -> None:
    """ENG-02: another error that is being handled is not the suspension."""
    core = replay()
    with pytest.raises(Unwind) as caught:
        try:
            raise ValueError
        except ValueError:
            with suppress(BaseException):
                suspend(core)
            core.enter(core.root, "do", "after")
    assert isinstance(blocked(caught.value), SuspensionSwallowed)


def test_nothing_is_reserved_while_stopping() -> None:
    core = replay()
    with suppress(BaseException):
        suspend(core)
    with suppress(BaseException):
        core.enter(core.root, "do", "after")
    assert core.root.counts == {("sleep", "nap"): 1}


def test_a_block_is_not_taken_for_a_swallowed_suspension() -> None:
    """Design 6: NonDeterminismError is sticky like a suspension, and stays the reason."""
    core = replay([record("load")])
    with suppress(BaseException):
        call(core, "load", "sleep")
    for _ in range(3):
        with pytest.raises(Unwind) as caught:
            core.enter(core.root, "do", "after")
        assert isinstance(blocked(caught.value), NonDeterminismError)


@pytest.mark.parametrize("what", ["suspension", "refusal", "changed"])
def test_code_that_never_stops_calling_is_given_up(what: str) -> None:
    """Design 6: after 100 refused calls."""
    given_up: list[Exception] = []

    class Ended(BaseException):
        pass

    def give_up(error: Exception) -> None:
        given_up.append(error)
        raise Ended

    core = replay([record("load")], give_up=give_up)
    with suppress(BaseException):
        if what == "suspension":
            suspend(core)
        elif what == "refusal":
            core.refuse("no")
        else:
            call(core, "load", "sleep")
    calls = 0
    with pytest.raises(Ended):
        while True:
            calls += 1
            assert calls < 10 * MAX_REFUSED_CALLS
            try:
                core.enter(core.root, "do", "again")
            except (Unwind, InvalidDurableCall):
                pass
    assert calls == MAX_REFUSED_CALLS + 1
    expected = {"suspension": SuspensionSwallowed, "refusal": InvalidDurableCall, "changed": NonDeterminismError}
    assert isinstance(given_up[0], expected[what])


# Refusals -------------------------------------------------------------------------------------------------------------

REFUSALS: dict[str, tuple[Callable[[Replay], Any], dict[str, Any]]] = {
    "inside the body of step 'outer-1'": (
        lambda core: setattr(core.root, "busy", Identity("", "do", "outer", 1)),
        {},
    ),
    "another thread": (lambda core: None, {"thread": threading.get_ident}),
    "inside atomic() on 'default'": (lambda core: None, {"open_block": lambda scope: "atomic() on 'default'"}),
}


@pytest.mark.parametrize("text", REFUSALS)
@pytest.mark.parametrize("how", ["enter", "guard"])
def test_refusals_are_sticky(text: str, how: str) -> None:
    """ENG-10: named, and raised again by every later call, though its cause is gone."""
    prepare, options = REFUSALS[text]
    core = replay(**options)
    prepare(core)

    def durable() -> None:
        if how == "enter":
            core.enter(core.root, "do", "inner")
        else:
            core.guard(core.root, "do 'inner'")

    with pytest.raises(InvalidDurableCall) as caught:
        durable()
    assert text in str(caught.value) and "do 'inner'" in str(caught.value) and "shop/order-1" in str(caught.value)
    core.root.busy, core._thread, core._open_block = None, lambda: 1, lambda scope: ""
    with pytest.raises(InvalidDurableCall) as again:
        durable()
    assert again.value is caught.value is core.refusal
    assert core.root.counts == {}


def test_the_core_is_plain_python() -> None:
    """Design 3: engine/replay imports neither Django nor storage."""
    module = sys.modules[Replay.__module__]
    names = {getattr(value, "__module__", "") or "" for value in vars(module).values()}
    assert not [name for name in names if name.startswith(("django", "durableflow.models"))]
