"""A node that died: from the first command to the report in at most five, each named by the one before.
Then a real broker starts on the result, and its clients get what the report promised.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.harness import RocketMQ
from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden

_COMMANDS_MAX = 5


def _died(root: Path) -> None:
    """The last message is torn and `abort` there, as the golden is; and a queue and the topics are lost."""
    shutil.rmtree(root / "consumequeue/Orders/1")
    os.truncate(root / "config/topics.json", 300)
    (root / "config/topics.json.bak").unlink()


def _damaged_too(root: Path) -> None:
    """Also with a block of the commitlog that is no message any more."""
    _died(root)
    overwrite(root / "commitlog" / f"{0:020}", 50_000, b"\xff" * 1_000)


@pytest.mark.parametrize("die", [pytest.param(_died, marks=pytest.mark.whole), _damaged_too])
def test_five_commands_lead_to_a_broker_that_serves_what_the_report_says(
    rocketmq: Callable[[str], RocketMQ],
    capsys: pytest.CaptureFixture[str],
    copy_of: Golden,
    tmp_path: Path,
    die: Callable[[Path], None],
) -> None:
    rmqlog = Runner(capsys)
    root, config = copy_of("crash-torn-5.5.0"), goldens.config("crash-torn-5.5.0")
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
    die(root)
    commands = [f"rmqlog report {root}"]
    while len(commands) < _COMMANDS_MAX:
        command = commands[-1].replace(" FILE", f" {conf}")
        out = rmqlog(*shlex.split(command)[1:]).out.splitlines()
        following = [line.partition("next:")[2].strip() for line in out if line.startswith("next:")]
        if not following:
            break
        commands += following
    assert not following, commands
    last = shlex.split(commands[-1])
    new = Path(last[2]) if last[1] == "report" else root
    document = tmp_path / "report.json"
    assert rmqlog("report", new, "-o", document).code == 0
    found = json.loads(document.read_text())
    assert found["mayStart"] == "yes"
    promised = {row["topic"]: row["messages"] for row in found["topics"]["rows"] if row["messages"]}
    with rocketmq("5.5.0").broker(new, config) as broker:
        messages = broker.client().messages()  # at an offset without a message the next one again
        broker.kill()  # nothing more is asked
    places = {(message["topic"], message["queueId"], message["queueOffset"]) for message in messages}
    served = Counter(topic for topic, _, _ in places)
    assert promised == served
    assert found["log"]["readable"] == served.total() > 200
