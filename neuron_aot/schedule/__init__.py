"""Schedules: where the work of a compile runs. ``local`` is this machine."""
