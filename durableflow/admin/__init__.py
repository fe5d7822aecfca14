"""Instances, pending events and schedules in Django's admin.

A project with a theme of its own unregisters these and registers the mixins before the theme's class::

    admin.site.unregister([WorkflowInstance, PendingEvent, WorkflowSchedule])

    @admin.register(WorkflowInstance)
    class Instances(WorkflowInstanceAdminMixin, unfold.admin.ModelAdmin): ...
"""

from django.contrib import admin

from durableflow.admin.instances import WorkflowInstanceAdmin, WorkflowInstanceAdminMixin
from durableflow.admin.pending import PendingEventAdmin, PendingEventAdminMixin
from durableflow.admin.schedules import WorkflowScheduleAdmin, WorkflowScheduleAdminMixin
from durableflow.models import PendingEvent, WorkflowInstance, WorkflowSchedule

__all__ = [
    "PendingEventAdmin",
    "PendingEventAdminMixin",
    "WorkflowInstanceAdmin",
    "WorkflowInstanceAdminMixin",
    "WorkflowScheduleAdmin",
    "WorkflowScheduleAdminMixin",
]

admin.site.register(WorkflowInstance, WorkflowInstanceAdmin)
admin.site.register(PendingEvent, PendingEventAdmin)
admin.site.register(WorkflowSchedule, WorkflowScheduleAdmin)
