"""A request as the driver's scheduler sees it, and its attempts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.core.attempt import Attempt, BlockLayout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.types import BlockKey, Request


@dataclass(slots=True, eq=False)
class Client:
    """A request as its scheduler sees it."""

    request: Request
    attempt: Attempt
    num_made: int = 0
    num_kv: int = 0
    is_prefilling: bool = True
    is_cancelled: bool = False
    failed_reloads: frozenset[BlockKey] = frozenset()

    @property
    def num_known(self) -> int:
        """Tokens whose KV a new attempt needs."""
        return self.request.num_input_tokens + self.attempt.num_made


def new_attempt(
    request: Request,
    block_size: int,
    *,
    reserve: int,
    number: int = 0,
    num_made: int = 0,
    no_reload: frozenset[BlockKey] = frozenset(),
) -> Attempt:
    """Return an attempt that wants the blocks of all known tokens, and some for those to come."""
    layout = BlockLayout(request, block_size)
    num_blocks = layout.num_blocks(request.num_input_tokens + num_made)
    return Attempt(
        request,
        number=number,
        layout=layout,
        num_made=num_made,
        num_wanted_blocks=max(num_blocks, min(num_blocks + reserve, layout.num_most_blocks)),
        no_reload=no_reload,
    )


def num_common_steps(clients: Iterable[Client], num_steps: int) -> int:
    """Return the steps that each can make, `num_steps` at most: it has blocks, and tokens left."""
    for client in clients:
        layout = client.attempt.layout
        while layout.num_blocks(client.num_kv + num_steps) > len(client.attempt.table):
            num_steps -= 1
        num_steps = min(num_steps, client.request.num_output_tokens - client.num_made)
    return num_steps
