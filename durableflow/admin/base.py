"""What the admin classes of instances and pending events have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from durableflow.admin.lists import BoundedChangeList, BoundedPaginator

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Any]
else:
    Base = object


class PagesMixin(Base):
    """Pages and addresses of ours. For use before ``ModelAdmin``, also that of a theme."""

    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 0
    show_facets = admin.ShowFacets.NEVER  # a count for each choice reads the whole table
    sortable_by = ()

    class Media:
        css = {"all": ("durableflow/admin.css",)}

    def visible(self, request: HttpRequest, object_id: str) -> Any:
        """One row, or 404: unknown and foreign ids are the same."""
        row = self.get_object(request, unquote(str(object_id)))
        if row is None:
            raise Http404(_("There is no such row, or it is not for you."))
        return row

    @property
    def plural(self) -> str:
        """The heading of the list."""
        return capfirst(str(self.opts.verbose_name_plural))

    def url_name(self, name: str) -> str:
        """The name of one of this admin's URLs, as ``path()`` takes it."""
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    def url(self, name: str, *args: Any) -> str:
        """An address within this admin site, whatever the site is called."""
        return reverse(f"{self.admin_site.name}:{self.url_name(name)}", args=args)

    def url_of(self, row: Any) -> str:
        """The page of a row of any model of this admin site; '' if the site does not show that model."""
        if not self.admin_site.is_registered(type(row)):
            return ""
        meta = row._meta
        return reverse(f"{self.admin_site.name}:{meta.app_label}_{meta.model_name}_change", args=[row.pk])

    def page_context(self, request: HttpRequest, title: Any, row: Any = None, **more: Any) -> dict[str, Any]:
        """What every page of ours gives its template."""
        request.current_app = self.admin_site.name
        return {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": title,
            "original": row,
            "list_url": self.url("changelist"),
            **more,
        }


class ReadOnlyAdminMixin(PagesMixin):
    """Rows are looked at; verbs change them, forms never do (case SEC-16). For use before ``ModelAdmin``, also that of a theme."""

    ordering = ("-id",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never: workflows are started, not typed in."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: only verbs change rows."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never here."""
        return False

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the index shows this list."""
        return self.has_view_permission(request)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """The list class."""
        return BoundedChangeList

    def get_queryset(self, request: HttpRequest) -> Any:
        """The rows that the user may see; whatever else is asked for does not exist (design 9)."""
        return super().get_queryset(request).visible_to(request.user)  # type: ignore[attr-defined]

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        """Django's own log of what staff did here; 404 as everywhere for rows that are not for the user."""
        self.visible(request, object_id)
        return super().history_view(request, object_id, extra_context)
