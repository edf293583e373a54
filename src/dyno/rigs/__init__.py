"""Rigs on other machines: how they are reached, what dyno runs there, and a register of it."""
