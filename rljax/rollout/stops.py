"""Stop strings as an automaton over tokens, so that they are found inside the compiled loop.

A stop string may begin in the middle of one token and end in the middle of another, and a text
has many tokenisations; so the automaton (Aho-Corasick) reads the bytes of each sampled token.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StopTable:
    """`next[state, token]` is the state after the token; the last state means: a stop was seen."""

    next: Int[Array, "states V"]


def stop_table(token_bytes: Sequence[bytes], stops: Sequence[str]) -> StopTable:
    """Build the table for a vocabulary of `token_bytes`; takes about a second for 50,000 tokens.

    Raises ValueError for a stop string that is empty or that no sequence of tokens can spell.
    """
    patterns = [stop.encode() for stop in stops]
    alphabet = {byte for token in token_bytes for byte in token}
    for stop, pattern in zip(stops, patterns):
        if not pattern:
            raise ValueError("a stop string is empty; it would end every completion at once")
        if lacking := set(pattern) - alphabet:
            raise ValueError(
                f"stop string {stop!r} can never match: no token holds byte {min(lacking):#04x}"
            )
    step = _byte_automaton(patterns)
    states = np.tile(np.arange(len(step))[:, None], (1, len(token_bytes)))
    longest = max(map(len, token_bytes))
    padded = np.zeros((len(token_bytes), longest), np.uint8)
    lengths = np.array([len(token) for token in token_bytes])
    for i, token in enumerate(token_bytes):
        padded[i, : len(token)] = np.frombuffer(token, np.uint8)
    for position in range(longest):
        moved = step[states, padded[None, :, position]]
        states = np.where(position < lengths[None, :], moved, states)
    return StopTable(next=jnp.asarray(states, jnp.int32))


def _byte_automaton(patterns: list[bytes]) -> np.ndarray:
    """[states, 256] transitions; state 0 is the start, the last state is absorbing: matched."""
    children: list[dict[int, int]] = [{}]
    ends: set[int] = set()
    for pattern in patterns:
        node = 0
        for byte in pattern:
            if byte not in children[node]:
                children.append({})
                children[node][byte] = len(children) - 1
            node = children[node][byte]
        ends.add(node)
    matched = len(children)
    step = np.zeros((matched + 1, 256), np.int32)
    fail = [0] * len(children)
    queue = [0]
    for node in queue:  # breadth first: a node's fallback is finished before the node
        if fail[node] in ends:
            ends.add(node)
        fallback = step[fail[node]] if node else np.zeros(256, np.int32)
        step[node] = fallback
        for byte, child in children[node].items():
            fail[child] = int(fallback[byte])
            step[node, byte] = child
            queue.append(child)
    for node in ends:
        step[node] = matched
    step[np.isin(step, list(ends))] = matched
    step[matched] = matched
    return step


def cut_text(text: str, stops: Sequence[str]) -> str:
    """The text before the stop string that ends first; for completions that finished by one."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(found)[1]] if found else text
