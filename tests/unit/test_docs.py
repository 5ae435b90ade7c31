"""Every command and every piece of Python in README.md, CONTRIBUTING.md and docs/ runs.

A page is followed from top to bottom in an empty folder that has links to what a checkout offers
to a reader (LINKED). In a ``console`` block the lines that begin with `$ ` are commands, the
others are what was printed; in a ``bash`` block every line is a command. The ``python`` blocks of
a page are one program, run after the commands. Two comments on the line before a block matter:
`<!-- not run: the reason -->` and `<!-- exits with 2 -->`.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("README.md"), ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
LINKED = ("docs", "examples", "notebooks", "tests", "traces")
PROGRAMS = {"kvsim", "python"}

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<language>[\w-]*)")
NOT_RUN = re.compile(r"<!-- not run: \S.* -->$")
EXITS_WITH = re.compile(r"<!-- exits with (\d+) -->$")
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
SHELLS = {"bash", "console", "sh", "shell"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block: `lines[0]` is line `first_line` of the page."""

    language: str
    first_line: int
    lines: list[str]
    is_run: bool
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command, and the line of the page it begins on."""

    line: int
    command: str
    exit_code: int


def blocks_of(text: str) -> list[Block]:
    found: list[Block] = []
    lines = text.splitlines()
    end = 0
    for index, line in enumerate(lines):
        fence = FENCE.match(line)
        if fence is None or index < end:
            continue
        closing = fence["indent"] + fence["ticks"]
        end = next((i for i in range(index + 1, len(lines)) if lines[i].rstrip() == closing), -1)
        assert end > 0, f"line {index + 1}: the block is not closed"
        before = next((one.strip() for one in reversed(lines[:index]) if one.strip()), "")
        exits_with = EXITS_WITH.match(before)
        found.append(
            Block(
                language=fence["language"],
                first_line=index + 2,
                lines=textwrap.dedent("\n".join(lines[index + 1 : end])).split("\n"),
                is_run=not NOT_RUN.match(before),
                exit_code=int(exits_with[1]) if exits_with else 0,
            )
        )
        end += 1  # the closing fence opens nothing
    return found


def steps_of(block: Block) -> list[Step]:
    steps: list[Step] = []
    pending, began = "", block.first_line
    for number, line in enumerate(block.lines, start=block.first_line):
        if not pending:
            if block.language == "console" and not line.startswith("$ "):
                continue
            began = number
        pending += line.removeprefix("$ ")
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        if pending.strip() and not pending.lstrip().startswith("#"):
            steps.append(Step(line=began, command=pending.strip(), exit_code=block.exit_code))
        pending = ""
    return steps


def commands_of(text: str) -> list[Step]:
    """Return the commands that a page asks its reader to run, in order."""
    shells = [block for block in blocks_of(text) if block.is_run and block.language in SHELLS]
    return [step for block in shells for step in steps_of(block)]


def program_of(command: str) -> str:
    words = shlex.split(command, comments=True)
    return next((word for word in words if not re.match(r"\w+=", word)), "")


def python_of(text: str) -> str:
    """Return a page's Python as one program, with the line numbers that it has on the page."""
    program: list[str] = []
    for block in blocks_of(text):
        if block.is_run and block.language == "python":
            program += [""] * (block.first_line - 1 - len(program)) + block.lines
    return "\n".join(program)


def run(command: list[str], *, cwd: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Make a folder in which `kvsim` and `python` are this interpreter."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, arguments in (("kvsim", "-m kvsim "), ("python", "")):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}"$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Make the folder in which a page is followed."""
    folder = tmp_path / "desk"
    folder.mkdir()
    for name in LINKED:
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    return folder


LONG_PAGES = {"sweeps.md", "tensors.md", "traces.md", "transports.md", "validation.md"}
"""Pages whose commands take more than ten seconds together: `make thorough` follows these."""


def page_params() -> list[object]:
    """Return the pages, the long ones marked."""
    return [
        pytest.param(
            page,
            id=str(page.relative_to(ROOT)),
            marks=[pytest.mark.thorough] if page.name in LONG_PAGES else [],
        )
        for page in PAGES
    ]


@pytest.mark.parametrize("page", page_params())
def test_a_page_can_be_followed_to_its_end(page: Path, desk: Path, programs: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for step in commands_of(text):
        where = f"{page.name}:{step.line}: {step.command}"
        assert program_of(step.command) in PROGRAMS, (
            f"{where}\nonly {sorted(PROGRAMS)} are run; put <!-- not run: the reason --> before it"
        )
        done = run(["/bin/sh", "-c", step.command], cwd=desk, programs=programs)
        assert done.returncode == step.exit_code, f"{where}\n{done.stdout}{done.stderr}"
    script = desk.parent / page.name  # a traceback then names the page and the right line
    script.write_text(python_of(text), encoding="utf-8")
    done = run([sys.executable, str(script)], cwd=desk, programs=programs)
    assert done.returncode == 0, f"{page.name}: its Python\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_a_page_links_to_exists(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


SAMPLE_PAGE = """\
Text.

```console
$ kvsim replay \\
    sample:chat
hit rate 0.5
$ python x.py
```

<!-- not run: needs a GPU -->

```bash
kvsim doctor
```

1. In a list:

   <!-- exits with 2 -->
   ```bash
   # a comment
   A=1 kvsim replay nothing
   ```

````text
```python
1 / 0
```
````

```python
a = 1
```
"""


def test_commands_are_told_from_output_and_comments() -> None:
    steps = commands_of(SAMPLE_PAGE)
    # Line 4 goes on in line 5; line 6 is output; the second block is not run; 20 is a comment.
    assert steps == [
        Step(line=4, command="kvsim replay     sample:chat", exit_code=0),
        Step(line=7, command="python x.py", exit_code=0),
        Step(line=21, command="A=1 kvsim replay nothing", exit_code=2),
    ]
    assert [program_of(step.command) for step in steps] == ["kvsim", "python", "kvsim"]


def test_a_fence_within_a_longer_fence_is_text() -> None:
    assert python_of(SAMPLE_PAGE).split("\n") == [""] * 30 + ["a = 1"]


def test_a_reason_is_needed_to_leave_a_block_out() -> None:
    blocks = blocks_of("<!-- not run: -->\n```bash\nmake test\n```\n")
    assert [block.is_run for block in blocks] == [True]
