"""Benchmarks: workloads, timing, studies, tables and plots."""
