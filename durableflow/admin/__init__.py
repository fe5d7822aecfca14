"""Instances and pending events in Django's admin.

A project with a theme of its own unregisters these two and registers the mixins before the theme's class::

    admin.site.unregister([WorkflowInstance, PendingEvent])

    @admin.register(WorkflowInstance)
    class Instances(WorkflowInstanceAdminMixin, unfold.admin.ModelAdmin): ...
"""

from django.contrib import admin

from durableflow.admin.instances import WorkflowInstanceAdmin, WorkflowInstanceAdminMixin
from durableflow.admin.pending import PendingEventAdmin, PendingEventAdminMixin
from durableflow.models import PendingEvent, WorkflowInstance

__all__ = ["PendingEventAdmin", "PendingEventAdminMixin", "WorkflowInstanceAdmin", "WorkflowInstanceAdminMixin"]

admin.site.register(WorkflowInstance, WorkflowInstanceAdmin)
admin.site.register(PendingEvent, PendingEventAdmin)
