import jax
import pytest


@pytest.fixture
def x64():
    """64-bit types are on."""
    with jax.enable_x64(True):
        yield
