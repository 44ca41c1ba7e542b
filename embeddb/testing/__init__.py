"""Contract suites of plug-ins. Under pytest their assertions show the values that differ."""

import pkgutil
from contextlib import suppress

with suppress(ImportError):  # `check_tuner` needs no pytest
    import pytest

    modules = pkgutil.iter_modules(__path__, f"{__name__}.")
    pytest.register_assert_rewrite(*(module.name for module in modules))
