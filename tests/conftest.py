"""Random numbers that differ at every run, so that no answer can be written into the code."""

import os

import numpy as np
import pytest

SEED = int(os.environ.get("RLJAX_SEED", int.from_bytes(os.urandom(4))))


@pytest.fixture
def rng():
    """A generator whose seed a failing test prints; RLJAX_SEED repeats it."""
    print(f"repeat with RLJAX_SEED={SEED}")
    return np.random.default_rng(SEED)
