"""From what was found to what it means, in words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from django.db import Error
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durableflow.core.outages import passes
from durableflow.core.spans import span
from durableflow.core.statuses import HeartbeatKind
from durableflow.health.state import MOST_COUNTED, Due, Health, Level, Reason

_MISSING: Final = ("42P01", "42703", "3F000")
"""SQLSTATEs: no such table, column, schema."""


def reasons(found: Health) -> list[Reason]:
    """Why it is not ok, the gravest first."""
    return sorted(_reasons(found), key=lambda reason: reason.level is not Level.CRITICAL)


def _reasons(found: Health) -> Iterator[Reason]:
    if found.workers == 0 and not found.between_drains:
        yield _no_worker(found)
    due = found.oldest_due
    if due is not None and due.seconds > found.terms.warning:
        level = Level.CRITICAL if due.seconds > found.terms.critical else Level.WARNING
        yield Reason(level, "overdue", _overdue(due))
    if found.undelivered is not None and found.undelivered > found.terms.undelivered:
        level = Level.CRITICAL if found.undelivered > found.terms.critical else Level.WARNING
        text = _("A sent event or decision has waited for %(time)s to be passed on.") % {"time": ago(found.undelivered)}
        yield Reason(level, "undelivered", text)
    if found.blocked:
        text = ngettext(
            "%(n)s instance is blocked and needs a person.",
            "%(n)s instances are blocked and need a person.",
            found.blocked,
        )
        yield Reason(Level.WARNING, "blocked", text % {"n": number(found.blocked)})


def _no_worker(found: Health) -> Reason:
    said = [_("No worker is running.")]
    if found.last_seen is None:
        said.append(_("None has been seen for a day or longer."))
    else:
        said.append(_("The last one was seen %(time)s ago.") % {"time": ago(found.last_seen)})
    due = found.oldest_due
    if due is None:
        said.append(_("Nothing is due now."))
        return Reason(Level.WARNING, "no_worker", " ".join(said))
    if due.seconds <= found.terms.warning:
        said.append(_overdue(due))
    return Reason(Level.CRITICAL, "no_worker", " ".join(said))


def _overdue(due: Due) -> str:
    return _("%(instance)s has been due for %(time)s and nobody has taken it.") % {
        "instance": due.label,
        "time": ago(due.seconds),
    }


def cure(found: Health) -> str:
    """What to do when due work finds no worker, as a sentence."""
    if any(process.kind is HeartbeatKind.DRAIN for process in found.processes[:1]):
        return _("See whether the scheduler that calls durableflow.drain() still runs.")
    if found.workers:
        return _("See whether the workers are busy or stuck: manage.py durableflow health tells.")
    return _("Start manage.py durableflow_cluster, or whatever executes workflows in this project.")


def ago(seconds: float) -> str:
    """A duration for people, in whole seconds."""
    whole = round(seconds)
    return _("%(n)s s") % {"n": whole} if whole < 60 else span(timedelta(seconds=whole))


def number(count: int) -> str:
    """A count for people: ``1000+`` where counting stopped."""
    return f"{MOST_COUNTED}+" if count > MOST_COUNTED else str(count)


def database_text(using: str, error: Error) -> str:
    """One line about a database that does not answer."""
    line = " ".join(str(error).split()) or type(error).__name__
    if passes(error):
        return _("The database %(alias)r does not answer: %(error)s") % {"alias": using, "error": line}
    if getattr(error.__cause__, "sqlstate", None) in _MISSING or line.startswith(("no such table", "no such column")):
        return _("The tables of durableflow in the database %(alias)r are missing or old, run migrate: %(error)s") % {
            "alias": using,
            "error": line,
        }
    return _("The database %(alias)r cannot be asked: %(error)s") % {"alias": using, "error": line}
