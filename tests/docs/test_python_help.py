"""`help(...)` explains every public class, function, method and attribute of the Python API."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import resolve_name

import pytest

PUBLIC = (
    "store_format",
    "rmq_spark",
    "rmq_spark.store",
    "rmq_spark.charts",
    "rmq_spark.demo",
    "rmq_spark.pop",
    "rmq_spark.services",
    "rmq_spark.show",
    "rmq_spark.consume.lag",
    "rmq_spark.consume.reset",
)
_EXAMPLES = {
    "rmq_spark": ("open", "register", "drop_duplicates"),
    "rmq_spark.demo": ("create",),
    "rmq_spark.services": (
        *("run_once", "recover", "Orderly", "Services", "clean.plan", "retry.send_back", "retry.resend"),
        *("timer.recall", "transaction.decide", "transaction.check"),
    ),
    "rmq_spark.pop": ("SimpleConsumer",),
    "rmq_spark.charts": ("rate", "lag", "overview", "file_map"),
    "store_format": ("MessageStore", "CommitOptions", "MessageColumns", "encode_property_columns"),
}
NEED_AN_EXAMPLE = [f"{module}:{name}" for module, names in _EXAMPLES.items() for name in names]


def _names(module: object) -> list[str]:
    """The names of `__all__`, or what an internal module defines."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == _name(module)]
    return list(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


def _name(module: object) -> str:
    return str(getattr(module, "__name__", ""))


def _documented(path: str, value: object) -> Iterator[tuple[str, str]]:
    """(name, docstring) of the value and of its public parts."""
    if inspect.ismodule(value):
        for name in _names(value):
            yield from _documented(f"{path}.{name}", getattr(value, name))
    elif inspect.isclass(value):
        signature = f"{value.__name__}("  # how a dataclass without a docstring explains itself
        text = value.__doc__ or ""
        yield path, "" if text.startswith(signature) else text
        for base in value.__mro__:
            if base.__module__.startswith(("rmq_spark", "store_format")):
                for name, member in vars(base).items():
                    if not name.startswith("_") and isinstance(member, property):
                        yield f"{path}.{name}", member.__doc__ or ""
                    elif not name.startswith("_") and inspect.isroutine(member):
                        yield f"{path}.{name}", inspect.getdoc(getattr(value, name)) or ""
    elif inspect.isroutine(value):
        yield path, value.__doc__ or ""


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_docstring(module: str) -> None:
    found = dict(_documented(module, import_module(module)))
    assert found != {}
    assert [name for name, text in found.items() if not text.strip()] == []


@pytest.mark.parametrize("path", NEED_AN_EXAMPLE)
def test_the_functions_to_start_with_have_an_example(path: str) -> None:
    assert "Example" in (inspect.getdoc(resolve_name(path)) or "")
