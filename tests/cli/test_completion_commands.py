"""`completion`: the script of each shell, which a real bash runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_runs import ROOT, Runner, environment
from tests.support.fixtures import Golden


def test_the_script_of_each_shell(rmqlog: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in ("bash", "zsh", "fish"):
        done = rmqlog("completion", shell)
        assert (done.code, done.err) == (0, "")
        assert f"_RMQLOG_COMPLETE={shell}_complete" in done.out
        monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
        assert rmqlog("completion").out == done.out
    monkeypatch.setenv("SHELL", "/bin/dash")
    assert "name one of bash, zsh, fish" in rmqlog.fails(2, "completion")
    assert "'csh' is not one of" in rmqlog.fails(2, "completion", "csh")


@pytest.mark.process
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_topics_with_the_script(golden: Golden, tmp_path: Path) -> None:
    program = tmp_path / "rmqlog"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rmq_spark.cli "$@"\n')
    program.chmod(0o755)
    script = f"""
PATH={tmp_path}:$PATH
eval "$(rmqlog completion bash)"
COMP_WORDS=(rmqlog ls {golden("basic-5.5.0")} --topic Or) COMP_CWORD=4
_rmqlog_completion rmqlog
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment(), cwd=ROOT, check=True
    )
    assert done.stdout == "Orders\n"
