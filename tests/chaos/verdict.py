"""The judgement: plain data in, counts and reasons out; no database, no Django.

What is a repetition? A body may start again as long as no checkpoint of it is committed. When that was cannot be read
from clocks: a checkpoint's time is taken before its commit. It follows from the order of the ledger, which is one file
that all processes append to:

1. Each start has a random nonce, and what the body returns (or the message of its error) is that nonce. So the
   checkpoint, and the instance's output, tell which start was checkpointed. Only the holder of the lease can write a
   checkpoint, and it held the lease from before that start until the commit. So whoever starts the body after that
   line has either claimed the instance after the commit, or runs beside the holder of the lease: **a start of the same
   step and run after the checkpointed start is a repetition.** Starts before it are attempts that were interrupted.
2. A step begins only when the one before it has its checkpoint. So **a start of a step after a start of a later step**
   is a repetition too, whatever the tables say now: this finds a checkpoint that was lost and written anew.
3. Each start tells which nonce the program had of the step before. If the checkpoint says another one now, a committed
   checkpoint was lost.

A process that was frozen for longer than the lease may be between the claim and the first line of a body: what it then
starts is a start that nobody can forbid (promise 3). So the first start of each of its threads after the thaw counts as an
``overlap``, not as a repetition, if it would be one.

A failure that ended the instance is a checkpoint too: a start after it must come after a person's ``retry``. After a
``terminate`` no step is recorded, and at most the body starts that was on its way.

Atomic steps: exactly one row, and it is the checkpoint's. Steps with ``retries=0``: at most one start. Events: each
payload once, in the order sent, in the instance's output; each row consumed by a step of its own. Limited instances: of the
bodies that ran to their end, in processes that were not frozen meanwhile, no more than the limit between a start and its
end at any line.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.support.ledger import Ledger

BODIES = frozenset({"do", "flaky", "atomic", "once", "caught", "breaks", "child"})
ARMS = "ab"
"""The branches of a fork are steps of its name with one of these behind it, side by side."""


@dataclass(frozen=True)
class Line:
    """One line of the ledger. ``what``: start or end of a body; retry, resumed and terminated, paused: what a person did to the
    instance, before and after it was done; frozen, thawed: what was done to the process, ``seconds`` long, before it was done."""

    what: str
    instance: str = ""
    run: int = 1
    step: str = ""
    attempt: int = 0
    nonce: str = ""
    seen: Any = ""
    pid: int = 0
    thread: int = 0
    seconds: float = 0


def write(ledger: str, line: Line) -> None:
    """Append a line."""
    Ledger(ledger).add(json.dumps(asdict(line)))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the tables say of one instance at the end.

    ``steps``: names and kinds in the order of the program. ``checkpoints``: the nonce in the record of each step that
    has a body; '' where it failed with WorkerLost. ``events``: payload and consumer of each event row. ``rows``: step
    and nonce of what atomic bodies wrote. ``stuck``: what an ended instance must not have, in words. ``failed``: step and
    nonce of each failure that was recorded for good. ``after_end``: how many records of steps follow its termination.
    """

    instance: str
    status: str
    why: str = ""
    output: Sequence[Any] | None
    steps: Sequence[tuple[str, str]]
    checkpoints: Mapping[str, str]
    events: Sequence[tuple[Any, str]]
    rows: Sequence[tuple[str, str]]
    stuck: Sequence[str] = ()
    limited: bool = False
    doomed: bool = False
    failed: Sequence[tuple[str, str]] = ()
    after_end: int = 0


@dataclass
class Verdict:
    """Counts, and a sentence for each thing that is wrong. ``lost``: instances that did not complete, or lost
    something; ``repeated``: starts of finished bodies, and further rows of atomic ones; ``twice``: events applied more
    than once; ``stuck``: rows that hold a lease, a slot or a wake-up after their end; ``over``: starts beyond the limit of
    a limited workflow."""

    complete: int = 0
    lost: int = 0
    repeated: int = 0
    twice: int = 0
    stuck: int = 0
    over: int = 0
    once_lost: int = 0
    terminated: int = 0
    overlaps: int = 0
    interrupted: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems and not (self.lost or self.repeated or self.twice or self.stuck or self.over)


def judge(
    facts: Iterable[Facts],
    ledger: Sequence[Line],
    notes: Sequence[Any],
    lost: str,
    slots: int | None = None,
    lease: float = float("inf"),
) -> Verdict:
    """Judge all instances. ``notes``: the payloads that each was sent, in order; ``lost``: the output of a step that
    starts once and whose worker died; ``slots``: how many limited instances may run at a time; ``lease``: seconds of
    freezing from which on two executions may overlap."""
    lines: dict[str, list[Line]] = defaultdict(list)
    for line in ledger:
        if line.instance:
            lines[line.instance].append(line)
    verdict = Verdict()
    facts = list(facts)
    woken = _woken(ledger, lease)
    if slots is not None:
        _slots({instance.instance for instance in facts if instance.limited}, ledger, slots, verdict)
    for instance in facts:
        _Case(instance, lines.pop(instance.instance, []), notes, lost, verdict, woken).judge()
    for stranger in lines:
        verdict.problems.append(f"{stranger}: bodies ran of an instance that does not exist")
        verdict.lost += 1
    return verdict


def _woken(ledger: Sequence[Line], lease: float) -> set[str]:
    """The nonces of the starts that are the first line of a thread since its process was thawed after more than a lease."""
    thawed: dict[int, set[int]] = {}  # which threads have written since
    found = set()
    for line in ledger:
        if line.what == "thawed" and line.seconds >= lease:
            thawed[line.pid] = set()
        elif line.pid in thawed and line.what in ("start", "end") and line.thread not in thawed[line.pid]:
            thawed[line.pid].add(line.thread)
            if line.what == "start":
                found.add(line.nonce)
    return found


def _slots(limited: set[str], ledger: Sequence[Line], slots: int, verdict: Verdict) -> None:
    """A body that was killed has no end and is left out: it is not known when it stopped. So is one whose process was
    frozen between its claim and its end."""
    ended = {line.nonce for line in ledger if line.what == "end"} - _frozen(ledger)
    running: dict[str, str] = {}  # branches of one instance hold one slot, and a child's body none of its parent's
    for line in ledger:
        if line.instance in limited and line.nonce in ended and not line.step.endswith("-child"):
            if line.what != "start":
                running.pop(line.nonce, None)
                continue
            running[line.nonce] = line.instance
            if len(set(running.values())) > slots:
                verdict.over += 1
                others = len(set(running.values())) - 1
                verdict.problems.append(f"{line.instance}: {line.step} runs beside {others} others of {slots} slots")


def _frozen(ledger: Sequence[Line]) -> set[str]:
    """The nonces of the bodies during which their process was frozen, or right before which it was."""
    running: dict[int, set[str]] = defaultdict(set)
    found: set[str] = set()
    for line in ledger:
        if line.what == "start":
            running[line.pid].add(line.nonce)
        elif line.what == "end":
            running[line.pid].discard(line.nonce)
        elif line.what == "frozen":
            found |= running[line.pid]
    return found | _woken(ledger, 0)


class _Case:
    def __init__(
        self, facts: Facts, lines: list[Line], notes: Sequence[Any], lost: str, verdict: Verdict, woken: set[str]
    ) -> None:
        self.facts, self.notes, self.lost, self.verdict = facts, notes, lost, verdict
        self.lines, self.woken = lines, woken
        self.starts = [line for line in lines if line.what == "start"]
        self.ended = {line.nonce for line in lines if line.what == "end"}
        self.is_lost = False

    def judge(self) -> None:
        facts, verdict = self.facts, self.verdict
        for what in facts.stuck:
            verdict.stuck += 1
            self._wrong(what)
        repeated = self._after_later_steps() | self._after_failures() | self._while_paused()
        if any(line.what == "terminated" for line in self.lines):
            self._terminated()
            verdict.repeated += self._excuse(repeated)
            return
        output = facts.output
        if facts.status == "complete" and output is not None and len(output) == len(facts.steps):
            verdict.complete += not facts.doomed
            if not facts.doomed:  # an event that came after its termination was refused
                self._events(output)
            for position, (name, kind) in enumerate(facts.steps):
                before = output[position - 1] if position else ""
                if kind in BODIES:
                    repeated |= self._body(name, kind, output[position], before)
                elif kind == "fork":
                    for arm, nonce in zip(ARMS, output[position], strict=True):
                        repeated |= self._body(f"{name}{arm}", "do", nonce, before)
                elif kind == "approval" and output[position] != f"yes {name}":
                    self._lose(f"{name}: the decision reads {output[position]!r}")
        else:
            self._lose(f"is {facts.status} {facts.why}".rstrip())
        verdict.repeated += self._excuse(repeated)
        verdict.lost += self.is_lost

    def _excuse(self, repeated: set[str]) -> int:
        """How many of these starts could have been avoided."""
        self.verdict.overlaps += len(repeated & self.woken)
        return len(repeated - self.woken)

    def _terminated(self) -> None:
        """At most those bodies start that were on their way, and nothing is recorded."""
        facts = self.facts
        if facts.status != "terminated" or not facts.doomed:
            self._wrong(f"is {facts.status}, was terminated")
            self.verdict.lost += 1
            return
        self.verdict.terminated += 1
        end = max(index for index, line in enumerate(self.lines) if line.what == "terminated")
        late = [
            line
            for line in self.lines[end:]
            # A child ends a moment after its parent.
            if line.what == "start" and line.nonce not in self.woken and not line.step.endswith("-child")
        ]
        most = len(ARMS) if any(kind == "fork" for _name, kind in facts.steps) else 1
        if len(late) > most or facts.after_end:
            self.verdict.repeated += len(late)
            self._wrong(f"after its termination {len(late)} bodies started and {facts.after_end} steps were recorded")

    def _after_failures(self) -> set[str]:
        """Starts after a failure that ended the instance, before a person had it retried."""
        found = set()
        for step, nonce in self.facts.failed:
            begun = next((at for at, line in enumerate(self.lines) if line.nonce == nonce), len(self.lines))
            for line in self.lines[begun + 1 :]:
                if line.what == "retry":
                    break
                if line.what == "start" and line.step == step:
                    found.add(line.nonce)
                    self._repeated({line.nonce}, f"{step}: started again after it had failed for good")
        return found

    def _while_paused(self) -> set[str]:
        """Starts while the instance was paused (case LIF-05)."""
        found, paused = set(), False
        for line in self.lines:
            paused = line.what == "paused" or (paused and line.what != "resumed")
            # A child goes on when its parent is paused.
            if paused and line.what == "start" and not line.step.endswith("-child"):
                found.add(line.nonce)
                self._repeated({line.nonce}, f"{line.step}: started while the instance was paused")
        return found

    def _repeated(self, nonces: set[str], what: str) -> None:
        if nonces - self.woken:
            self._wrong(what)

    def _after_later_steps(self) -> set[str]:
        """Rule 2, for unfinished instances too."""
        position = {name: index for index, (name, _kind) in enumerate(self.facts.steps)}
        position |= {f"{name}{arm}": index for name, index in position.items() for arm in ARMS}
        latest: dict[int, int] = defaultdict(lambda: -1)
        found = set()
        for start in self.starts:
            here = position[start.step]
            if here < latest[start.run]:
                found.add(start.nonce)
                self._repeated({start.nonce}, f"{start.step}: attempt {start.attempt} started after a later step had")
            latest[start.run] = max(here, latest[start.run])
        return found

    def _body(self, name: str, kind: str, given: Any, before: Any) -> set[str]:
        starts = [start for start in self.starts if start.step == name]
        for start in starts:
            if start.seen != before:
                self._lose(f"{name}: saw {start.seen!r} of the step before, whose checkpoint is {before!r}")
        nonces = [start.nonce for start in starts]
        if kind == "once" and len(starts) > 1:
            self._repeated(set(nonces[1:]), f"{name}: may start once, started {len(starts)} times")
            return set(nonces[1:])
        if kind == "once" and given == self.lost:
            self.verdict.once_lost += 1
            return set()
        if self.facts.checkpoints.get(name) != given:
            self._lose(f"{name}: the record has {self.facts.checkpoints.get(name)!r}, the output {given!r}")
        if given not in nonces or given not in self.ended:
            self._lose(f"{name}: its checkpoint {given!r} comes from no body that ran to its end")
            return set()
        late = nonces[nonces.index(given) + 1 :]
        if late:
            self._repeated(set(late), f"{name}: started {len(late)} times after the start that was checkpointed")
        if kind == "atomic":
            self._rows(name, given)
        self.verdict.interrupted += len(set(nonces) - self.ended)
        return set(late)

    def _rows(self, name: str, given: Any) -> None:
        rows = [nonce for step, nonce in self.facts.rows if step == name]
        if given not in rows:
            self._lose(f"{name}: its row is lost")
        if extra := len(rows) - 1:
            self.verdict.repeated += max(extra, 0)
            self._wrong(f"{name}: {len(rows)} rows")

    def _events(self, output: Sequence[Any]) -> None:
        got = [output[index] for index, (_name, kind) in enumerate(self.facts.steps) if kind == "event"]
        consumers = [consumer for _payload, consumer in self.facts.events]
        payloads = [payload for payload, _consumer in self.facts.events]
        twice = sum((Counter(map(repr, got)) - Counter(map(repr, self.notes))).values())
        twice += sum((Counter(map(repr, payloads)) - Counter(map(repr, self.notes))).values())
        twice += sum(count - 1 for consumer, count in Counter(consumers).items() if consumer)
        if twice:
            self.verdict.twice += twice
            self._wrong(f"events: got {got}, rows {list(self.facts.events)}")
        elif got != list(self.notes) or payloads != list(self.notes) or "" in consumers:
            self._lose(f"events: got {got}, rows {list(self.facts.events)}")

    def _lose(self, what: str) -> None:
        self.is_lost = True
        self._wrong(what)

    def _wrong(self, what: str) -> None:
        self.verdict.problems.append(f"{self.facts.instance}: {what}")
