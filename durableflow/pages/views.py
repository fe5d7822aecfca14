"""The page behind a decision link (design 8, case SEC-06)."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy as _
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect

from durableflow.core.statuses import Via
from durableflow.models import PendingEvent, links
from durableflow.pages.decide import DecidePage

PROBLEMS: dict[int, tuple[Any, Any]] = {
    403: (
        _("This link is not valid"),
        _("It was changed, was made for somebody else, or you may not decide this any more."),
    ),
    410: (_("This link has expired"), _("Ask for a new one, or decide in the admin if you have access to it.")),
}


@method_decorator([never_cache, csrf_protect], name="dispatch")
class DecideLinkView(View):
    """Shows one wait to the one person for whom the link was made, after login; POST decides it.

    GET and HEAD change nothing, so a mail scanner cannot decide. 403: not our link, another person's link, or no right
    (any more); 410: expired or gone; 409: somebody was faster. Staff and others alike.
    """

    http_method_names = ["get", "head", "post"]

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Check the link, then the person, then the person's right; none of the refusals shows data."""
        if request.method is None or request.method.lower() not in self.http_method_names:
            return self.http_method_not_allowed(request)
        try:
            content = links.read(kwargs["token"])
        except links.ExpiredLink:
            return problem(request, 410)
        except links.BadLink:
            return problem(request, 403)
        user: Any = request.user
        if not user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        if str(user.pk) != content.user:
            return problem(request, 403)
        pending = PendingEvent.objects.filter(pk=content.pending_event).select_related("instance").first()
        if pending is None:
            return problem(request, 410)
        if not pending.may_decide(user):
            return problem(request, 403)
        self.page = DecidePage(pending, user, Via.LINK)
        return super().dispatch(request, *args, **kwargs)

    def get(self, request: HttpRequest, token: str) -> HttpResponse:
        """Show the wait."""
        return self.show(200)

    def post(self, request: HttpRequest, token: str) -> HttpResponse:
        """Decide it, then show it decided (by a redirect, so that a reload posts nothing)."""
        status = self.page.submit(request.POST)
        return HttpResponseRedirect(request.get_full_path()) if status == 200 else self.show(status)

    def show(self, status: int) -> HttpResponse:
        """The page in its present state."""
        context = {"page": self.page, "pending": self.page.pending}
        return private(render(self.request, "durableflow/pages/decide.html", context, status=status))


def problem(request: HttpRequest, status: int) -> HttpResponse:
    """A refusal that shows nothing of the wait."""
    heading, text = PROBLEMS[status]
    context = {"heading": heading, "text": text}
    return private(render(request, "durableflow/pages/problem.html", context, status=status))


def private(response: HttpResponse) -> HttpResponse:
    """Keep the link, which stands in the address, from other sites and from search engines."""
    response["Referrer-Policy"] = "same-origin"
    response["X-Robots-Tag"] = "noindex, nofollow"
    return response
