"""Which steps and groups have ended a run, by the error that has left it (design 9, ``retry``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from durableflow.engine.journal import Identity

Known = Iterable[tuple[BaseException, Identity]]
"""Errors, and where each of them comes from."""


def failed_steps(raised: BaseException, failed: Known) -> list[Identity]:
    """The steps whose failure ended the run: those of the error itself or of a group's members, else the nearest one
    among its causes and contexts. A failure that was caught before is only the context of what came after it, and
    stays caught (design 9)."""
    return _nearest(raised, {id(error): [identity] for error, identity in failed}, set(), through=False) or []


def broken_groups(raised: BaseException, broken: Known, failed: Known) -> list[Identity]:
    """The groups whose failure ended the run, found in the same way. ``broken``: what branches have raised, and in which group;
    ``failed``: the failures of steps.

    Most groups fail by a step, which is known by itself; but what a branch itself has raised is recorded nowhere else.
    """
    groups: dict[int, list[Identity]] = {}
    for error, identity in broken:
        groups.setdefault(id(error), []).append(identity)
    if not groups:
        return []
    for error, _step in failed:
        groups.setdefault(id(error), [])  # what was caught before it stays caught
    return _nearest(raised, groups, set(), through=True) or []


def _nearest(
    raised: BaseException, known: Mapping[int, list[Identity]], seen: set[int], *, through: bool
) -> list[Identity] | None:
    """What is known of the error, or of the first of its causes and contexts of which anything is; None: of none. ``through``: also
    of the members of a group that is known itself."""
    todo: list[BaseException | None] = [raised]
    while todo:
        error = todo.pop()
        # One that is taken out of its group, and raised, has the group as its context: nothing is looked at twice.
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        found = [] if id(error) not in known else [known[id(error)]]
        if isinstance(error, BaseExceptionGroup) and (through or not found):
            members = [_nearest(member, known, seen, through=through) for member in error.exceptions]
            found += [member for member in members if member is not None]
        if found:
            return list(dict.fromkeys(identity for some in found for identity in some))
        todo += [error.__context__, error.__cause__]
    return None
