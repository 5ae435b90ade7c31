"""One try of a request to get through: what it wants, and what it holds of the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.core.ports import AccessInfo
    from kvsim.types import BlockId, BlockKey, NodeId, OpId, Request


class BlockLayout:
    """Where the tokens of one request lie in its block table.

    Under `PartialRule.COUNT` a prompt's last block counts as full whatever it holds, and output
    tokens start in a fresh block; under `NEVER` they go on where the prompt ended. In both cases
    output token j (from 0) lies at position `base + j` of the table.
    """

    __slots__ = ("_num_output_tokens", "base", "block_size", "num_input_tokens")

    def __init__(self, request: Request, block_size: int) -> None:
        self.block_size = block_size
        self.num_input_tokens = request.num_input_tokens
        self._num_output_tokens = request.num_output_tokens
        # Only a counted partial block makes the keys reach beyond the prompt.
        self.base = max(request.num_input_tokens, len(request.block_keys) * block_size)

    def num_blocks(self, num_tokens: int) -> int:
        """Return how many blocks hold the first `num_tokens` tokens of prompt and output."""
        if num_tokens > self.num_input_tokens:
            num_tokens += self.base - self.num_input_tokens
        return -(-num_tokens // self.block_size)

    @property
    def num_most_blocks(self) -> int:
        """Blocks of the whole request. The last output token never needs its KV."""
        return self.num_blocks(self.num_input_tokens + self._num_output_tokens - 1)

    def num_full_blocks(self, num_tokens: int) -> int:
        """Return how many blocks are complete once `num_tokens` tokens have their KV."""
        if num_tokens >= self.num_input_tokens:
            num_tokens += self.base - self.num_input_tokens
        return num_tokens // self.block_size

    def num_tokens(self, num_blocks: int) -> int:
        """Return how many tokens lie in the first `num_blocks` blocks, all of them full."""
        position = num_blocks * self.block_size
        if position < self.base:
            return min(position, self.num_input_tokens)
        return position - self.base + self.num_input_tokens


class Attempt:
    """One try of a request. Made by the scheduler; its holdings are changed by the manager only.

    Parameters
    ----------
    request
        What is tried.
    number
        0 for the first try, one more after each preemption or failure. Answers to the ops of an
        earlier attempt never touch a later one.
    layout
        Of the request.
    num_made
        Output tokens made by earlier attempts: their KV is computed again, or found.
    num_wanted_blocks
        Length of the block table at admission: prompt, tokens made, and a reserve for those to
        come.
    no_reload
        Keys of blocks whose copy up failed: they are computed instead.

    Attributes
    ----------
    keys
        Of every block that is full once prompt and `num_made` tokens are computed, and of
        published output blocks beyond.
    path
        Nodes of the leading blocks of the table. The attempt's reference ends at the last.
    table
        GPU block ids of the whole sequence; those beyond `path` are private to the attempt.
    num_hit_blocks, num_reload_blocks, num_joined_blocks
        Leading blocks matched at admission; those of them copied up for this attempt; those
        another op was still writing.
    num_disk_blocks
        Those copied up from the third tier.
    after
        Ops that must be finished, layer by layer, before this attempt can compute.
    own_transfers
        Ops issued for this attempt.
    duplicates
        Private blocks, by position in the table, that are being computed although `path` goes
        through a node with that content. They go when the computation is done.
        weight_version
        Version of the weights at admission. Once the manager's is another, nothing that this
        attempt computes becomes a node.
    is_cut_off
        Whether `path` was taken out of the tree under the attempt. It then holds each node of it.
        loans
        Ops between instances that use blocks of the table: up to which position each reads nodes,
        and the private blocks it reads or writes.
    """

    __slots__ = (
        "after",
        "duplicates",
        "info",
        "is_admitted",
        "is_cut_off",
        "keys",
        "layout",
        "loans",
        "no_reload",
        "num_disk_blocks",
        "num_hit_blocks",
        "num_joined_blocks",
        "num_made",
        "num_reload_blocks",
        "num_wanted_blocks",
        "number",
        "own_transfers",
        "path",
        "request",
        "table",
        "weight_version",
    )

    def __init__(
        self,
        request: Request,
        *,
        number: int,
        layout: BlockLayout,
        num_made: int,
        num_wanted_blocks: int,
        no_reload: frozenset[BlockKey] = frozenset(),
    ) -> None:
        self.request = request
        self.number = number
        self.layout = layout
        self.num_made = num_made
        self.no_reload = no_reload
        self.num_wanted_blocks = num_wanted_blocks
        self.keys = request.block_keys
        if num_made:
            self.add_output_keys(layout.num_full_blocks(request.num_input_tokens + num_made))
        self.info: AccessInfo | None = None
        self.is_admitted = False
        self.is_cut_off = False
        self.weight_version = 0
        self.path: list[NodeId] = []
        self.table: list[BlockId] = []
        self.num_hit_blocks = self.num_reload_blocks = self.num_joined_blocks = 0
        self.num_disk_blocks = 0
        self.after: tuple[OpId, ...] = ()
        self.own_transfers: tuple[OpId, ...] = ()
        self.duplicates: dict[int, BlockId] = {}
        self.loans: dict[OpId, tuple[int, list[BlockId]]] = {}

    @property
    def private_block_ids(self) -> list[BlockId]:
        """Blocks that belong to this attempt alone."""
        return [*self.table[len(self.path) :], *self.duplicates.values()]

    def add_output_keys(self, num_blocks: int) -> None:
        """Extend `keys` to `num_blocks` blocks.

        A trace without output ids gives no other name to a block of output tokens than its
        request and position: it is matched again by this request, and by nobody else.
        """
        known = len(self.keys)
        if num_blocks > known:
            request_id = self.request.request_id
            own = [("output", request_id, index) for index in range(known, num_blocks)]
            self.keys = [*self.keys, *own]
