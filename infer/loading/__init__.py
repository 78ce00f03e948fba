"""From names to pairs, routers and controllers."""
