"""A plug-in whose own requirement is not installed."""

import a_module_that_nobody_has

PLUGIN = a_module_that_nobody_has
