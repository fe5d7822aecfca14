"""One run: start, disturb, let it calm down, stop, judge."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from django.core.management import call_command
from django.db import InterfaceError, OperationalError, connections

from durableflow.core.statuses import Trigger
from durableflow.models import WorkflowInstance
from tests.chaos.database import Database
from tests.chaos.driver import Driver
from tests.chaos.environment import environment
from tests.chaos.facts import collect, leaked_slots, make_table, read_ledger
from tests.chaos.fleet import Fleet, Service
from tests.chaos.verdict import Verdict, judge
from tests.chaos.workflows import LOST, NOTES, SLOTS

KILL_EVERY: Final = 1.0
SHAKE_EVERY: Final = 7.0
FREEZE_EVERY: Final = 4.0
REPLACE_EVERY: Final = 9.0
DOOMED_SHARE: Final = 0.1
"""Instances that are terminated, besides those that are to complete."""
CREATE_SHARE: Final = 0.8
START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 60.0
SAY_EVERY: Final = 5.0
TURN: Final = 0.05
SHOWN: Final = 40


def say(words: str) -> None:
    """A line for people."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


@dataclass
class Hand:
    """What is done to the run each so many seconds, first after that time."""

    every: float
    do: Callable[[], None]
    at: float = field(init=False)

    def __post_init__(self) -> None:
        self.at = time.monotonic() + self.every

    def act(self, now: float) -> None:
        """Do it if it is time."""
        if now >= self.at:
            self.do()
            self.at = now + self.every


@dataclass
class Run:
    """The parts of a run."""

    options: argparse.Namespace
    place: Database
    fleet: Fleet
    driver: Driver
    begun: float = field(default_factory=time.monotonic)
    _said: float = 0.0
    _complete: int = 0

    def warm_up(self) -> None:
        """Until every cluster says that it runs."""
        self.fleet.start()
        end = time.monotonic() + START_SECONDS
        for service in self.fleet.services:
            while " running." not in service.log.read_text(errors="replace"):
                if time.monotonic() > end:
                    raise RuntimeError(f"cluster {service.name} does not start; its log is {service.log}")
                time.sleep(TURN)

    def disturb(self) -> None:
        """Kill and restart until the time is over or there is nothing left to do."""
        begun = now = time.monotonic()
        hands = [
            Hand(KILL_EVERY, self.fleet.kill_one),
            Hand(FREEZE_EVERY, self.fleet.freeze_one),
            Hand(REPLACE_EVERY, self.fleet.replace_one),
            Hand(SHAKE_EVERY, self.place.shake),
        ]
        restarts = [
            begun + self.options.seconds * (n + 1) / (self.options.restarts + 1) for n in range(self.options.restarts)
        ]
        while now < begun + self.options.seconds and not (self.driver.done and self.finished()):
            self.turn("kills")
            now = time.monotonic()
            for hand in hands:
                hand.act(now)
            if restarts and now >= restarts[0]:
                restarts.pop(0)
                self.place.restart()

    def calm_down(self) -> bool:
        """Until all instances have ended; False if for a while none does: a slow machine may take as long as it needs."""
        ended, since = self._complete, time.monotonic()
        while not (self.driver.done and self.finished()):
            if self._complete != ended:
                ended, since = self._complete, time.monotonic()
            if time.monotonic() - since > self.options.calm:
                return False
            self.turn("calm")
        return True

    def turn(self, phase: str) -> None:
        """What is done all the time."""
        if self.driver.error is not None:
            raise self.driver.error
        self.fleet.tend()
        time.sleep(TURN)
        if time.monotonic() - self._said >= SAY_EVERY:
            self._said = time.monotonic()
            self.finished()
            kills = " ".join(f"{role} {count}" for role, count in sorted(self.fleet.kills.items()))
            done = " ".join(f"{what} {count}" for what, count in sorted(self.place.done.items()))
            say(f"{time.monotonic() - self.begun:6.0f} s  {phase:5}  created {len(self.driver.created)}  ended {self._complete}"
                f"  | killed: {kills or 'nobody'} | database: {done or '-'}")  # fmt: skip

    def finished(self) -> bool:
        """Whether every instance has ended; one that has failed is to be retried."""
        ends = (WorkflowInstance.Status.COMPLETE, WorkflowInstance.Status.TERMINATED)
        try:
            rows = WorkflowInstance.objects.filter(status__in=ends)
            self._complete = rows.filter(trigger=Trigger.CODE).count()
            children = WorkflowInstance.objects.filter(trigger=Trigger.PARENT, finished=None).exists()
        except (OperationalError, InterfaceError):
            connections.close_all()
            return False
        return self._complete == self.driver.total and not children


def run(options: argparse.Namespace, place: Database, dice: random.Random) -> int:
    """Do it all; the exit status."""
    say(
        f"chaos on {options.database}: {options.clusters} clusters, {options.instances} instances, {options.seconds:g} s "
        f"of kills; --seed {options.seed}; ledger and logs in {options.logs}"
    )
    call_command("migrate", verbosity=0)
    make_table()
    ledger = (options.logs / "ledger").resolve()
    # Unlike those of any other run on this machine: who is found by the name is killed.
    names = [f"c{number}-{uuid4().hex[:8]}" for number in range(options.clusters)]
    services = [
        Service(name, options.logs / f"cluster{number}.log", environment(options, place.url, number))
        for number, name in enumerate(names)
    ]
    doomed = max(round(options.instances * DOOMED_SHARE), 1)
    seconds = options.seconds * CREATE_SHARE
    driver = Driver(options.instances, doomed, seconds, str(ledger), random.Random(options.seed))
    it = Run(options, place, Fleet(services, dice, str(ledger), options.lease), driver)
    try:
        it.warm_up()
        with driver.acting():
            it.disturb()
            calm = it.calm_down()
        it.fleet.stop(STOP_SECONDS)
    finally:
        it.fleet.kill_all()
    facts = collect(driver.created, driver.doomed)
    verdict = judge(facts, read_ledger(ledger), NOTES, LOST, SLOTS, options.lease)
    it.fleet.problems += leaked_slots()
    if not calm:
        it.fleet.problems.append(f"not all instances ended, and none did for {options.calm:g} s")
    return report(it, verdict)


def report(it: Run, verdict: Verdict) -> int:
    """Say what is wrong, and the JSON; the exit status."""
    problems = [*it.fleet.problems, *verdict.problems]
    for problem in problems[:SHOWN]:
        say(f"WRONG: {problem}")
    if len(problems) > SHOWN:
        say(f"... and {len(problems) - SHOWN} more")
    good = verdict.good and not problems and verdict.complete == it.options.instances
    numbers = {
        "complete": verdict.complete,
        "lost": verdict.lost + it.driver.total - len(it.driver.created),
        "repeated": verdict.repeated,
        "twice": verdict.twice,
        "stuck": verdict.stuck,
        "over": verdict.over,
        "orphans": it.fleet.orphans,
        "instances": it.options.instances,
        "database": it.options.database,
        "clusters": it.options.clusters,
        "kills": dict(sorted(it.fleet.kills.items())),
        "frozen": dict(sorted(it.fleet.frozen.items())),
        "cluster_restarts": it.fleet.starts,
        "cluster_replacements": it.fleet.replaced,
        "disturbances": dict(sorted(it.place.done.items())),
        "interrupted_bodies": verdict.interrupted,
        "once_lost": verdict.once_lost,
        "overlaps": verdict.overlaps,
        "terminated": verdict.terminated,
        "driver": dict(sorted(it.driver.did.items())),
        "problems": len(problems),
        "seconds": round(time.monotonic() - it.begun, 1),
        "seed": it.options.seed,
    }
    say(json.dumps(numbers))
    return 0 if good else 1
