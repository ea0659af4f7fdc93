"""Templates of the emitted programs and pages."""

import re
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


def counter_functions(*names: str) -> str:
    """Functions of the counter-based random numbers, as text: programs and their reference run the same."""
    body = (FOLDER / "counters.py").read_text().partition("# --- copied from here ---")[2]
    functions = re.split(r"\n(?=def )", body)
    return "\n\n\n".join(f.strip() for f in functions if f.startswith(tuple(f"def {name}(" for name in names)))


@cache
def defined() -> frozenset[str]:
    """Names of the functions and classes that programs have from templates."""
    texts = (path.read_text() for path in FOLDER.rglob("*.jinja"))
    return frozenset(name for text in texts for name in re.findall(r"^(?:{{.*?}})?(?:def|class) (\w+)", text, re.M))
