"""Settings for all tests, made before anything imports JAX or Keras."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")


@pytest.fixture(autouse=True)
def no_leftovers(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No test leaves 64-bit types on, which would change all that come after it; and no rules undo each other."""
    import jax

    before = jax.config.jax_enable_x64
    yield
    after = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", before)
    assert after == before, "the test changed jax_enable_x64"
    assert "does not come to rest" not in caplog.text
