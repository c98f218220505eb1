"""Preflight: a program's HLO against the Neuron compiler's documented rules, in seconds instead of a failed compile."""

from .check import Violation, check_hlo, violations_error
from .operators import unlisted
from .rules import RULES, Rule

__all__ = ["RULES", "Rule", "Violation", "check_hlo", "unlisted", "violations_error"]
