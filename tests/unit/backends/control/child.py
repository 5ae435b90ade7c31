"""What the tests of processes start: a child that does as its first argument says."""

from __future__ import annotations

import os
import sys
import threading

from kvsim.backends.control import dial, take_invitation
from tests.unit.backends.control.messages import Note, codec


def main() -> None:
    what = sys.argv[1]
    if what == "fail":
        print("first line")  # noqa: T201
        sys.exit("it went wrong")
    invitation = take_invitation()
    channel = dial(invitation.address, invitation.key, codec())
    channel.send(Note(f"{invitation.index} {os.getpid()}"))
    channel.flush()
    threading.Event().wait()  # until somebody ends it


main()
