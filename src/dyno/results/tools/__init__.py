"""A file for each tool whose results are read."""
