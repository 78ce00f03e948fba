"""Routers, which choose a draft model, an early exit or no draft for a prompt (Huang et al. 2024)."""

from __future__ import annotations

from .base import Router
from .policy import PolicyRouter, RouterPolicy

__all__ = ["PolicyRouter", "Router", "RouterPolicy"]
