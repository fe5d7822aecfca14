"""A dry replay that goes on behind calls which have not run yet (case TST-06).

An inserted step has no value before it runs. It gets a stand-in, which may be handed on; so the recorded calls behind it are
looked at too. Where ``run`` needs to know the value, to branch on it say, the check cannot go on.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from durableflow.authoring import calls
from durableflow.authoring.group_calls import ChildCall, ChildrenCall, GatherCall, MapCall
from durableflow.core.statuses import StepKind
from durableflow.engine.dry import Dry
from durableflow.engine.journal import COMPLETE, Identity, Record
from durableflow.engine.lease import Claim
from durableflow.engine.replay import Replay, Scope

MOST_NEW: Final = 1000
"""Calls that may be new in one run: a loop that ends by what they give would never end."""
_NOTHING: Final = (calls.SleepCall, calls.SleepUntilCall)
_VALUED: Final = (calls.DoCall, calls.WaitCall, ChildCall)
_HANDED_ON: Final = (
    "__getitem__ __call__ __copy__ __deepcopy__ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ "
    "__floordiv__ __mod__ __pow__ __neg__ __pos__ __abs__ __or__ __ror__ __and__ __rand__ __xor__"
).split()
_NEEDED: Final = (
    "__bool__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __iter__ __len__ __contains__ __str__ __repr__ __format__ "
    "__int__ __float__ __index__ __reduce_ex__"
).split()


class StandIn:
    """The value of a call that has not run. What is taken out of it, or made of it, is unknown as well."""

    __slots__ = ("_check", "_of")

    def __init__(self, check: Check, of: Identity) -> None:
        self._check, self._of = check, of

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def _handed_on(self: StandIn, *args: Any, **kwargs: Any) -> StandIn:
    return self


def _needed(self: StandIn, *args: Any) -> NoReturn:
    self._check.needs(self._of)


for _name in _HANDED_ON:
    setattr(StandIn, _name, _handed_on)
for _name in _NEEDED:
    setattr(StandIn, _name, _needed)


class Check(Dry):
    """``left_out``: finished steps whose value is not known. ``guess``: a new call gives the value of the next recorded call of
    its kind, as it would if it were that call under another name.

    ``last``: the call that was answered last. ``scopes``: the last pass over each. ``stopped``: whose value ``run`` needed, and
    in which scope it did. ``missed``: the record that the program should have met in place of what it did; ``skipped_by``: the
    call to which it came without it.
    """

    def __init__(
        self, claim: Claim, cls: type[Any], records: list[Record], *, left_out: set[Identity], guess: bool
    ) -> None:
        super().__init__(claim, cls, records)
        self.left_out = left_out
        self.guess = guess
        self.last: Identity | None = None
        self.scopes: dict[str, Scope] = {}
        self.stopped: tuple[Identity, Scope] | None = None
        self.guessed: dict[Identity, Record] = {}
        self.handed_out = False
        self.missed: Record | None = None
        self.skipped_by: Identity | None = None
        self.replay.halt = self._halt  # type: ignore[method-assign]
        self.replay.skipped = self._skipped  # type: ignore[method-assign]

    def _halt(self, error: Exception, missed: Record | None = None) -> NoReturn:
        self.missed = missed
        Replay.halt(self.replay, error, missed)

    def _skipped(self, identity: Identity, missed: Record) -> NoReturn:
        self.skipped_by = identity
        Replay.skipped(self.replay, identity, missed)

    def note(self, scope: Scope, identity: Identity, call: calls.Call) -> None:
        """Also the groups of an ``async def run``, which are answered otherwise."""
        self.last, self.scopes[scope.name] = identity, scope
        super().note(scope, identity, call)

    def answer_as(self, scope: Scope, identity: Identity, call: calls.Call) -> Any:
        """As a dry replay does; but a new call that stands before recorded ones is not the end of its scope."""
        self.last, self.scopes[scope.name] = identity, scope
        known = call.kind == StepKind.PATCH or identity in self.replay.records
        if known or not self.replay.replaying(scope):
            return super().answer_as(scope, identity, call)
        self.replay.meet(scope, identity)  # stops where another kind is recorded under its name
        self.new.append(identity)
        if len(self.new) > MOST_NEW:
            self.needs(identity)
        return self._instead(scope, identity, call)

    def recorded(self, record: Record) -> Any:
        """What a finished record gives, unless that was left out."""
        if record.identity in self.left_out and record.status == COMPLETE:
            return self._stand_in(record.identity)
        return super().recorded(record)

    def _instead(self, scope: Scope, identity: Identity, call: calls.Call) -> Any:
        following = scope.first_unmet()
        if self.guess and following is not None and following.identity.kind == call.kind:
            self.guessed[identity] = following
            if following.status == COMPLETE and isinstance(call, _VALUED):
                return self._recorded(following, call)
        if isinstance(call, _NOTHING):
            return None
        if isinstance(call, GatherCall):
            return tuple(self._stand_in(identity) for _ in call.branches)
        if isinstance(call, MapCall | ChildrenCall):
            return [self._stand_in(identity) for _ in (call.items if isinstance(call, MapCall) else call.params)]
        return self._stand_in(identity)

    def _stand_in(self, identity: Identity) -> StandIn:
        self.handed_out = True
        return StandIn(self, identity)

    def needs(self, identity: Identity) -> NoReturn:
        """``run`` cannot go on without the value of ``identity``: its scope is unwound there."""
        scope = self.scope()
        if (stop := self.replay.stop or scope.stop) is not None:
            raise stop
        self.stopped = (identity, scope)
        self.suspend(scope, None, identity)
