"""Download public traces. Nothing is ever loaded from the network unless `fetch` is called."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvsim.errors import TraceError, UnknownNameError
from kvsim.trace.paths import checked_path, os_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

_CHUNK_BYTES: Final = 1 << 18
_TIMEOUT_S: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTrace:
    """Where a trace is, what its bytes must be, and under which licence."""

    address: str
    sha256: str
    licence: str
    about: str

    @property
    def file_name(self) -> str:
        """The name that the file gets: the last part of the address."""
        return self.address.rpartition("/")[2]


_MOONCAKE: Final = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release"
_AZURE: Final = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data"

PUBLIC_TRACES: Final[Mapping[str, PublicTrace]] = {
    "mooncake-conversation": PublicTrace(
        address=f"{_MOONCAKE}/traces/conversation_trace.jsonl",
        sha256="b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        licence="Apache-2.0",
        about="12,031 requests of an hour of Kimi's chat",
    ),
    "mooncake-synthetic": PublicTrace(
        address=f"{_MOONCAKE}/traces/synthetic_trace.jsonl",
        sha256="bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
        licence="Apache-2.0",
        about="3,993 requests made from public datasets",
    ),
    "mooncake-arxiv": PublicTrace(
        address=f"{_MOONCAKE}/arxiv-trace/mooncake_trace.jsonl",
        sha256="b434f1816a707f4bac697235588184ebc374c9907cb981bb65fb0643471fe711",
        licence="Apache-2.0",
        about="23,608 requests; not the file behind Table 1 of the paper, whose rates it lacks",
    ),
    "azure-code-2023": PublicTrace(
        address=f"{_AZURE}/AzureLLMInferenceTrace_code.csv",
        sha256="54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        licence="CC-BY-4.0",
        about="8,819 requests of an hour, lengths only",
    ),
}
"""Name -> trace. Only files whose hash we know: more may be found at the same addresses."""


def fetch(
    name: str,
    folder: str | PathLike[str] = ".",
    *,
    progress: Callable[[int, int], None] | None = None,
    known: Mapping[str, PublicTrace] = PUBLIC_TRACES,
) -> Path:
    """Download a public trace into a folder that exists; return its path.

    A file that is there already and has the right content is kept and nothing is downloaded. The
    content is checked before the file gets its name.

    Raises
    ------
    UnknownNameError
        If there is no such trace in `known`.
    TraceError
        If there is no way to the address, the folder cannot be written to, or the content is not
        the one that is expected.
    """
    if name not in known:
        raise UnknownNameError("public trace", name, known)
    public = known[name]
    file = checked_path(Path(folder) / public.file_name)
    if _has_content(file, public.sha256):
        return file
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        try:
            found = _download(public, unfinished, progress)
            if found != public.sha256:
                raise TraceError(
                    f"{public.address} has other content now: its sha256 is {found}, not"
                    f" {public.sha256}",
                    path=file,
                )
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(os_problem(error, doing="written"), path=file) from error
    return file


def _download(public: PublicTrace, file: Path, progress: Callable[[int, int], None] | None) -> str:
    """Write what is at the address to `file`; return its hash."""
    from http.client import HTTPException
    from urllib.request import urlopen  # slow to import, and rarely needed

    digest = sha256()
    with file.open("wb") as written:
        try:
            # an address from the table above, or from the caller's own
            with urlopen(public.address, timeout=_TIMEOUT_S) as answer:
                num_bytes = int(answer.headers.get("Content-Length") or 0)
                num_read = 0
                while piece := answer.read(_CHUNK_BYTES):
                    num_read += len(piece)
                    digest.update(piece)
                    written.write(piece)
                    if progress is not None:
                        progress(num_read, max(num_bytes, num_read))
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise TraceError(
                f"cannot be fetched: {reason}. Without the internet, get {public.address} by other"
                f" means and put it here; its sha256 is {public.sha256}",
                path=file.with_name(public.file_name),
            ) from error
    return digest.hexdigest()


def _has_content(file: Path, expected: str) -> bool:
    if not file.is_file():
        return False
    digest = sha256()
    try:
        with file.open("rb") as opened:
            while piece := opened.read(_CHUNK_BYTES):
                digest.update(piece)
    except OSError:
        return False
    return digest.hexdigest() == expected
