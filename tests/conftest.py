"""Settings for all tests, made before anything imports JAX or Keras."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")


@pytest.fixture(autouse=True)
def no_global_state() -> Iterator[None]:
    """A test that leaves 64-bit types on changes all that come after it."""
    import jax

    before = jax.config.jax_enable_x64
    yield
    after = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", before)
    assert after == before, "the test changed jax_enable_x64"
