"""The prefix tree: matching, inserting, references, and taking a subtree out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.tree import ROOT, PrefixTree
from kvsim.errors import MisuseError

PATHS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple), max_size=12)


def tree_with(*paths: str) -> PrefixTree:
    """Return a tree with a node for every prefix of the given strings, keyed by it."""
    tree = PrefixTree(40)
    for path in paths:
        keys = [path[: i + 1] for i in range(len(path))]
        known = tree.match(keys)
        if len(known) < len(keys):
            end = known[-1] if known else ROOT
            if known:
                tree.pins[end] += 1
            tree.insert(end, keys[len(known) :])
    return tree


def test_an_empty_tree_matches_nothing() -> None:
    assert PrefixTree(3).match(["a", "ab"]) == []
    assert PrefixTree(3).match([]) == []


def test_a_match_is_the_longest_leading_run() -> None:
    tree = tree_with("abc")
    a, ab, abc = (tree.index[key] for key in ("a", "ab", "abc"))
    assert tree.match(["a", "ab", "abc"]) == [a, ab, abc]
    assert tree.match(["a", "ab", "abx", "abxy"]) == [a, ab]
    assert tree.match(["x"]) == []


def test_an_inserted_chain_hangs_together_and_takes_the_reference_to_its_end() -> None:
    tree = tree_with("a")
    a = tree.index["a"]
    assert tree.pins[a] == 1
    ab, abc = tree.insert(a, ["ab", "abc"])
    assert [tree.parent[node] for node in (a, ab, abc)] == [ROOT, a, ab]
    assert [tree.pins[node] for node in (a, ab, abc)] == [0, 0, 1]
    assert tree.path_to(abc) == [a, ab, abc]


def test_more_nodes_than_there_are_cannot_be_inserted() -> None:
    tree = PrefixTree(3)  # the root and two more
    with pytest.raises(MisuseError, match="3 nodes asked for, 2 free"):
        tree.insert(ROOT, ["a", "ab", "abc"])
    assert tree.index == {}
    assert len(tree.insert(ROOT, ["a", "ab"])) == 2


def test_a_reference_taken_back_twice_is_misuse() -> None:
    tree = tree_with("a")
    a = tree.index["a"]
    tree.unpin(a)
    with pytest.raises(MisuseError, match=f"node {a} has no reference to take back"):
        tree.unpin(a)
    assert tree.pins[a] == 0


def test_the_id_of_a_removed_node_is_used_again() -> None:
    tree = PrefixTree(2)
    (node,) = tree.insert(ROOT, ["a"])
    tree.unpin(node)
    tree.remove([node])
    assert tree.match(["a"]) == []
    assert tree.insert(ROOT, ["b"]) == [node]
    assert tree.match(["b"]) == [node]


def test_a_detached_node_is_never_matched_and_its_key_is_free_for_another() -> None:
    tree = tree_with("ab")
    old = tree.index["ab"]
    tree.detach(old)
    assert tree.match(["a", "ab"]) == [tree.index["a"]]
    tree.pins[tree.index["a"]] += 1
    (new,) = tree.insert(tree.index["a"], ["ab"])
    assert new != old
    tree.remove([old])
    assert tree.match(["a", "ab"]) == [tree.index["a"], new]
    assert not tree.detached


def test_a_subtree_lists_parents_before_children_and_nothing_else() -> None:
    tree = tree_with("abc", "abd", "ax", "z")
    nodes = tree.subtree(tree.index["ab"])
    assert nodes[0] == tree.index["ab"]
    assert {tree.key_of[node] for node in nodes} == {"ab", "abc", "abd"}


def test_a_path_is_a_chain_from_the_root() -> None:
    tree = tree_with("abc", "x")
    a, ab, abc, x = (tree.index[key] for key in ("a", "ab", "abc", "x"))
    assert tree.is_path([a, ab, abc])
    assert tree.is_path([])
    assert not tree.is_path([ab, abc])  # does not begin below the root
    assert not tree.is_path([a, abc])
    assert not tree.is_path([x, ab])


@given(PATHS)
def test_the_index_and_the_walk_from_the_root_are_inverse(paths: list[tuple[int, ...]]) -> None:
    strings = ["".join(map(str, path)) for path in paths]
    tree = tree_with(*strings)
    wanted = {path[: i + 1] for path in strings for i in range(len(path))}
    assert tree.index.keys() == wanted
    for key, node in tree.index.items():
        walked = [str(tree.key_of[each]) for each in tree.path_to(node)]
        assert walked == [str(key)[: i + 1] for i in range(len(str(key)))]
        assert tree.key_of[node] == key


@given(PATHS)
def test_a_subtree_is_what_begins_with_its_key(paths: list[tuple[int, ...]]) -> None:
    tree = tree_with(*("".join(map(str, path)) for path in paths))
    for top in map(str, tree.index):
        nodes = tree.subtree(tree.index[top])
        assert {tree.key_of[node] for node in nodes} == {
            key for key in tree.index if str(key).startswith(top)
        }
        seen: set[int] = set()
        for node in nodes[1:]:
            seen.add(nodes[0])
            assert tree.parent[node] in seen
            seen.add(node)
