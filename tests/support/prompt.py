"""A Python prompt for blocks of a page: names live from block to block, and a last expression is shown.

As a program it reads one block a line of stdin, as JSON, and answers with a line of JSON: what was printed,
and the error if there was one. It imports nothing of this checkout.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import traceback
from contextlib import redirect_stdout
from typing import Any


def run_block(text: str, names: dict[str, Any]) -> str:  # Any: whatever the block makes
    """Runs a block with `names` and returns what it printed, and the value of its last expression."""
    block = ast.parse(text)
    last = block.body[-1] if block.body else None
    if isinstance(last, ast.Expr):
        del block.body[-1]
    with redirect_stdout(io.StringIO()) as out:
        exec(compile(block, "<block>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<block>", "eval"), names)
            if value is not None:
                print(value)
    return out.getvalue()


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    names: dict[str, Any] = {"__name__": "__main__"}
    for line in sys.stdin:
        try:
            answer = [run_block(json.loads(line), names), None]
        except Exception:
            answer = ["", traceback.format_exc()]
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
