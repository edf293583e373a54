"""Sentences that claim something about rows: who, in what, under which load."""
