"""What learns: Lightning modules and data modules, their configurations, and the tiny models' recipe."""
