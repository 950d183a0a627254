"""What numba-cuda's tests expect of the conftest.py of its repository, which its wheel leaves out."""

import pytest


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = False
