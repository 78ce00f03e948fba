"""Training of controllers: Lightning modules and data modules, run folders, export and calibration."""
