"""A page as HTML, by jinja2 with everything escaped."""

from __future__ import annotations

from functools import cache

from .page import Page


def render(page: Page) -> str:
    """The whole document."""
    return _template().render(page=page)


@cache
def _template():
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("neuron_aot.report", package_path="")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.3f}%"
    return environment.get_template("page.html")
