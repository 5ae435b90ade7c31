"""The command line: one file a command, each of which makes the call that a notebook makes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from kvsim.cli.parser import build_parser, parse
from kvsim.errors import PolicyError, TransferError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

_USER_ERROR: Final = 2
_WORKER_LOST: Final = 3
_INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell reports it
_BROKEN_PIPE: Final = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0: done. 1: done, and what was checked is not as it should be. 2: the input or the options
    cannot be used; one line on stderr says why. 3: a worker process was lost; one line too. 130:
    stopped by Ctrl-C. Nothing is left half written in any case.
    """
    try:
        arguments = parse(build_parser(), sys.argv[1:] if argv is None else argv)
        code: int | None = arguments.run(arguments)
        sys.stdout.flush()
    except SystemExit as done:  # argparse has printed the help or the version
        return done.code if isinstance(done.code, int) else 0
    except (UserError, PolicyError) as error:
        _complain(str(error))
        return _USER_ERROR
    except TransferError as error:
        _complain(str(error))
        return _WORKER_LOST
    except MemoryError:
        _complain("not enough memory: fewer blocks or, with --limit, fewer requests need less")
        return _USER_ERROR
    except KeyboardInterrupt:
        _complain("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain at exit, flushing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return code or 0


def _complain(problem: str) -> None:
    print("kvsim:", " ".join(problem.split()), file=sys.stderr)
