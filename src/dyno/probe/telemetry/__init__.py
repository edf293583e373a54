"""Telemetry while a load runs: a sampler in a process of its own, so that the wire's thread never pays for it."""
