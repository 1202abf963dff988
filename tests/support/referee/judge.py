"""`python -m tests.support.referee.judge --seed A --count N --from K`: stores A/K, A/K+1, … and every breach
of the law, one a line. The same words give the same stores, so a run goes on where another one ended.

With `--keep DIRECTORY` the stores with breaches stay there; `--version 4.9.7` asks the old classes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Self

from tests.interop.referee import Referee, Verdict
from tests.support.fork_server import ForkServer
from tests.support.referee import configs, law
from tests.support.referee.generator import Generator
from tests.support.referee.harms import HARMS
from tests.support.referee.law import Breach, Case, Rows
from tests.support.referee.shapes import SHAPES


@dataclass
class Judge:
    """The real classes, the generator, and a place for stores."""

    version: str
    place: Path
    generator: Generator = field(default_factory=Generator)
    referee: Referee = field(init=False)

    def __post_init__(self) -> None:
        self.referee = Referee(self.version, self.place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.referee.__exit__()

    def judge(self, seed: str, number: int, keep: Path | None = None) -> tuple[Case, list[Breach]]:
        """One store, with the leg of law 3 that is its turn."""
        directory = self.place / f"{seed}-{number}"  # a process knows stores by their paths
        directory.mkdir()
        try:
            case = self.generator.make(f"{seed}/{number}", directory)
            for path in case.root.glob("config/topics.json*") if self.version == "4.9.7" else ():
                path.write_bytes(path.read_bytes().replace(b'"stateVersion": 0, ', b""))  # 4.9 writes none
            if self.version == "4.9.7" and (case.root / "batchconsumequeue").exists():
                return case, []  # of 5.0 and later
            found = self.judged(case, law.LEGS[number % len(law.LEGS)])
            if self.version == "4.9.7":  # law 6 has the rules of 5.5.0
                found = [breach for breach in found if breach.law != 6]
            found += self.configuration(Random(f"configuration/{seed}/{number}"), directory / "files")
            if found and keep is not None:
                shutil.copytree(case.root, keep / f"{seed}-{number}", symlinks=True, dirs_exist_ok=True)
            return case, found
        finally:
            shutil.rmtree(directory)

    def configuration(self, random: Random, root: Path) -> list[Breach]:
        """One file of config/; law 5 is that of 5.5.0."""
        if self.version != "5.5.0":
            return []
        name = configs.make(root, random)
        held = self.referee.config(root, configs.TABLES[name.partition(".json")[0]])
        return list(configs.breaches(root, name, held))

    def judged(self, case: Case, leg: str) -> list[Breach]:
        verdict = self.referee.serve(case.root, dict(case.conf))
        rows, found = law.breaches(case, verdict)
        return [*found, *self._third(case, verdict, leg, rows)]

    def live(self, seed: str, number: int, keep: Path | None = None) -> tuple[Case, list[Breach]]:
        """A store that a broker's classes hold open, and put messages into between two reads. The broker has
        mended what was wrong when it loaded the store.
        """
        random, directory = Random(f"live/{seed}/{number}"), self.place / f"live-{seed}-{number}"
        directory.mkdir()
        case, found = self.generator.make(f"{seed}/{number}", directory), list[Breach]()
        verdict = self.referee.start(case.root, dict(case.conf))
        try:
            for turn in range(3 if not verdict.failure else 0):
                found += law.breaches(case, verdict)[1]
                for topic, queue_id in random.choices([*verdict.client_queues, ("A", 0)], k=4):
                    self.referee.put(topic, queue_id, f"live {turn}")
                verdict, case = self.referee.served(), replace(case, must_ask=False)  # new messages show it
            if found and keep is not None:
                shutil.copytree(case.root, keep / directory.name, symlinks=True, dirs_exist_ok=True)
            return case, found
        finally:
            self.referee.close()
            shutil.rmtree(directory)

    def _third(self, case: Case, verdict: Verdict, leg: str, rows: Rows) -> Iterator[Breach]:
        copy = case.root.with_name("changed")
        conf = self.place / "case.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in case.conf.items()))
        if leg != "salvage":  # which makes its copy
            shutil.copytree(case.root, copy, symlinks=True)
        try:
            text, refusal = law.changed(case, copy, leg, conf)
            if law.BUG in refusal:
                yield Breach(3, f"{leg} ends with an internal error", refusal)
            elif refusal and leg == "next" and refusal != law.NOTHING:
                yield Breach(3, "the next command refuses", refusal)
            if refusal:
                return
            moved = {key: value.replace(str(case.root), str(copy)) for key, value in case.conf.items()}
            if leg == "salvage":  # its log is in one directory
                case, _ = replace(case, logs=()), moved.pop("storePathCommitLog", "")
            after = self.referee.serve(copy, moved)
            if leg == "next" and law.tree(copy) == law.tree(case.root):
                yield Breach(3, "the next command changes nothing", law.verify(case, copy).next)
            rows_after = law.read(case, copy, skips=True)
            if rows_after.asks:
                rows_after = law.read(case, copy, skips=True, unfiled="read")
            yield from law.third_law(case, leg, verdict, after, rows, rows_after, text)
        finally:
            shutil.rmtree(copy, ignore_errors=leg == "salvage")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.referee.judge", description=__doc__)
    parser.add_argument("--version", default="5.5.0", choices=("5.5.0", "4.9.7"))
    parser.add_argument("--seed", default="1")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--seconds", type=float, default=0, help="at most so long")
    parser.add_argument(
        "--shape", default="", choices=["", *SHAPES], metavar="NAME", help="only this one of shapes.py"
    )
    parser.add_argument(
        "--harm", default="", choices=["", *HARMS], metavar="NAME", help="only this one of harms.py"
    )
    parser.add_argument("--live", action="store_true", help="the classes hold each store open")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args(words)
    began, counts, stores = time.monotonic(), Counter[tuple[int, str]](), 0
    with ExitStack() as stack:
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=shared)))
        forks = stack.enter_context(ForkServer())
        generator = Generator(forks, options.shape, options.harm)
        judge = stack.enter_context(Judge(options.version, place, generator))
        for number in range(options.first, options.first + options.count):
            if options.seconds and time.monotonic() - began > options.seconds:
                break
            try:
                look = judge.live if options.live else judge.judge
                case, found = look(options.seed, number, options.keep)
            except Exception as error:  # the run goes on with the next store
                traceback.print_exc()
                counts[0, f"the referee fails with {type(error).__name__}"] += 1
                print(f"{options.seed}/{number} the referee fails: {error}", flush=True)
                continue
            stores += 1
            for breach in found:
                counts[breach.law, breach.kind] += 1
                told = "; ".join(case.told).replace(str(place), "")
                print(f"{options.seed}/{number} [{case.name}] {breach} ({told})", flush=True)
    for (number_of_law, kind), count in sorted(counts.items()):
        print(f"law {number_of_law}: {kind}: {count}")
    seconds = time.monotonic() - began
    print(f"{stores} stores in {seconds:.0f} s, {sum(counts.values())} breaches")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
