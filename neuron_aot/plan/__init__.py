"""Planning: which programs a serving configuration needs, and which configuration recorded traffic needs."""

from .grid import Grid, ReasonedDrop, plan_programs

__all__ = ["Grid", "ReasonedDrop", "plan_programs"]
