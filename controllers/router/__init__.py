"""Routers, which choose a draft model, an early exit or no draft for a prompt (Huang et al. 2024)."""

from __future__ import annotations

from ..arms import AUTOREGRESSIVE, DRAFT, EXIT, Arm, check_arms, check_enough, parse_arm
from .base import Router, SingleArm
from .policy import PolicyRouter, RouterPolicy

__all__ = [
    "AUTOREGRESSIVE",
    "DRAFT",
    "EXIT",
    "Arm",
    "PolicyRouter",
    "Router",
    "RouterPolicy",
    "SingleArm",
    "check_arms",
    "check_enough",
    "parse_arm",
]
