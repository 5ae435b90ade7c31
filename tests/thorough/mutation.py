"""Change the core in one place at a time, and see whether the tests notice.

    python tests/thorough/mutation.py [--minutes M] [--workers N] [file ...]

Each mutant is one changed operator, constant, condition or statement of one file (by default the
copy machine, the tree and the tiers). It is killed if a test fails or the tests take too long; one
that survives is printed with its line. Mutants that mean the same as the original are listed in
`EQUIVALENT` with the reason. Exits with 1 if the score is below `MIN_SCORE_PERCENT`.

Every worker has a copy of the project. If there are more mutants than fit the time, which are run
is decided by a fixed shuffle, and the number is printed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY: Final = Path(__file__).parents[2]
FILES: Final = ("kvsim/core/residency.py", "kvsim/core/tree.py", "kvsim/core/tier.py")
# The quickest first: a run ends with the first test that fails.
KILLERS: Final = (
    "tests/unit/core/test_residency.py",
    "tests/unit/core/test_tree.py",
    "tests/unit/core/test_tier.py",
    "tests/unit/core",
    "tests/unit/test_known_failures_abort.py",
    "tests/unit/test_known_failures_admission.py",
    "tests/unit/test_known_failures_counting.py",
    "tests/unit/test_known_failures_eviction.py",
    "tests/property/test_found.py",
    "tests/property/test_scheduler.py",
    "tests/property/test_differential.py",
    "tests/property/test_manager.py",
)
# A mutant may fill a list for ever: it must not take the machine with it.
LIMITED_PYTEST: Final = (
    "import resource, sys, pytest;"
    "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30));"
    "sys.exit(pytest.main(sys.argv[1:]))"
)
MIN_SCORE_PERCENT: Final = 95
TIMES_AS_LONG: Final = 3  # as the tests take without a mutant: then a mutant hangs

EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {
    (
        "residency.py",
        "self.block: list[BlockId] = [0] * num_nodes",
        "0 -> 1",
    ): "the block of a copy that is not there is never read",
}
"""(file name, line as it is, what was changed) of mutants that change nothing, and why."""

SWAPPED: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One changed place: where it is, what was done, and the whole file as it is then."""

    file: str
    line: int
    text: str
    change: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.change}: {self.text}"


class Mutator:
    """Makes the mutants of one file."""

    def __init__(self, file: str, source: str) -> None:
        self._file = file
        self._lines = source.splitlines()
        self._tree = ast.parse(source)

    def mutants(self) -> Iterator[Mutant]:
        """Yield every mutant, in the order of the file."""
        for parent, name, index, node in self._places(self._tree):
            for change, new in changes(node):
                value = getattr(parent, name)
                if index is None:
                    setattr(parent, name, new)
                else:
                    value[index] = new
                line = getattr(node, "lineno", getattr(parent, "lineno", 1))
                yield Mutant(
                    file=self._file,
                    line=line,
                    text=self._lines[line - 1].strip(),
                    change=change,
                    source=ast.unparse(ast.fix_missing_locations(self._tree)),
                )
                if index is None:
                    setattr(parent, name, value)
                else:
                    value[index] = node

    def _places(self, node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
        """Yield (parent, field, index in it, node) of every node that could be changed."""
        for name, value in ast.iter_fields(node):
            if name in {"annotation", "returns", "decorator_list", "type_params", "keywords"}:
                continue
            children = enumerate(value) if isinstance(value, list) else [(None, value)]
            for index, child in children:
                if isinstance(child, ast.AST) and not is_left_alone(child):
                    yield node, name, index, child
                    yield from self._places(child)


def is_left_alone(node: ast.AST) -> bool:
    """Whether a node is text for people or for the type checker, or a message of an error."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
        return node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id == "__slots__"
    return isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr)


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield (what is done, the node in place of `node`)."""
    swapped = SWAPPED.get(type(node))
    if swapped is not None:
        yield f"{type(node).__name__} -> {swapped.__name__}", swapped()
    elif isinstance(node, ast.Constant):
        yield from changed_constants(node)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        negated = copy.copy(node)
        negated.test = ast.UnaryOp(op=ast.Not(), operand=node.test)
        yield "condition negated", negated
    elif isinstance(node, ast.UnaryOp):
        yield f"{type(node.op).__name__} removed", node.operand
    elif isinstance(node, ast.Return) and node.value is not None:
        yield "returns None", ast.Return(value=ast.Constant(value=None))
    elif isinstance(node, ast.Break):
        yield "break -> continue", ast.Continue()
    elif isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.Delete | ast.Raise):
        yield "statement removed", ast.Pass()


def changed_constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    """Yield the mutants of a number or a truth value."""
    value = node.value
    if isinstance(value, bool):
        yield f"{value} -> {not value}", ast.Constant(value=not value)
    elif isinstance(value, int):
        yield f"{value} -> {value + 1}", ast.Constant(value=value + 1)


class Worker:
    """A copy of the project in which mutants are tried out, one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        leave = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "out")
        shutil.copytree(REPOSITORY, folder, ignore=leave)
        # Compiled files that are checked by their source, not by its age: a mutant is as old, and
        # as long, as the one before.
        compile_all = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "kvsim"]
        subprocess.run([sys.executable, *compile_all], cwd=folder, check=True)

    def test(self, timeout_s: float | None, *, is_first: bool = False) -> bool | None:
        """Whether the tests pass; None if they take too long."""
        environment = dict(os.environ, PYTHONPATH=str(self.folder))
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if not is_first:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        options = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:cov"]
        try:
            done = subprocess.run(
                [sys.executable, "-c", LIMITED_PYTEST, *options, *KILLERS],
                cwd=self.folder,
                env=environment,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        if is_first and done.returncode:
            sys.exit("the tests fail without a mutant:\n" + done.stdout.decode()[-2000:])
        return done.returncode == 0

    def survives(self, mutant: Mutant, timeout_s: float) -> bool:
        """Whether the tests pass with the mutant in place."""
        path = self.folder / mutant.file
        original = path.read_text()
        path.write_text(mutant.source)
        try:
            return self.test(timeout_s) is True
        finally:
            path.write_text(original)


def all_mutants(files: list[str]) -> list[Mutant]:
    """Return the mutants of the files, less the equivalent ones."""
    mutants: list[Mutant] = []
    for file in files:
        mutator = Mutator(file, (REPOSITORY / file).read_text())
        mutants += [
            mutant
            for mutant in mutator.mutants()
            if (Path(file).name, mutant.text, mutant.change) not in EQUIVALENT
        ]
    return mutants


def run(files: list[str], *, minutes: float, num_workers: int) -> int:
    """Try the mutants, print what survives and the score; return the exit code."""
    mutants = all_mutants(files)
    order = Random(0).sample(mutants, len(mutants))
    stop_at = time.monotonic() + 60 * minutes
    survivors: list[Mutant] = []
    num_tried = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(num_workers) as pool:
        workers: SimpleQueue[Worker] = SimpleQueue()
        for number in range(num_workers):
            workers.put(Worker(Path(folder) / str(number)))
        began_at = time.monotonic()
        for _ in range(num_workers):  # each once: it writes pytest's compiled files
            worker = workers.get()
            worker.test(None, is_first=True)
            workers.put(worker)
        timeout_s = TIMES_AS_LONG * (time.monotonic() - began_at) / num_workers + 5
        print(f"{len(mutants)} mutants of {', '.join(files)}; a hang is {timeout_s:.0f} s")

        def try_one(mutant: Mutant) -> bool | None:
            if time.monotonic() > stop_at:
                return None
            worker = workers.get()
            try:
                return worker.survives(mutant, timeout_s)
            finally:
                workers.put(worker)

        for mutant, survived in zip(order, pool.map(try_one, order), strict=True):
            num_tried += survived is not None
            if num_tried % 50 == 0 and survived is not None:
                print(f"{num_tried} tried after {time.monotonic() - began_at:.0f} s", flush=True)
            if survived:
                survivors.append(mutant)
                print(f"survived: {mutant}", flush=True)
    if not num_tried:
        sys.exit("no mutant was tried: give it more minutes")
    score = 100 * (num_tried - len(survivors)) / num_tried
    print(f"{num_tried} of {len(mutants)} mutants tried, {len(survivors)} survived")
    print(f"score: {score:.1f} % (at least {MIN_SCORE_PERCENT} % wanted)")
    return int(score < MIN_SCORE_PERCENT)


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", default=list(FILES), help="files to change")
    parser.add_argument("--minutes", type=float, default=25, help="start no mutant after this")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    return run(options.files, minutes=options.minutes, num_workers=options.workers)


if __name__ == "__main__":
    sys.exit(main())
