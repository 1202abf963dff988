"""The architecture page and CONTRIBUTING.md name files, names and commands that exist, and every room."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGES = ("store_format", "rmq_spark")
MODULES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
_PATH = re.compile(r"`((?:store_format|rmq_spark|tests|docs|conf)/[\w./-]+)`")


def test_every_path_exists() -> None:
    paths = set(_PATH.findall(ARCHITECTURE + CONTRIBUTING))
    assert len(paths) > 40
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_every_module_that_a_docstring_names_exists() -> None:
    modules = [*MODULES, *(ROOT / "tests").rglob("*.py")]
    there = {"setup.py"} | {
        name for path in modules for name in (path.name, f"{path.parent.name}/{path.name}")
    }
    missing, found = [], 0
    for path in modules:
        named = re.findall(r"`([\w/]+\.py)`", path.read_text(encoding="utf-8"))
        found += len(named)
        missing += [f"{path.name}: {name}" for name in named if "/".join(name.split("/")[-2:]) not in there]
    assert found > 40
    assert missing == []


def test_every_dotted_name_exists() -> None:
    """A name of a package, or of a room in it, such as `follow.log_tail`; not `plan.apply` of a variable."""
    rooms = {path.parent.name: path.parent for top in PACKAGES for path in (ROOT / top).glob("*/__init__.py")}
    starts = "|".join([*PACKAGES, *(rooms.keys() - {"spark", "plan", "options", "message"})])
    dotted = re.compile(rf"`((?:{starts})(?:\.\w+)+)(?<!\.py)(?<!\.conf)[`(]")
    texts = [ARCHITECTURE, CONTRIBUTING, *(path.read_text(encoding="utf-8") for path in MODULES)]
    names = {name for text in texts for name in dotted.findall(text)}
    assert len(names) > 20
    for name in names:
        room = rooms.get(name.partition(".")[0])
        pkgutil.resolve_name(name if room is None else f"{room.parent.name}.{name}")


def test_every_question_names_a_definition_of_its_file() -> None:
    rows = re.findall(r"^\| (Where .*\?) \| `([^`]+)` \| `([^`]+)` \|$", ARCHITECTURE, re.MULTILINE)
    assert len(rows) >= 16
    for question, path, name in rows:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(?:def |class |)(?<![\w.]){name}\b(?: =|:|\(|\[)", text, re.MULTILINE), question


def test_every_room_is_described() -> None:
    for package in PACKAGES:
        rooms = [path.parent.name for path in (ROOT / package).glob("*/__init__.py")]
        modules = [path.name for path in (ROOT / package).glob("*.py") if path.name != "__init__.py"]
        table = ARCHITECTURE.split(f"### {package}\n")[1].split("\n## ")[0].split("\n### ")[0]
        missing = [name for name in (*(f"{room}/" for room in rooms), *modules) if f"`{name}`" not in table]
        assert missing == []


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`make ([a-z-]+)", ARCHITECTURE + CONTRIBUTING))
    assert targets >= {"quick", "test", "test-all", "proofs", "format", "docs"}
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_the_hosted_ci_runs_the_pythons_that_the_package_claims() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    claimed = re.findall(r'Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    matrix = re.search(r"python: \[(.*)\]", workflow)
    assert matrix is not None
    assert re.findall(r'"([\d.]+)"', matrix[1]) == claimed
