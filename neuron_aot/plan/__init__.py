"""Planning: which programs a serving configuration needs, and which configuration recorded traffic needs."""

from .grid import Grid, ReasonedDrop, plan_programs
from .memory import budget_lines, check_budget, memory_budget

__all__ = ["Grid", "ReasonedDrop", "budget_lines", "check_budget", "memory_budget", "plan_programs"]
