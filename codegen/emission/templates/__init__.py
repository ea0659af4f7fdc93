"""Templates of the emitted programs and pages."""

from functools import cache
from pathlib import Path

import jinja2

FOLDER = Path(__file__).resolve().parent


@cache
def environment(html: bool = False) -> jinja2.Environment:
    """What reads them: blocks leave no empty lines, a name that is not given is an error; `html` escapes values."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=html,
    )
