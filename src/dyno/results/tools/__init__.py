"""One file per tool whose results are read."""
