"""Questions with the answers that were recorded for them: `> question`, and below it the lines of the answer.

With RMQLOG_RECORD_SCREENS=1 a test records its answers again: look at them before you commit them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path


class Transcript:
    """The questions and answers in a file; a new question is a line of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        parts = re.split(r"^> ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        self._answers = {part.split("\n", 1)[0]: part.split("\n", 1)[1].strip("\n") for part in parts}
        self.questions = list(self._answers)

    def check(self, question: str, answer: str) -> None:
        """Asserts that the answer is the recorded one."""
        if os.environ.get("RMQLOG_RECORD_SCREENS"):
            self._answers[question] = answer
            parts = (f"> {question}\n{recorded}\n" for question, recorded in self._answers.items())
            self._path.write_text("\n".join(parts), encoding="utf-8")
        assert answer == self._answers[question]
