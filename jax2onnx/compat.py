"""Everything that differs between JAX releases or is not public in JAX, in one place."""

from __future__ import annotations
