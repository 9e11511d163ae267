"""The user's own source lines that equations come from."""

from __future__ import annotations

import itertools
import os
import sysconfig
from typing import Any

from jax._src import source_info_util

from jax2onnx.errors import UNKNOWN_LINE

_OWN_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PYTHON_FOLDER = sysconfig.get_path("stdlib") + os.sep


def is_library(file_name: str) -> bool:
    """Whether a file is one of an installed library, or of Python itself."""
    return f"{os.sep}site-packages{os.sep}" in file_name or file_name.startswith((_PYTHON_FOLDER, "<frozen"))


def _frames(eqn: Any) -> list[Any]:
    """The frames an equation comes from, innermost first, without JAX's own and without those outside the export."""
    frames = itertools.takewhile(
        lambda f: not f.file_name.startswith(_OWN_FOLDER), source_info_util.user_frames(eqn.source_info.traceback)
    )
    return list(frames)


def source_line(eqn: Any, *around: Any) -> str:
    """The user's own file:line that an equation comes from: the innermost one that is not in an installed library.

    If the equation itself knows of none, that of the equations `around` it, innermost first, whose bodies it is in.
    """
    frames = [frame for e in (eqn, *around) for frame in _frames(e)]
    own = [f for f in frames if not is_library(f.file_name)]
    frame = next(iter(own or frames), None)
    return f"{frame.file_name}:{frame.start_line}" if frame else UNKNOWN_LINE


def source_stack(eqn: Any, *around: Any) -> str:
    """All the frames that an equation comes from, innermost first.

    JAX cuts off what is outside of a function that it traces by itself; the equations `around`, innermost first, know.
    """
    frames = [f"{f.file_name}:{f.start_line} ({f.function_name})" for e in (eqn, *around) for f in _frames(e)]
    return "\n".join(dict.fromkeys(frames))
