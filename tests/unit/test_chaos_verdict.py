"""The judge of the chaos test sees what is wrong: each rule with a forged ledger or forged tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.verdict import Facts, Line, Verdict, judge

NOTES = ("a", "b")
STEPS = [("0-do", "do"), ("1-event", "event"), ("2-flaky", "flaky"), ("3-atomic", "atomic"), ("4-event", "event")]
STEPS += [("5-once", "once"), ("6-approval", "approval"), ("7-caught", "caught")]
OUTPUT = ["n0", "a", "n2", "n3", "b", "n5", "yes 6-approval", "n7"]
BEFORE = dict(zip([name for name, _ in STEPS], ["", *OUTPUT], strict=False))


def start(step: str, nonce: str, attempt: int = 1, *, run: int = 1, seen: Any = None) -> Line:
    return Line("start", "i", run, step, attempt, nonce, BEFORE[step] if seen is None else seen)


def end(step: str, nonce: str) -> Line:
    return Line("end", "i", 1, step, 1, nonce, BEFORE[step])


def ran(step: str, nonce: str) -> list[Line]:
    return [start(step, nonce), end(step, nonce)]


def ledger() -> list[Line]:
    """A good one: the flaky step fails once, the first step was interrupted once, between other lines."""
    lines = [
        start("0-do", "x0"),
        *ran("0-do", "n0"),
        *ran("2-flaky", "x2"),
        *ran("2-flaky", "n2"),
        *ran("3-atomic", "n3"),
    ]
    return [*lines, *ran("5-once", "n5"), *ran("7-caught", "n7")]


def facts(**changed: Any) -> Facts:
    good: dict[str, Any] = {
        "instance": "i",
        "status": "complete",
        "output": OUTPUT,
        "steps": STEPS,
        "checkpoints": {"0-do": "n0", "2-flaky": "n2", "3-atomic": "n3", "5-once": "n5", "7-caught": "n7"},
        "events": [("a", "1-event"), ("b", "4-event")],
        "rows": [("3-atomic", "n3")],
    }
    return Facts(**(good | changed))


def judged(lines: list[Line] | None = None, of: Facts | None = None) -> Verdict:
    return judge([of or facts()], ledger() if lines is None else lines, NOTES, "lost")


def changed_output(step: int, value: Any) -> list[Any]:
    return [*OUTPUT[:step], value, *OUTPUT[step + 1 :]]


def test_a_good_run() -> None:
    verdict = judged()
    assert verdict == Verdict(complete=1, interrupted=1)
    assert verdict.good


def after(lines: list[Line], nonce: str, *more: Line) -> list[Line]:
    """Put ``more`` behind the last line of ``nonce``."""
    last = max(index for index, line in enumerate(lines) if line.nonce == nonce)
    return [*lines[: last + 1], *more, *lines[last + 1 :]]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(after(ledger(), "n0", start("0-do", "late")), id="right after its checkpoint"),
        pytest.param([*ledger(), start("0-do", "late")], id="at the very end"),
        pytest.param([*ledger(), start("7-caught", "late")], id="the last step, whose failure is the checkpoint"),
        pytest.param(after(ledger(), "n2", start("2-flaky", "late", 3)), id="a retry of what had succeeded"),
        pytest.param(after(ledger(), "n3", start("5-once", "early")), id="a second start of what may start once"),
        pytest.param(
            # Its checkpoint was lost and written anew: the tables agree with the second start. Rule 2.
            [*(line for line in ledger() if line.nonce != "n2"), start("2-flaky", "n2"), end("2-flaky", "n2")],
            id="after a later step had started",
        ),
    ],
)  # fmt: skip
def test_a_finished_body_that_starts_again(lines: list[Line]) -> None:
    verdict = judged(lines)
    assert verdict.repeated == 1, verdict
    assert not verdict.good


def test_a_repetition_counts_in_an_unfinished_instance_too() -> None:
    verdict = judged(
        [*ran("0-do", "n0"), *ran("2-flaky", "n2"), start("0-do", "late")], facts(status="running", output=None)
    )
    assert (verdict.complete, verdict.lost, verdict.repeated) == (0, 1, 1)


def test_another_run_may_start_everything_again() -> None:
    """Of one run only: a restarted instance runs its bodies anew."""
    verdict = judged([start("7-caught", "old", run=0), *ledger()])
    assert verdict.repeated == 0


def test_a_checkpoint_that_the_program_had_and_that_says_something_else_now() -> None:
    """Rule 3."""
    lines = [replace(line, seen="n2 as it was") if line.step == "3-atomic" else line for line in ledger()]
    verdict = judged(lines)
    assert (verdict.lost, verdict.repeated, verdict.good) == (1, 0, False)


@pytest.mark.parametrize(
    ("of", "count"),
    [
        (facts(status="errored", why="WorkerLost", output=None), "lost"),
        (facts(status="paused", output=None), "lost"),
        (facts(status="missing", output=None), "lost"),
        (facts(output=OUTPUT[:-1]), "lost"),
        (facts(output=changed_output(0, "nobody")), "lost"),
        (facts(checkpoints=facts().checkpoints | {"0-do": "x0"}), "lost"),
        (facts(output=changed_output(6, "no")), "lost"),
        (facts(rows=[]), "lost"),
        (facts(rows=[("3-atomic", "another")]), "lost"),
        (facts(rows=[("3-atomic", "n3"), ("3-atomic", "another")]), "repeated"),
        (facts(output=changed_output(4, "a")), "twice"),
        (facts(events=[("a", "1-event"), ("b", "4-event"), ("b", "")]), "twice"),
        (facts(events=[("a", "1-event"), ("b", "1-event")]), "twice"),
        (facts(events=[("a", "1-event"), ("b", "")]), "lost"),
        (facts(events=[("a", "1-event")]), "lost"),
        (facts(stuck=["has ended with wake_at"]), "stuck"),
    ],
)  # fmt: skip
def test_tables_that_tell_of_a_loss(of: Facts, count: str) -> None:
    verdict = judged(of=of)
    assert getattr(verdict, count) == 1, verdict
    assert not verdict.good
    assert verdict.problems


def test_events_in_the_wrong_order_are_lost_ones() -> None:
    output = changed_output(1, "b")
    output[4] = "a"
    lines = [replace(line, seen=output[STEPS.index((line.step, line.step[2:])) - 1]) if line.step != "0-do" else line
             for line in ledger()]  # fmt: skip
    assert judged(lines, facts(output=output)).lost == 1


def test_a_lost_start_of_what_may_start_once_is_no_loss() -> None:
    lines = [line for line in ledger() if line.nonce != "n5" or line.what == "start"]
    verdict = judged(
        lines, facts(output=changed_output(5, "lost"), checkpoints=facts().checkpoints | {"5-once": "gone"})
    )
    assert verdict.good and verdict.once_lost == 1


@pytest.mark.parametrize(("slots", "over"), [(1, 1), (2, 0)])
def test_more_at_a_time_than_there_are_slots(slots: int, over: int) -> None:
    """Two that are limited, side by side; a third that was killed, and one that is not limited, do not count."""
    of = [facts(instance=name, limited=name != "free") for name in ("one", "two", "dead", "free")]
    lines = [replace(start("0-do", name), instance=name) for name in ("one", "two", "dead", "free")]
    lines += [replace(end("0-do", name), instance=name) for name in ("one", "two", "free")]
    assert judge(of, lines, NOTES, "lost", slots).over == over


def test_a_body_of_an_instance_that_is_not_there() -> None:
    verdict = judge([facts()], [*ledger(), replace(start("0-do", "x"), instance="stranger")], NOTES, "lost")
    assert (verdict.lost, verdict.good) == (1, False)


@pytest.mark.parametrize("what", ["start", "end"])
def test_a_checkpoint_without_a_body_that_ended(what: str) -> None:
    verdict = judged([line for line in ledger() if (line.nonce, line.what) != ("n3", what)])
    assert (verdict.lost, verdict.good) == (1, False)


# Frozen processes and what people do


def frozen(lines: list[Line], seconds: float, *, pid: int = 7) -> list[Line]:
    """The last of ``lines`` is written by a process that was frozen before it."""
    last = replace(lines[-1], pid=pid, thread=1)
    return [*lines[:-1], Line("frozen", pid=pid), Line("thawed", pid=pid, seconds=seconds), last]


@pytest.mark.parametrize(("seconds", "repeated", "overlaps"), [(4.9, 1, 0), (5, 0, 1)])
def test_a_start_after_a_thaw(seconds: float, repeated: int, overlaps: int) -> None:
    """Only who was frozen for longer than the lease may have been overtaken before the first line of a body."""
    lines = frozen([*ledger(), start("0-do", "late")], seconds)
    verdict = judge([facts()], lines, NOTES, "lost", lease=5)
    assert (verdict.repeated, verdict.overlaps, verdict.good) == (repeated, overlaps, not repeated)


@pytest.mark.parametrize("second", [start("0-do", "later"), start("2-flaky", "later")])
def test_the_second_start_of_a_thread_after_a_thaw(second: Line) -> None:
    lines = [*frozen([*ledger(), start("0-do", "late")], 9), replace(second, pid=7, thread=1)]
    verdict = judge([facts()], lines, NOTES, "lost", lease=5)
    assert (verdict.repeated, verdict.overlaps) == (1, 1)


def test_a_frozen_body_holds_no_slot() -> None:
    """It has lost it while it was frozen; and one that a thawed thread starts may be the next of its execution."""
    of = [facts(instance=name, limited=True) for name in ("one", "two", "three")]
    one, two, three = (replace(start("0-do", name), instance=name) for name in ("one", "two", "three"))
    ends = [replace(end("0-do", name), instance=name) for name in ("one", "two", "three")]
    one = replace(one, pid=7, thread=1)
    lines = [one, Line("frozen", pid=7), two, Line("thawed", pid=7, seconds=1), replace(three, pid=7, thread=2), *ends]
    assert judge(of, lines, NOTES, "lost", 1).over == 0
    assert judge(of, [line for line in lines if line.instance], NOTES, "lost", 1).over == 2


@pytest.mark.parametrize(
    ("retried", "repeated"), [([Line("retry", "i")], 0), ([], 1)], ids=["by a person", "by nobody"]
)  # fmt: skip
def test_what_had_failed_for_good_starts_again(retried: list[Line], repeated: int) -> None:
    """The instance had ended: only a person's retry starts the step again."""
    lines = after(ledger(), "n2", *ran("2-flaky", "again"))
    at = next(index for index, line in enumerate(lines) if line.nonce == "again")
    lines = [*lines[:at], *retried, *lines[at:]]
    lines = [replace(line, seen="again") if line.step == "3-atomic" else line for line in lines]
    output = changed_output(2, "again")
    of = facts(output=output, checkpoints=facts().checkpoints | {"2-flaky": "again"}, failed=[("2-flaky", "n2")])
    verdict = judged(lines, of)
    assert (verdict.repeated, verdict.lost) == (repeated, 0)


GONE = facts(status="terminated", output=None, doomed=True)


@pytest.mark.parametrize(
    ("of", "late", "good"),
    [
        pytest.param(GONE, [], True, id="at once"),
        pytest.param(GONE, [start("2-flaky", "n2")], True, id="one body was on its way"),
        pytest.param(GONE, [*ran("2-flaky", "n2"), start("3-atomic", "n3")], False, id="it goes on"),
        pytest.param(replace(GONE, after_end=1), [], False, id="a step was recorded"),
        pytest.param(replace(GONE, status="complete", output=OUTPUT), [], False, id="it completed all the same"),
        pytest.param(replace(GONE, status="waiting"), [], False, id="it waits"),
        pytest.param(replace(GONE, doomed=False), [], False, id="nobody was to do that"),
        pytest.param(replace(GONE, stuck=["has ended with wake_at"]), [], False, id="it is still due"),
    ],
)
def test_a_terminated_instance(of: Facts, late: list[Line], good: bool) -> None:
    verdict = judged([*ran("0-do", "n0"), Line("terminated", "i"), *late], of)
    assert verdict.good is good, verdict
    assert verdict.complete == 0


def test_a_doomed_instance_that_nobody_terminated_must_complete() -> None:
    assert judged(of=facts(doomed=True)) == Verdict(complete=0, interrupted=1)
    assert judged(of=replace(GONE, status="running")).lost == 1


FORKED = [("0-do", "do"), ("1-fork", "fork"), ("2-child", "child")]
FORK_OUTPUT: list[Any] = ["n0", ["na", "nb"], "nc"]


def forked(*more: Line, **changed: Any) -> Verdict:
    """A program with branches and a child; the branches write in any order."""

    def line(what: str, step: str, nonce: str, seen: Any) -> Line:
        return Line(what, "i", 1, step, 1, nonce, seen)

    lines = [line(what, "0-do", "n0", "") for what in ("start", "end")]
    for what in ("start", "end"):
        lines += [line(what, f"1-fork{arm}", f"n{arm}", "n0") for arm in "ba"]
    lines += [line(what, "2-child", "nc", ["na", "nb"]) for what in ("start", "end")]
    checkpoints = {"0-do": "n0", "1-forka": "na", "1-forkb": "nb", "2-child": "nc"}
    good: dict[str, Any] = {
        "steps": FORKED,
        "output": FORK_OUTPUT,
        "checkpoints": checkpoints,
        "rows": [],
        "events": [],
    }
    return judge([facts(**(good | changed))], [*lines, *more], (), "lost")


def test_branches_side_by_side_are_good() -> None:
    verdict = forked()
    assert (verdict.problems, verdict.complete, verdict.good) == ([], 1, True)


@pytest.mark.parametrize("step", ["1-forka", "2-child"])
def test_a_body_of_a_branch_or_a_child_that_starts_again_is_a_repetition(step: str) -> None:
    before = "n0" if step == "1-forka" else ["na", "nb"]
    assert forked(Line("start", "i", 1, step, 2, "late", before)).repeated == 1


def test_a_lost_checkpoint_of_a_branch_is_seen() -> None:
    verdict = forked(output=["n0", ["na", "other"], "nc"])
    assert (verdict.lost, verdict.good) == (1, False)


@pytest.mark.parametrize(
    ("after", "repeated"),
    [
        ([Line("paused", "i")], 2),
        ([Line("paused", "i"), Line("resumed", "i")], 0),
    ],
)
def test_a_body_that_starts_while_its_instance_is_paused(after: list[Line], repeated: int) -> None:
    """LIF-05: the last two bodies begin after the pause."""
    lines = ledger()
    at = next(index for index, line in enumerate(lines) if line.step == "5-once")
    verdict = judged([*lines[:at], *after, *lines[at:]])
    assert (verdict.repeated, verdict.good) == (repeated, not repeated)


def test_a_child_goes_on_while_its_parent_is_paused() -> None:
    steps, lines = [("0-child", "child")], [Line("paused", "i"), *ran_child(), Line("resumed", "i")]
    of = facts(steps=steps, output=["n0"], checkpoints={"0-child": "n0"}, events=[], rows=[])
    assert judge([of], lines, [], "lost").good


def ran_child() -> list[Line]:
    return [Line("start", "i", 1, "0-child", 1, "n0", ""), Line("end", "i", 1, "0-child", 1, "n0", "")]
