"""`python -m tests.support.release TAG [DIRECTORY]`: checks what the workflow `release` is about to publish.

Uses the standard library only: `make release` runs it in an environment that can build and nothing else.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What no archive may have: environments, what tools keep, and what builds leave.
_LEFTOVERS = re.compile(
    r"(^|/)(\.git|\.ci|\.venv[^/]*|build|dist|__pycache__|\.[a-z]+_cache|\.hypothesis)/|\.(pyc|so|o|kernel)$"
)


def problems(tag: str, directory: Path, *, repository: str | None = None) -> list[str]:
    """What is wrong with the archives in `directory` for this tag: one sentence each.

    `repository` is where the workflow runs (`owner/name`). The page on the package index leads to the address
    in `[project.urls]`, which must be the same.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    found = []
    if tag != f"v{version}":
        found.append(f"the tag must be v{version}, the version of pyproject.toml; found {tag}")
    if f"\n## {version}\n" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        found.append(f"CHANGELOG.md must have the heading ## {version}")
    source = project["urls"]["Source"]
    if repository is not None and source != f"https://github.com/{repository}":
        found.append(f"project.urls of pyproject.toml must lead to {repository}, found {source}")
    names = {path.name for path in directory.iterdir()}
    expected = {f"{name}-{version}.tar.gz", f"{name}-{version}-py3-none-any.whl"}
    if names != expected:
        return [*found, f"{directory} must have {sorted(expected)} and nothing else, found {sorted(names)}"]
    return [*found, *_of_the_wheel(directory, name, version), *_of_the_sdist(directory, name, version)]


def _of_the_wheel(directory: Path, name: str, version: str) -> list[str]:
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl") as wheel:
        inside = wheel.namelist()
        metadata = message_from_bytes(wheel.read(f"{name}-{version}.dist-info/METADATA"))
    tops = {path.split("/")[0] for path in inside}
    found = [f"the wheel has {path}" for path in inside if _LEFTOVERS.search(path)]
    if tops != {"rmq_spark", "store_format", "pyspark_rmqlog.py", f"{name}-{version}.dist-info"}:
        found.append(f"the wheel has {sorted(tops)}")
    if not str(metadata.get_payload()).startswith("# rmqlog"):
        found.append("the wheel's metadata must have the README as description")
    return found


def _of_the_sdist(directory: Path, name: str, version: str) -> list[str]:
    with tarfile.open(directory / f"{name}-{version}.tar.gz") as sdist:
        inside = {path.partition("/")[2] for path in sdist.getnames()}
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split("\n")
    kept = {path for path in listed if path and not path.startswith(".ci/")}
    return [
        *(
            f"the sdist has {path}, which is not in the repository"
            for path in sorted(inside - kept - {"PKG-INFO"})
        ),
        *(f"the sdist lacks {path}" for path in sorted(kept - inside)),
    ]


def main() -> None:
    tag, directory = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "dist")
    found = problems(tag, directory, repository=os.environ.get("GITHUB_REPOSITORY"))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
