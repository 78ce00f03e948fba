"""Training of controllers: Lightning modules and data modules, run folders, export and calibration.

The name ``specpilot.train`` is both this package and a function: ``specpilot.train(options, folder)`` calls
:func:`.pipeline.train`, and ``from specpilot.train.router import train_router`` imports from the package.
"""

from ..common.callable_package import make_callable

make_callable(__name__, "pipeline")
