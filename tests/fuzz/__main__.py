"""`python -m tests.fuzz`: every property-based test with 10,000 examples, or as many as FUZZ_EXAMPLES says."""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("FUZZ_EXAMPLES", "10000")
sys.exit(pytest.main([str(Path(__file__).parent), *sys.argv[1:]]))
