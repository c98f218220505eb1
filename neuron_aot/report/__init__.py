"""A bundle or a traffic plan as one page of HTML that needs nothing else: no script, no network, no font."""

from .of_bundle import bundle_page
from .of_plan import plan_page
from .page import Page
from .render import render

__all__ = ["Page", "bundle_page", "plan_page", "render"]
