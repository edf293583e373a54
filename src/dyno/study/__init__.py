"""A study's file: TOML in, a grid of trials out, and the order in which they are run."""
