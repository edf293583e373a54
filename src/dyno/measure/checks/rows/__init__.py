"""Checks over rows: what others told, and dyno's own runs beside them."""
